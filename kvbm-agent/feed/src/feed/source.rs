use super::FeedError;
use super::turns::{Turn, Turns};
use crate::disk::{
    Disk, DiskChange, NewIncarnation, Opened, PersistedSources, Restored, SourceChange, Verdict,
};
use crate::journal::{
    AppendError, BatchRange, DigestError, Journal, JournalConfig, JournalStatus, RangeError,
    RankDigests,
};
use kvasir_proto::convert::{ConvertError, Heartbeat, Hello, WorkerAddress};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, DpRank, HeldBlock, Incarnation, KvEvent, SourceState, StateReason, Tier,
};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::mem;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Identity of a source, and limits of its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceConfig {
    /// The worker that holds the blocks.
    pub address: WorkerAddress,
    /// Name of the source, unique within the worker, 1 to 256 bytes.
    pub name: String,
    /// Tokens per block.
    pub block_size: u32,
    /// Incarnation of the cache. Use a new one whenever the cache starts empty.
    pub incarnation: Incarnation,
    /// Number of the incarnation's first batch.
    pub first_sequence: u64,
    /// Limits of the journal, and how it counts repeated stores of a block.
    pub journal: JournalConfig,
}

/// Generates an incarnation from two keys of the system's randomness.
#[must_use]
pub fn new_incarnation() -> Incarnation {
    let half = || u128::from(RandomState::new().hash_one(0));
    Incarnation(half() << 64 | half())
}

/// Progress of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct News {
    /// The current incarnation.
    pub incarnation: Incarnation,
    /// Number of the newest batch; `None` before the first.
    pub head: Option<u64>,
    /// How often state, reasons or connection have changed. Heartbeats report them.
    pub changes: u64,
}

/// How far a feed that merges other sources can be trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedState {
    /// Worst state of the sources.
    pub state: SourceState,
    /// Why the state is worse than exact, one entry per reason.
    pub reasons: Vec<StateReason>,
    /// Oldest time at which a source's newest batch was last known to be taken; `None` if that is always so.
    pub verified_at: Option<Instant>,
    /// Whether all sources are connected.
    pub connected: bool,
}

impl FeedState {
    /// State of a feed without other sources.
    pub const OWN: Self =
        Self { state: SourceState::Exact, reasons: Vec::new(), verified_at: None, connected: true };
}

/// One source with its journal, shared by the tasks of an agent.
#[derive(Debug)]
pub struct Feed {
    address: WorkerAddress,
    name: String,
    block_size: u32,
    journal: Mutex<Journal>,
    /// Write-ahead journal, written under the journal's lock; `None` if the journal is in memory only.
    disk: Option<Disk>,
    /// Incarnation, with its first number, that begins if the one on disk is over.
    fresh: (Incarnation, u64),
    /// Whether it is decided which incarnation continues. Until then, publishing is not allowed.
    settled: watch::Sender<bool>,
    news: watch::Sender<News>,
    feed_state: Mutex<FeedState>,
    pub(super) dump_turns: Turns,
    /// Permits to copy [digests](Self::digests).
    digest_turns: Turns,
}

impl Feed {
    /// Creates a source without batches.
    ///
    /// # Errors
    /// If the name or block size breaks the contract.
    pub fn new(config: SourceConfig) -> Result<Self, ConvertError> {
        Ok(Self::open(config, None)?.0)
    }

    /// Opens a source whose journal is on disk, too, and returns the restored sources. A restored source must not
    /// publish before it is [settled](Self::settle) whether its incarnation continues.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn open(
        config: SourceConfig,
        opened: Option<Opened>,
    ) -> Result<(Self, PersistedSources), ConvertError> {
        let fresh = (config.incarnation, config.first_sequence);
        let begin = || Journal::new(fresh.0, fresh.1, config.journal);
        let (disk, journal, sources) = match opened {
            None => (None, begin(), None),
            Some(Opened { disk, restored: Err(why) }) => {
                disk.decide(Verdict::NewIncarnation(why));
                (Some(disk), begin(), None)
            }
            Some(Opened { disk, restored: Ok(Restored { journal, sources }) }) => {
                (Some(disk), journal, Some(sources))
            }
        };
        let JournalStatus { incarnation, head, .. } = journal.status();
        let feed = Self {
            address: config.address,
            name: config.name,
            block_size: config.block_size,
            journal: Mutex::new(journal),
            disk,
            fresh,
            settled: watch::Sender::new(sources.is_none()),
            news: watch::Sender::new(News { incarnation, head, changes: 0 }),
            feed_state: Mutex::new(FeedState::OWN),
            dump_turns: Turns::new(),
            digest_turns: Turns::new(),
        };
        // Refuses settings that no index would accept.
        Hello::try_from(pb::PublishHello::from(feed.hello()))?;
        Ok((feed, sources.unwrap_or_default()))
    }

    /// The worker that holds the blocks.
    #[must_use]
    pub const fn address(&self) -> &WorkerAddress {
        &self.address
    }

    /// Name of the source.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Publishes events of one rank, and returns the number of their batch. Events that exceed one message become
    /// several batches; the last number is returned.
    ///
    /// # Errors
    /// If an event breaks a limit, or the incarnation's numbers are used up. Then the journal is unchanged.
    pub fn publish(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<u64, AppendError> {
        let last = self.record([(rank, events)], SourceChange::None.into())?;
        // Appended events have a number.
        last.ok_or(AppendError::Exhausted)
    }

    /// Publishes a source's events at one rank, with the source's position. A journal on disk has both, in one write,
    /// before any reader is notified. Returns the number of the last batch; `None` without events.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_all(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        source: SourceChange<'_>,
    ) -> Result<Option<u64>, AppendError> {
        self.publish_ranks([(rank, events)], source.into())
    }

    /// Like [`publish_all`](Self::publish_all), for several ranks and with further changes on disk.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), if it fails for one rank. Batches published for other ranks keep their numbers.
    pub fn publish_ranks(
        &self,
        published: impl IntoIterator<Item = (DpRank, Vec<KvEvent>)>,
        change: DiskChange<'_>,
    ) -> Result<Option<u64>, AppendError> {
        self.record(published.into_iter().filter(|(_, events)| !events.is_empty()), change)
    }

    /// Appends events to the journal and writes them to disk, then notifies readers. If the disk fails permanently, a
    /// new incarnation begins, because a restart would assign the same numbers again.
    fn record(
        &self,
        published: impl IntoIterator<Item = (DpRank, Vec<KvEvent>)>,
        change: DiskChange<'_>,
    ) -> Result<Option<u64>, AppendError> {
        let mut journal = self.journal.lock();
        let mut batches = Vec::new();
        let before = journal.head();
        let mut appended = Ok(None);
        for (rank, events) in published {
            let last = match &self.disk {
                None => journal.append(rank, events),
                Some(_) => {
                    journal.append_each(rank, events, |batch| batches.push(Arc::clone(batch)))
                }
            };
            appended = appended.and(last.map(Some));
        }
        if let Some(disk) = &self.disk {
            disk.write(&batches, change);
            if disk.revokes_incarnation() {
                // A restarted agent would assign these numbers again.
                journal.republish(new_incarnation());
                appended = appended.map(|_last| journal.head());
            }
        }
        let head = journal.head();
        if head.is_some() && head != before {
            // Within the lock, so that readers are notified in order.
            let incarnation = journal.incarnation();
            self.news.send_modify(|news| (news.incarnation, news.head) = (incarnation, head));
        }
        appended
    }

    /// Begins a new incarnation with an empty cache.
    pub fn begin_incarnation(&self, incarnation: Incarnation, first_sequence: u64) {
        let mut journal = self.journal.lock();
        journal.begin_incarnation(incarnation, first_sequence);
        if let Some(disk) = &self.disk {
            disk.begin_incarnation(incarnation, first_sequence);
        }
        self.news.send_modify(|news| (news.incarnation, news.head) = (incarnation, None));
    }

    /// Begins a new incarnation whose first batches publish all held blocks, as [`Journal::republish`]. Does nothing
    /// unless `present` is the current incarnation.
    pub fn republish(&self, present: Incarnation, new: Incarnation) {
        let mut journal = self.journal.lock();
        if journal.incarnation() != present {
            return;
        }
        journal.republish(new);
        if let Some(disk) = &self.disk {
            disk.republish(new, journal.first(), &journal.retained());
        }
        let head = journal.head();
        self.news.send_modify(|news| (news.incarnation, news.head) = (new, head));
    }

    /// Whether all held blocks satisfy a condition. Holds the journal's lock during the check.
    #[must_use]
    pub fn all_held(&self, is_fine: impl FnMut(DpRank, BlockName, Tier) -> bool) -> bool {
        self.journal.lock().all_held(is_fine)
    }

    /// The journal on disk; `None` if the journal is in memory only.
    #[must_use]
    pub const fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Records whether the incarnation on disk continues. Begins the incarnation `fresh` if the engine restarted, the
    /// source is gone or the journal is damaged. Readers may publish from now on.
    pub fn settle(&self, verdict: Verdict) {
        if matches!(
            verdict,
            Verdict::NewIncarnation(
                NewIncarnation::Engine | NewIncarnation::NoSource | NewIncarnation::Damaged(_)
            )
        ) {
            let (incarnation, first) = self.fresh;
            self.begin_incarnation(incarnation, first);
        }
        if let Some(disk) = &self.disk {
            disk.decide(verdict);
        }
        self.settled.send_replace(true);
    }

    /// Whether it is decided which incarnation continues. Until then, publishing is not allowed.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }

    /// Waits until it is decided which incarnation continues.
    pub async fn until_settled(&self) {
        // Cannot fail: `self` owns the sender.
        let mut settled = self.settled.subscribe();
        let _known = settled.wait_for(|settled| *settled).await;
    }

    /// Subscribes to the source's progress.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<News> {
        self.news.subscribe()
    }

    /// Up to `batches_max` batches in a range of one incarnation, as [`Journal::range`].
    ///
    /// # Errors
    /// As [`Journal::range`].
    pub fn range(
        &self,
        incarnation: Incarnation,
        range: RangeInclusive<u64>,
        batches_max: usize,
    ) -> Result<BatchRange, RangeError> {
        self.journal.lock().range(incarnation, range, batches_max)
    }

    /// Ranks with held blocks.
    #[must_use]
    pub fn ranks(&self) -> Vec<DpRank> {
        self.journal.lock().ranks()
    }

    /// State of names at a rank, held or not; empty for a rank without held blocks. Holds the journal's lock.
    #[must_use]
    pub fn held(&self, rank: DpRank, names: &[BlockName]) -> Vec<HeldBlock> {
        self.journal.lock().held(rank, names)
    }

    /// Waits for the permit to copy [digests](Self::digests). Keep the permit until the copies are sent.
    ///
    /// # Errors
    /// If too many callers wait, or the wait times out.
    pub async fn digest_turn(&self) -> Result<Turn, FeedError> {
        self.digest_turns.wait().await
    }

    /// Digests of the held blocks, after the newest batch. Copies them under the journal's lock: 32 KiB for each tier
    /// of a rank with blocks.
    ///
    /// # Errors
    /// As [`Journal::digests`].
    pub fn digests(&self, incarnation: Incarnation) -> Result<RankDigests, DigestError> {
        self.journal.lock().digests(incarnation)
    }

    /// Returns the message for indexes between batches, or `None` if another incarnation has begun.
    #[must_use]
    pub fn heartbeat(&self, incarnation: Incarnation) -> Option<Heartbeat> {
        let (head_sequence, digest) = {
            let journal = self.journal.lock();
            if journal.incarnation() != incarnation {
                return None;
            }
            (journal.head(), journal.digest())
        };
        let FeedState { state, reasons, verified_at, connected } = self.feed_state();
        let verified_age = verified_at.map_or(Duration::ZERO, |at| at.elapsed());
        let engine_away = !connected;
        Some(Heartbeat { head_sequence, digest, state, verified_age, engine_away, reasons })
    }

    /// Sets how far the source can be trusted. A change of state, connection or reasons is sent to indexes immediately.
    pub fn set_state(&self, feed_state: FeedState) {
        let shown = |at: &FeedState| {
            let reasons: Vec<_> = at.reasons.iter().map(|seen| seen.reason).collect();
            (at.state, at.connected, reasons)
        };
        let now = shown(&feed_state);
        let before = mem::replace(&mut *self.feed_state.lock(), feed_state);
        if shown(&before) != now {
            self.news.send_modify(|news| news.changes += 1);
        }
    }

    /// How far the source can be trusted.
    #[must_use]
    pub fn feed_state(&self) -> FeedState {
        self.feed_state.lock().clone()
    }

    /// Status of the journal.
    #[must_use]
    pub fn status(&self) -> JournalStatus {
        self.journal.lock().status()
    }

    /// Returns the message that introduces the source to an index.
    #[must_use]
    pub fn hello(&self) -> Hello {
        let JournalStatus { incarnation, first, head, copy_mode, .. } = self.status();
        Hello {
            address: self.address.clone(),
            source: self.name.clone(),
            block_size: self.block_size,
            incarnation,
            copy_mode,
            first_sequence: Some(first),
            head_sequence: head,
            local_indexer: None,
        }
    }

    pub(crate) fn with_journal<T>(&self, change: impl FnOnce(&mut Journal) -> T) -> T {
        change(&mut self.journal.lock())
    }
}
