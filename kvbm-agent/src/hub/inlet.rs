use super::pieces::pieces;
use super::sources::{Key, Said, Sources};
use super::{HubConfig, HubError, SourceCounts, SourceReport, SourceStatus};
use crate::feed::Feed;
use crate::journal::AppendError;
use kvasir_proto::types::{CopyMode, DpRank, KvEvent};
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
        let sources = Mutex::new(Sources::new(config, feed.status().copy_mode)?);
        Ok(Self { feed, sources })
    }

    /// Opens a source. Of its life only its name is left once it is closed.
    ///
    /// # Errors
    /// If there are as many as may be, one of that name is open, or its copy mode is not the agent's
    /// where it is passed through.
    pub fn open(self: &Arc<Self>, name: &str, copy_mode: CopyMode) -> Result<Inlet, HubError> {
        let key = self.sources.lock().open(name, copy_mode)?;
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

    /// Publishes; the lock is held, so that what sources say keeps its order.
    fn publish(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Option<u64>, AppendError> {
        let mut last = None;
        for piece in pieces(events) {
            last = Some(self.feed.publish(rank, piece)?);
        }
        Ok(last)
    }

    fn publish_all(&self, said: Said) {
        for (rank, events) in said {
            if let Err(error) = self.publish(rank, events) {
                tracing::error!(%error, rank, "what a source no longer holds is not said");
            }
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

    /// Takes what happened at one rank, in order; in the journal when it returns.
    ///
    /// # Errors
    /// If the source was closed, an event has too many blocks, there are too many ranks, or the numbers
    /// of the agent's stream are used up.
    pub fn take(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Taken, HubError> {
        let mut sources = self.hub.sources.lock();
        let outcome = sources.take(self.key, rank, events)?;
        let sequence = self.hub.publish(rank, outcome.events)?;
        if outcome.refused > 0 {
            self.hub.feed.stand(sources.standing());
        }
        Ok(Taken { id: outcome.id, sequence, refused: outcome.refused })
    }

    /// The source holds nothing any more, at any rank.
    pub fn clear(&self) {
        let mut sources = self.hub.sources.lock();
        if let Ok(said) = sources.clear(self.key) {
            self.hub.publish_all(said);
            self.hub.feed.stand(sources.standing());
        }
    }

    /// The source is gone, and with it all that it holds. What comes through this inlet afterwards is refused.
    pub fn close(&self) {
        let mut sources = self.hub.sources.lock();
        // Closed is closed.
        if let Ok(said) = sources.close(self.key) {
            self.hub.publish_all(said);
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
                self.hub.feed.stand(sources.standing());
            }
        }
    }

    /// Shows how far the source can be trusted.
    pub fn show(&self, status: SourceStatus) {
        let mut sources = self.hub.sources.lock();
        if let Ok(shown) = sources.status(self.key) {
            shown.send_if_modified(|before| {
                let changed = *before != status;
                *before = status;
                changed
            });
            self.hub.feed.stand(sources.standing());
        }
    }
}
