use super::pieces::pieces;
use super::sources::{Gone, Key, Sources};
use super::{HubConfig, HubError, SourceCounts, SourceReport, SourceStatus};
use crate::disk::{KeptSource, SourceChange, SourceKind, Verdict};
use crate::feed::Feed;
use kvasir_proto::types::{CopyMode, Cursor, DpRank, KvEvent, SourceState};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::sync::watch;

/// Where all sources of an agent come together. See the [module](super).
#[derive(Debug)]
pub struct Hub {
    feed: Arc<Feed>,
    sources: Mutex<Sources>,
}

/// A batch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its number among those of its source and rank, from 0; one more each time.
    pub id: u64,
    /// Number of the last batch of the agent's stream that it became; none if nothing is new by it.
    pub sequence: Option<u64>,
    /// Blocks that were not taken, for there was no room.
    pub refused: u64,
}

/// Where one source puts in what it has to say.
#[derive(Debug)]
pub struct Inlet {
    hub: Arc<Hub>,
    key: Key,
    name: String,
}

impl Hub {
    /// A hub in front of a feed, which nobody else publishes to.
    ///
    /// # Errors
    /// If the number of sources is out of range, or does not go with the feed's copy mode.
    pub fn new(feed: Arc<Feed>, config: HubConfig) -> Result<Self, HubError> {
        Self::resume(feed, config, Vec::new())
    }

    /// A hub in front of a feed of which some sources were kept on disk. Open those that may go on with
    /// [`open_kept`](Self::open_kept), then [`begin`](Self::begin).
    ///
    /// # Errors
    /// As [`new`](Self::new), or if sources are consolidated and the feed is on disk.
    pub fn resume(
        feed: Arc<Feed>,
        config: HubConfig,
        kept: Vec<KeptSource>,
    ) -> Result<Self, HubError> {
        let mut sources = Sources::new(config, feed.status().copy_mode)?;
        if feed.disk().is_some() {
            if config.consolidate {
                return Err(HubError::DiskOfMany);
            }
            sources.keep(kept, feed.is_settled());
        }
        Ok(Self { feed, sources: Mutex::new(sources) })
    }

    /// Sources of a kind that were kept and are not open yet.
    #[must_use]
    pub fn kept(&self, kind: SourceKind) -> Vec<KeptSource> {
        self.sources.lock().kept(kind)
    }

    /// All that are configured are open: what else was kept is gone.
    pub fn begin(&self) {
        let mut sources = self.sources.lock();
        let (gone, forgotten) = sources.begin(self.feed.ranks());
        self.tell(gone);
        for name in forgotten {
            self.write(SourceChange::Forget(&name));
        }
    }

    /// Opens a source. Of its life only its name is left once it is closed.
    ///
    /// # Errors
    /// If there are as many as may be, one of that name is open, or its copy mode is not the agent's
    /// where it is passed through.
    pub fn open(self: &Arc<Self>, name: &str, copy_mode: CopyMode) -> Result<Inlet, HubError> {
        self.open_as(name, copy_mode, None)
    }

    /// As [`open`](Self::open), for a source that may go on where it was kept, and is kept itself: what it says
    /// comes with [cursors](Inlet::take_at).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_kept(
        self: &Arc<Self>,
        name: &str,
        copy_mode: CopyMode,
        kind: SourceKind,
    ) -> Result<Inlet, HubError> {
        self.open_as(name, copy_mode, Some(kind))
    }

    fn open_as(
        self: &Arc<Self>,
        name: &str,
        copy_mode: CopyMode,
        kind: Option<SourceKind>,
    ) -> Result<Inlet, HubError> {
        let key = self.sources.lock().open(name, copy_mode, kind)?;
        Ok(Inlet { hub: Arc::clone(self), key, name: name.to_owned() })
    }

    /// The agent's stream.
    #[must_use]
    pub const fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// All open sources.
    #[must_use]
    pub fn reports(&self) -> Vec<SourceReport> {
        self.sources.lock().reports(self.feed.block_size())
    }

    /// How far an open source can be trusted, with word of every change until it is closed.
    #[must_use]
    pub fn watch(&self, name: &str) -> Option<watch::Receiver<SourceStatus>> {
        self.sources.lock().watch(name)
    }

    /// Says what a source no longer holds, and what that decides; the lock is held, so that what sources say keeps its
    /// order.
    fn tell(&self, gone: Gone) {
        for (rank, events) in gone.said {
            if let Err(error) = self.feed.publish_all(rank, pieces(events), SourceChange::None) {
                tracing::error!(%error, rank, "what a source no longer holds is not said");
            }
        }
        if let Some(verdict) = gone.verdict {
            self.feed.settle(verdict);
        }
    }

    /// Writes where a source stands.
    fn write(&self, change: SourceChange<'_>) {
        if let Err(error) = self.feed.publish_all(0, Vec::new(), change) {
            tracing::error!(%error, "where a source stands is not written");
        }
    }
}

impl Inlet {
    /// Name of the source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.hub.feed.block_size()
    }

    /// Where it stood on disk, as long as its engine was not heard: it goes on from there, or is cleared.
    #[must_use]
    pub fn pending(&self) -> Option<KeptSource> {
        self.hub.sources.lock().pending(self.key)
    }

    /// Takes what happened at one rank, in order; in the journal when it returns.
    ///
    /// # Errors
    /// If the source was closed, an event has too many blocks, there are too many ranks, or the numbers
    /// of the agent's stream are used up.
    pub fn take(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Taken, HubError> {
        self.take_from(rank, events, None)
    }

    /// As [`take`](Self::take), for a source that is kept: it stands at `cursor` then.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_at(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        cursor: Cursor,
    ) -> Result<Taken, HubError> {
        self.take_from(rank, events, Some(cursor))
    }

    fn take_from(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        cursor: Option<Cursor>,
    ) -> Result<Taken, HubError> {
        let (hub, mut sources) = (&self.hub, self.hub.sources.lock());
        if cursor.is_some() && sources.prove(self.key) {
            hub.feed.settle(Verdict::Kept);
        }
        let outcome = sources.take(self.key, rank, events, cursor)?;
        let change = sources.change(self.key);
        // The lock is held, so that what sources say keeps its order.
        let sequence = hub.feed.publish_all(rank, pieces(outcome.events), change)?;
        if outcome.refused > 0 {
            hub.feed.stand(sources.standing());
        }
        Ok(Taken { id: outcome.id, sequence, refused: outcome.refused })
    }

    /// The source holds nothing any more, at any rank: its life is over.
    pub fn clear(&self) {
        self.go(true);
    }

    /// The source holds nothing any more, at any rank, as far as is known: events of its life were lost for good.
    pub fn lose(&self) {
        self.go(false);
    }

    fn go(&self, is_over: bool) {
        let mut sources = self.hub.sources.lock();
        if let Ok(gone) = sources.gone(self.key, is_over) {
            self.hub.tell(gone);
            self.hub.write(sources.change(self.key));
            self.hub.feed.stand(sources.standing());
        }
    }

    /// The source is gone, and with it all that it holds. What comes through this inlet afterwards is refused.
    pub fn close(&self) {
        let mut sources = self.hub.sources.lock();
        // Closed is closed.
        if let Ok(gone) = sources.close(self.key) {
            self.hub.tell(gone);
            self.hub.write(SourceChange::Forget(&self.name));
            self.hub.feed.stand(sources.standing());
        }
    }

    /// The source, which holds nothing, has its second announcements read otherwise from now on.
    ///
    /// # Errors
    /// If the source is passed through and this is not the agent's copy mode, or it was closed.
    pub fn set_copy_mode(&self, copy_mode: CopyMode) -> Result<(), HubError> {
        self.hub.sources.lock().set_copy_mode(self.key, copy_mode)
    }

    /// Counts what was not handed in, unless the source was closed.
    pub fn count(&self, change: impl FnOnce(&mut SourceCounts)) {
        let mut sources = self.hub.sources.lock();
        if let Ok(counts) = sources.counts(self.key) {
            let before = counts.not_taken();
            change(counts);
            if counts.not_taken() > before {
                sources.lack(self.key);
                self.hub.feed.stand(sources.standing());
                self.hub.write(sources.change(self.key));
            }
        }
    }

    /// Shows how far the source can be trusted.
    pub fn show(&self, status: SourceStatus) {
        let mut sources = self.hub.sources.lock();
        // What counts as applied was compared with the engine's own.
        let is_heard =
            status.connected && matches!(status.state, SourceState::Exact | SourceState::Gap);
        let status = SourceStatus { state: sources.state(self.key, status.state), ..status };
        if let Ok(shown) = sources.status(self.key) {
            shown.send_if_modified(|before| {
                let changed = *before != status;
                *before = status;
                changed
            });
            self.hub.feed.stand(sources.standing());
        }
        if is_heard && sources.prove(self.key) {
            self.hub.feed.settle(Verdict::Kept);
        }
    }
}
