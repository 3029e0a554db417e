use super::pieces::pieces;
use super::sources::{Key, Said, Sources};
use super::waiting::Waiting;
use super::{HubConfig, HubError, SourceCounts, SourceReport, SourceStatus};
use crate::feed::Feed;
use crate::journal::AppendError;
use kvasir_proto::types::{CopyMode, DpRank, KvEvent};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Where all sources of an agent come together. See the [module](super).
#[derive(Debug)]
pub struct Hub {
    feed: Arc<Feed>,
    sources: Mutex<Sources>,
    /// What waits to be said with what comes after it, locked within `sources`; none where nothing does.
    waiting: Option<Mutex<Waiting>>,
    /// Something waits that is due at another time than was known.
    due_changed: Notify,
}

/// A batch was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Its number among those of its source and rank, from 0; one more each time.
    pub id: u64,
    /// Number of the last batch of the agent's stream that it became; none if nothing is new by it, or if it waits
    /// for others to be said together.
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
    /// If a bound is out of its range, or the number of sources does not go with the feed's copy mode.
    pub fn new(feed: Arc<Feed>, config: HubConfig) -> Result<Self, HubError> {
        config.batching.check()?;
        let sources = Mutex::new(Sources::new(config, feed.status().copy_mode)?);
        let batching = Some(config.batching).filter(|batching| !batching.is_off());
        let waiting = batching.map(|batching| Mutex::new(Waiting::new(batching)));
        Ok(Self { feed, sources, waiting, due_changed: Notify::new() })
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

    /// Blocks that wait to be said with what comes after them: taken, and not in the journal yet.
    #[must_use]
    pub fn waiting_blocks(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.lock().blocks())
    }

    /// Says what waits when it is due, until cancelled. What waits then is left to [`flush`](Self::flush).
    pub async fn keep(&self, stop: CancellationToken) {
        let Some(waiting) = &self.waiting else { return };
        loop {
            let due = waiting.lock().due();
            let wake_up = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => self.due_changed.notified().await,
                }
            };
            select! {
                () = stop.cancelled() => return,
                () = wake_up => {}
            }
            let _order = self.sources.lock();
            let due = waiting.lock().take_due(Instant::now());
            self.say_all(due);
        }
    }

    /// Says at once what waits.
    pub fn flush(&self) {
        let Some(waiting) = &self.waiting else { return };
        let _order = self.sources.lock();
        let all = waiting.lock().take_all();
        self.say_all(all);
    }

    /// Publishes, or lets it wait; the lock is held, so that what sources say keeps its order.
    fn publish(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Option<u64>, AppendError> {
        let Some(waiting) = &self.waiting else { return self.say(rank, events) };
        let (mut waiting, now) = (waiting.lock(), Instant::now());
        let slept = waiting.due().is_none();
        waiting.add(rank, events, now);
        let due = waiting.take_due(now);
        if slept && waiting.due().is_some() {
            self.due_changed.notify_one();
        }
        drop(waiting);
        Ok(self.say_all(due))
    }

    /// Puts it into the journal.
    fn say(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Option<u64>, AppendError> {
        let mut last = None;
        for piece in pieces(events) {
            last = Some(self.feed.publish(rank, piece)?);
        }
        Ok(last)
    }

    /// Puts it into the journal, rank by rank; returns the number of the last batch.
    fn say_all(&self, said: impl IntoIterator<Item = (DpRank, Vec<KvEvent>)>) -> Option<u64> {
        let mut last = None;
        for (rank, events) in said {
            match self.say(rank, events) {
                Ok(sequence) => last = sequence.or(last),
                // What it may be was checked when it was taken.
                Err(error) => tracing::error!(%error, rank, "what has waited is not said"),
            }
        }
        last
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
        Ok(Taken { id: outcome.id, sequence, refused: outcome.refused })
    }

    /// The source holds nothing any more, at any rank.
    pub fn clear(&self) {
        let mut sources = self.hub.sources.lock();
        if let Ok(said) = sources.clear(self.key) {
            self.hub.publish_all(said);
        }
    }

    /// The source is gone, and with it all that it holds. What comes through this inlet afterwards is refused.
    pub fn close(&self) {
        let mut sources = self.hub.sources.lock();
        // Closed is closed.
        if let Ok(said) = sources.close(self.key) {
            self.hub.publish_all(said);
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
        if let Ok(counts) = self.hub.sources.lock().counts(self.key) {
            change(counts);
        }
    }

    /// Shows how far the source can be trusted.
    pub fn show(&self, status: SourceStatus) {
        if let Ok(shown) = self.hub.sources.lock().status(self.key) {
            shown.send_if_modified(|before| {
                let changed = *before != status;
                *before = status;
                changed
            });
        }
    }
}
