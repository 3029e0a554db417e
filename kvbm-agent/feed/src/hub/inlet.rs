use super::merge::merge_removals;
use super::source::{Gone, Key, Resumption};
use super::sources::Sources;
use super::waiting::Waiting;
use super::{HubConfig, HubError, SourceCounts, SourceReport};
use crate::disk::{
    DiskChange, Flaws, HoldingsChange, NamesChange, NewIncarnation, PersistedSource,
    PersistedSources, SourceChange, SourceKind, SourcePosition, Verdict,
};
use crate::feed::Feed;
use crate::journal::AppendError;
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{
    CopyMode, Direction, DpRank, KvEvent, SourceState, SourceStatus, StateReason,
};
use parking_lot::Mutex;
use std::mem;
use std::sync::Arc;
use tokio::select;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Merges all sources of an agent into its feed. See the [module](super).
#[derive(Debug)]
pub struct Hub {
    feed: Arc<Feed>,
    sources: Mutex<Sources>,
    /// Events waiting to be published with later batches, locked within `sources`; `None` without batching.
    waiting: Option<Mutex<Waiting>>,
    /// Notified when the earliest publish time has changed.
    due_changed: Notify,
}

/// Result of a batch that was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Number of the batch within its source and rank, from 0, increasing by one.
    pub id: u64,
    /// Number of the last resulting batch in the agent's stream. `None` if the batch has no effect, or waits to be
    /// published with others.
    pub sequence: Option<u64>,
    /// Blocks refused for lack of room.
    pub refused: u64,
}

/// Input of the hub for one source.
#[derive(Debug)]
pub struct Inlet {
    hub: Arc<Hub>,
    key: Key,
    name: String,
}

impl Hub {
    /// Creates a hub for a feed. Publish to the feed only through the hub.
    ///
    /// # Errors
    /// If a limit is out of its range, or consolidation conflicts with the feed's copy mode.
    pub fn new(feed: Arc<Feed>, config: HubConfig) -> Result<Self, HubError> {
        Self::resume(feed, config, PersistedSources::default())
    }

    /// Creates a hub for a feed that has sources on disk. Open the sources that may continue with
    /// [`open_persisted`](Self::open_persisted), then call [`begin`](Self::begin).
    ///
    /// # Errors
    /// As [`new`](Self::new), or if batching is on and the feed is on disk.
    pub fn resume(
        feed: Arc<Feed>,
        config: HubConfig,
        persisted: PersistedSources,
    ) -> Result<Self, HubError> {
        config.batching.check()?;
        let has_disk = feed.disk().is_some();
        let mut sources = Sources::new(config, feed.status().copy_mode, has_disk)?;
        if has_disk {
            if !config.batching.is_off() {
                return Err(HubError::DiskWaits);
            }
            let is_read = sources.restore(persisted, feed.is_settled());
            if !is_read || !feed.all_held(|rank, block, tier| sources.holds(rank, block, tier)) {
                // No source would ever remove the block.
                sources.drop_left();
                let why = NewIncarnation::Damaged("a block is held, and by no source".to_owned());
                feed.settle(Verdict::NewIncarnation(why));
            }
        }
        let batching = Some(config.batching).filter(|batching| !batching.is_off());
        let waiting = batching.map(|batching| Mutex::new(Waiting::new(batching)));
        let sources = Mutex::new(sources);
        Ok(Self { feed, sources, waiting, due_changed: Notify::new() })
    }

    /// Sources of a kind that are on disk, but not open yet.
    #[must_use]
    pub fn persisted(&self, kind: SourceKind) -> Vec<PersistedSource> {
        self.sources.lock().persisted(kind)
    }

    /// Ends the restore once all configured sources are open: drops the persisted sources that were not opened.
    pub fn begin(&self) {
        let mut sources = self.sources.lock();
        let (gone, forgotten) = sources.end_restore(self.feed.ranks());
        // Forget positions first: a position on disk without its holdings would never get them back.
        for name in forgotten {
            self.write(SourceChange::Forget(&name));
        }
        self.release(gone, SourceChange::None);
    }

    /// Names of the sources that continue from disk if their engines prove that they survived.
    #[must_use]
    pub fn pending(&self) -> Vec<String> {
        self.sources.lock().all_pending()
    }

    /// Opens a source that does not continue after a restart of the agent.
    ///
    /// # Errors
    /// If the hub has its maximum number of sources, the name is in use, or the copy mode differs from the agent's
    /// without consolidation.
    pub fn open(self: &Arc<Self>, name: &str, copy_mode: CopyMode) -> Result<Inlet, HubError> {
        self.open_as(name, copy_mode, Resumption::Never)
    }

    /// Like [`open`](Self::open), for a source that is written to disk and may continue from there.
    /// Publish its events with [cursors](Inlet::take_at).
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_persisted(
        self: &Arc<Self>,
        name: &str,
        copy_mode: CopyMode,
        kind: SourceKind,
    ) -> Result<Inlet, HubError> {
        self.open_as(name, copy_mode, Resumption::Position(kind))
    }

    /// Like [`open`](Self::open), for a source that publishes for one rank and names blocks by canonical
    /// hashes. The source begins with an image: one batch that starts with a clear and lists all its blocks. If sources
    /// are consolidated and on disk, its earlier holdings stay until that image.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_imaged(
        self: &Arc<Self>,
        name: &str,
        copy_mode: CopyMode,
        rank: DpRank,
    ) -> Result<Inlet, HubError> {
        self.open_as(name, copy_mode, Resumption::Image(rank))
    }

    /// Opens a source under a name. With `resumption`, the source continues from disk.
    fn open_as(
        self: &Arc<Self>,
        name: &str,
        copy_mode: CopyMode,
        resumption: Resumption,
    ) -> Result<Inlet, HubError> {
        let key = self.sources.lock().open_source(name, copy_mode, resumption)?;
        Ok(Inlet { hub: Arc::clone(self), key, name: name.to_owned() })
    }

    /// Feed of the agent's stream.
    #[must_use]
    pub const fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Reports of all open sources.
    #[must_use]
    pub fn reports(&self) -> Vec<SourceReport> {
        self.sources.lock().reports(self.feed.block_size())
    }

    /// Receiver of an open source's status, notified of every change until the source is closed.
    #[must_use]
    pub fn watch(&self, name: &str) -> Option<watch::Receiver<SourceStatus<Instant>>> {
        self.sources.lock().watch(name)
    }

    /// Number of blocks that wait to be published with later ones. They are not in the journal yet.
    #[must_use]
    pub fn waiting_blocks(&self) -> usize {
        self.waiting.as_ref().map_or(0, |waiting| waiting.lock().blocks())
    }

    /// Publishes waiting events when they are due, until `stop` is cancelled. Returns immediately without batching.
    /// Then call [`flush`](Self::flush) for the rest.
    pub async fn run(&self, stop: CancellationToken) {
        let Some(waiting) = &self.waiting else { return };
        loop {
            let due = waiting.lock().due_at();
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
            self.publish_all(due);
        }
    }

    /// Publishes waiting events immediately.
    pub fn flush(&self) {
        let Some(waiting) = &self.waiting else { return };
        let _order = self.sources.lock();
        let all = waiting.lock().take_all();
        self.publish_all(all);
    }

    /// Publishes events, or with batching adds them to the waiting events. The caller holds the sources' lock, which
    /// preserves the order of events.
    fn publish(
        &self,
        published: impl IntoIterator<Item = (DpRank, Vec<KvEvent>)>,
        change: DiskChange<'_>,
    ) -> Result<Option<u64>, AppendError> {
        // With batching, there is no disk.
        let Some(waiting) = &self.waiting else {
            let merged = published.into_iter().map(|(rank, events)| (rank, merge_removals(events)));
            return self.feed.publish_ranks(merged, change);
        };
        let (mut waiting, now) = (waiting.lock(), Instant::now());
        let slept = waiting.due_at().is_none();
        for (rank, events) in published {
            waiting.add(rank, events, now);
        }
        let due = waiting.take_due(now);
        if slept && waiting.due_at().is_some() {
            self.due_changed.notify_one();
        }
        drop(waiting);
        Ok(self.publish_all(due))
    }

    /// Appends events to the journal, rank by rank. Returns the number of the last batch.
    fn publish_all(&self, events: impl IntoIterator<Item = (DpRank, Vec<KvEvent>)>) -> Option<u64> {
        let mut last = None;
        for (rank, events) in events {
            match self.feed.publish_all(rank, merge_removals(events), SourceChange::None) {
                Ok(sequence) => last = sequence.or(last),
                // Events were checked when they were taken.
                Err(error) => tracing::error!(%error, rank, "cannot publish a batch that waited"),
            }
        }
        last
    }

    /// Publishes removals of blocks that sources no longer hold, in one write with the source's new position. Settles
    /// the incarnation if `gone` has a verdict.
    fn release(&self, mut gone: Gone, position: SourceChange<'_>) {
        let released = gone.released.iter_mut();
        let published: Vec<_> =
            released.map(|at| (at.rank, mem::take(&mut at.changed.events))).collect();
        let holdings = gone.released.iter().map(|at| HoldingsChange {
            source: &at.source,
            rank: at.rank,
            changes: &at.changed.holdings,
        });
        let holdings: Vec<_> = holdings.collect();
        let change = DiskChange { holdings: &holdings, ..DiskChange::from(position) };
        if let Err(error) = self.publish(published, change) {
            tracing::error!(%error, "a removal of a source's blocks cannot be published");
        }
        if let Some(verdict) = gone.verdict {
            self.feed.settle(verdict);
        }
    }

    /// Writes the position of a source.
    fn write(&self, change: SourceChange<'_>) {
        if let Err(error) = self.feed.publish_all(0, Vec::new(), change) {
            tracing::error!(%error, "cannot write the position of a source");
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

    /// Position on disk of a source whose engine has not reported yet. The source continues from there, or is cleared.
    #[must_use]
    pub fn pending(&self) -> Option<PersistedSource> {
        self.hub.sources.lock().pending(self.key)
    }

    /// Takes the meanings of names from an earlier process, if the source's position continues.
    #[must_use]
    pub fn take_names(&self) -> Vec<KnownName> {
        self.hub.sources.lock().take_names(self.key)
    }

    /// Checks whether the source may publish for a rank now. Events for a rank reserved for another source are refused.
    /// Send them again once the other source has reported, or is gone.
    ///
    /// # Errors
    /// If the rank is reserved for a source that may continue.
    pub fn check_turn(&self, rank: DpRank) -> Result<(), HubError> {
        self.hub.sources.lock().check_turn(self.key, rank)
    }

    /// Takes events of one rank, in order. Without batching, they are in the journal on return.
    ///
    /// # Errors
    /// If the source was closed, an event has too many blocks, there are too many ranks, or the numbers of the agent's
    /// stream are used up.
    pub fn take(&self, rank: DpRank, events: Vec<KvEvent>) -> Result<Taken, HubError> {
        self.take_from(rank, events, None)
    }

    /// Like [`take`](Self::take), for a source on disk, with its position after these events.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn take_at(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        position: impl Into<SourcePosition>,
    ) -> Result<Taken, HubError> {
        self.take_from(rank, events, Some(&position.into()))
    }

    /// Publishes events of one rank, as [`take`](Self::take). `position` is the source's position to write to disk. The
    /// first position proves that the engine survived, which settles the incarnation.
    fn take_from(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        position: Option<&SourcePosition>,
    ) -> Result<Taken, HubError> {
        let (hub, mut sources) = (&self.hub, self.hub.sources.lock());
        let is_cleared = events.contains(&KvEvent::Cleared);
        if position.is_some() && sources.prove_survival(self.key) {
            hub.feed.settle(Verdict::Continued);
        }
        let outcome = sources.apply_events(self.key, rank, events, position)?;
        let changes = &outcome.holdings[..];
        let holdings = [HoldingsChange { source: &self.name, rank, changes }];
        let changes = position.map_or(&[][..], |at| &at.names);
        let names = NamesChange { source: &self.name, changes };
        let change = DiskChange { position: sources.change(self.key), holdings: &holdings, names };
        // The sources' lock is held, which preserves their order.
        let sequence = hub.publish([(rank, outcome.events)], change)?;
        if outcome.refused > 0 || is_cleared {
            hub.feed.set_state(sources.feed_state());
        }
        Ok(Taken { id: outcome.id, sequence, refused: outcome.refused })
    }

    /// Clears the source at all ranks, because its incarnation is over.
    pub fn clear(&self) {
        self.clear_ranks(true);
    }

    /// Clears the source at all ranks, because events of its incarnation were lost permanently.
    pub fn lose(&self) {
        self.clear_ranks(false);
    }

    fn clear_ranks(&self, is_over: bool) {
        let mut sources = self.hub.sources.lock();
        if let Ok(gone) = sources.clear_source(self.key, is_over) {
            self.hub.release(gone, sources.change(self.key));
            self.hub.feed.set_state(sources.feed_state());
        }
    }

    /// Closes the source and clears its holdings. Later calls on this inlet are refused.
    pub fn close(&self) {
        let mut sources = self.hub.sources.lock();
        // Closing twice has no effect.
        if let Ok(gone) = sources.close(self.key) {
            self.hub.release(gone, SourceChange::Forget(&self.name));
            self.hub.feed.set_state(sources.feed_state());
        }
    }

    /// Changes how repeated stores are counted. The source must hold no blocks.
    ///
    /// # Errors
    /// If the source was closed, or passes unchanged and this is not the agent's copy mode.
    pub fn set_copy_mode(&self, copy_mode: CopyMode) -> Result<(), HubError> {
        self.hub.sources.lock().set_copy_mode(self.key, copy_mode)
    }

    /// Updates the counts of events that the hub did not receive. Logs a new problem, and marks the source as partial.
    /// Has no effect once the source is closed.
    pub fn count(&self, change: impl FnOnce(&mut SourceCounts)) {
        let (mut sources, block_size) = (self.hub.sources.lock(), self.block_size());
        let known = sources.lacking(self.key, block_size).is_some();
        if let Ok(counts) = sources.counts(self.key) {
            let before = counts.not_taken();
            let doubtful_before = counts.doubtful;
            change(counts);
            let flaws = Flaws {
                has_lost: counts.doubtful > doubtful_before,
                lacks_blocks: counts.not_taken() > before,
            };
            if flaws == Flaws::default() {
                return;
            }
            if let Some(problem) = sources.lacking(self.key, block_size).filter(|_| !known) {
                tracing::warn!(source = self.name, problem, "blocks of a source are refused");
            }
            sources.add_flaws(self.key, flaws);
            self.hub.feed.set_state(sources.feed_state());
            self.hub.write(sources.change(self.key));
        }
    }

    /// Records a reason why the source is not exact. The source is partial, or in doubt, until a clear.
    pub fn note_reason(&self, seen: &StateReason) {
        self.hub.sources.lock().note_reason(self.key, seen.clone());
        self.count(|counts| match seen.reason.direction() {
            Direction::MayBeHigh => counts.doubtful += seen.count,
            Direction::MayBeLow => counts.inexact += seen.count,
        });
        self.hub.feed.set_state(self.hub.sources.lock().feed_state());
    }

    /// Counts operations that were refused with an error.
    pub fn count_refused(&self, operations: u64, error: &HubError) {
        let is_others = matches!(error, HubError::RankTaken { .. } | HubError::RankReserved { .. });
        self.count(|counts| {
            let count = if is_others { &mut counts.misplaced } else { &mut counts.refused };
            *count += operations;
        });
    }

    /// Sets the status of the source, and logs a change of its state. A confirmed state proves that the engine
    /// survived.
    pub fn show(&self, status: SourceStatus<Instant>) {
        let mut sources = self.hub.sources.lock();
        // In the states exact and gap, the applied cursor was compared with the engine's own.
        let is_confirmed =
            status.connected && matches!(status.state, SourceState::Exact | SourceState::Gap);
        let status = SourceStatus { state: sources.state(self.key, status.state), ..status };
        if let Ok(shown) = sources.status(self.key) {
            shown.send_if_modified(|before| {
                let changed = *before != status;
                let state = status.state;
                let connected = status.connected;
                if (before.state, before.connected) != (state, connected) {
                    tracing::info!(source = self.name, %state, connected, "source state");
                }
                *before = status;
                changed
            });
            self.hub.feed.set_state(sources.feed_state());
        }
        if is_confirmed && sources.prove_survival(self.key) {
            self.hub.feed.settle(Verdict::Continued);
        }
    }
}
