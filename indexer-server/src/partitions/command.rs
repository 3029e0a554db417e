use super::image::{Cutting, Restoring};
use super::metrics::{NO_ROOM_FOR_RANKS, TOO_MANY_RANKS, UNKNOWN_SOURCE};
use super::{IndexMetrics, Shard};
use kvasir_index::{Index, IndexError, SourceId};
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, DpRank, KvEvent, NameChange, SourceStatus,
};
use std::borrow::Cow;
use std::sync::Arc;
use std::{mem, vec};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// One piece of work for the writer of one shard.
pub(super) struct Command {
    pub(super) shard: Arc<Shard>,
    pub(super) work: Work,
    pub(super) queued_at: Instant,
}

/// A short change, made within one critical section.
pub(super) type Brief = Box<dyn FnOnce(&mut Index) + Send>;

pub(super) enum Work {
    Brief(Option<Brief>),
    Apply(Apply),
    Sweep(Sweep),
    Cut(Cutting),
    Restore(Box<Restoring>),
}

impl Work {
    /// Runs up to `budget` block operations, at least one, and subtracts them from `budget`. Returns true once the work
    /// is complete.
    pub(super) fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        match self {
            Self::Brief(change) => {
                *budget = budget.saturating_sub(1);
                if let Some(change) = change.take() {
                    change(index);
                }
                true
            }
            Self::Apply(apply) => apply.step(index, budget),
            Self::Sweep(sweep) => sweep.step(index, budget),
            Self::Cut(cutting) => cutting.step(index, budget),
            Self::Restore(restoring) => restoring.step(index, budget),
        }
    }

    /// Flags the source of unfinished work. Readers that enter between two slices see neither the old nor the new
    /// state.
    pub(super) fn pause(&self, index: &mut Index) {
        match self {
            Self::Apply(apply) if apply.begun => index.begin_change(apply.source),
            Self::Sweep(sweep) if sweep.begun => index.begin_change(sweep.source),
            // A cut changes nothing, and sources that are being restored already count as catching up.
            Self::Brief(_) | Self::Apply(_) | Self::Sweep(_) | Self::Cut(_) | Self::Restore(_) => {}
        }
    }

    /// Counts the outcome and sends it to the requester, outside the lock. Ignores a requester that has left.
    pub(super) fn finish(self, metrics: &IndexMetrics) {
        match self {
            Self::Brief(_) => {}
            Self::Apply(apply) => {
                metrics.count(apply.done.counts);
                if let Some((error, operations)) = &apply.done.refused {
                    metrics.add("rejected", refusal_reason(error), *operations);
                    tracing::debug!(%error, operations, "events refused by the index");
                }
                if let Some(reply) = apply.reply {
                    let _asker_gone = reply.send(apply.done);
                }
            }
            Self::Sweep(sweep) => {
                if let Some(error) = &sweep.error {
                    tracing::error!(%error, "dropping a source's blocks failed");
                }
                let _asker_gone = sweep.reply.map(|reply| reply.send(sweep.removed));
            }
            Self::Cut(cutting) => cutting.finish(),
            Self::Restore(restoring) => restoring.finish(),
        }
    }
}

/// Returns the error's label value in the metrics.
const fn refusal_reason(error: &IndexError) -> &'static str {
    match error {
        IndexError::TooMany { .. } => TOO_MANY_RANKS,
        IndexError::NoRoom { .. } => NO_ROOM_FOR_RANKS,
        IndexError::UnknownWorker { .. }
        | IndexError::UnknownRank { .. }
        | IndexError::UnknownSource { .. }
        | IndexError::DuplicateSource { .. }
        | IndexError::NotCleared { .. }
        | IndexError::DumpAborted { .. } => UNKNOWN_SOURCE,
    }
}

/// Outcome of one batch in the index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Outcomes of the batch's operations.
    pub counts: BlockCounts,
    /// Number of operations that the index refused as a whole, and the reason.
    pub refused: Option<(IndexError, u64)>,
}

/// Events of one batch of a source, or of several batches.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IndexBatch {
    /// The rank that caches the blocks.
    pub rank: DpRank,
    /// Announced events of this rank, in order.
    pub events: Vec<KvEvent>,
    /// New meanings of block names, in order.
    pub names: Vec<NameChange>,
}

/// Applies the events of one batch, then sets the status of their source.
pub(super) struct Apply {
    source: SourceId,
    rank: DpRank,
    events: vec::IntoIter<KvEvent>,
    names: vec::IntoIter<NameChange>,
    /// Completed operations of the first remaining event.
    taken: usize,
    /// Blocks that the current clear has dropped so far.
    cleared: u64,
    /// Whether any operation was applied.
    begun: bool,
    status: SourceStatus,
    done: Applied,
    reply: Option<oneshot::Sender<Applied>>,
}

impl Apply {
    /// Creates the command that applies a batch of a source. `reply` receives the result once the batch is applied.
    pub(super) fn new(
        source: SourceId,
        IndexBatch { rank, events, names }: IndexBatch,
        status: SourceStatus,
        reply: Option<oneshot::Sender<Applied>>,
    ) -> Self {
        Self {
            source,
            rank,
            events: events.into_iter(),
            names: names.into_iter(),
            taken: 0,
            cleared: 0,
            begun: false,
            status,
            done: Applied::default(),
            reply,
        }
    }

    /// Applies the events from the first that is not applied, event by event and in slices, then the changes of
    /// names. Returns true after the last one, when the source's new status is set.
    fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        // A batch without events names its rank, too. If the index refuses the rank, it refuses each event.
        let _refused = index.name_rank(self.source, self.rank);
        while let Some(event) = self.events.as_slice().first() {
            if *budget == 0 {
                return false;
            }
            self.begun = true;
            debug_assert!(
                self.taken == 0 || self.taken < event.operations(),
                "done events are gone"
            );
            let operations = event.operations() - self.taken;
            let now = operations.min(*budget);
            let outcome = match event {
                KvEvent::Cleared | KvEvent::ClearedTier(_) => match self.clear(index, *budget) {
                    Ok(None) => {
                        *budget = 0;
                        return false;
                    }
                    Ok(Some(counts)) => Ok(counts),
                    Err(error) => Err(error),
                },
                KvEvent::Stored { .. }
                | KvEvent::StoredNames { .. }
                | KvEvent::Removed { .. }
                | KvEvent::Gone { .. } => {
                    index.apply(self.source, self.rank, &slice_event(event, self.taken, now))
                }
            };
            match outcome {
                Ok(counts) => self.done.counts.merge(counts),
                Err(error) => {
                    let refused = self.done.refused.get_or_insert((error, 0));
                    refused.1 += now as u64;
                }
            }
            *budget = budget.saturating_sub(now.max(1));
            self.taken += now;
            if now == operations {
                self.events.next();
                self.taken = 0;
            }
        }
        while !self.names.as_slice().is_empty() {
            if *budget == 0 {
                return false;
            }
            self.begun = true;
            let part: Vec<NameChange> = self.names.by_ref().take(*budget).collect();
            index.change_meanings(self.source, &part);
            *budget -= part.len();
        }
        index.end_change(self.source);
        index.set_status(self.source, self.status.clone());
        true
    }

    /// Runs one slice of the first event, which clears a tier or the rank. Returns the counts once the clear is
    /// complete, else `None`.
    fn clear(
        &mut self,
        index: &mut Index,
        budget: usize,
    ) -> Result<Option<BlockCounts>, IndexError> {
        let step = match self.events.as_slice().first() {
            Some(&KvEvent::ClearedTier(tier)) => {
                index.clear_tier(self.source, self.rank, tier, budget)?
            }
            _ => index.clear_source(self.source, Some(self.rank), budget)?,
        };
        self.cleared += step.removed;
        Ok(step.done.then(|| clear_counts(mem::take(&mut self.cleared))))
    }
}

/// Returns operations `from` to `from + count` of an event, as an event. The slice's blocks continue after the last
/// block of the previous slice.
fn slice_event(event: &KvEvent, from: usize, count: usize) -> Cow<'_, KvEvent> {
    debug_assert!(from + count <= event.operations(), "a piece lies within its event");
    if from == 0 && count == event.operations() {
        return Cow::Borrowed(event);
    }
    let part = |names: &[BlockName]| names.iter().skip(from).take(count).copied().collect();
    Cow::Owned(match event {
        KvEvent::Stored { parent, tier, blocks } => {
            let before = from.checked_sub(1).and_then(|last| blocks.get(last));
            let blocks = blocks.iter().skip(from).take(count).copied().collect();
            KvEvent::Stored {
                parent: before.map_or(*parent, |at| Some(at.name)),
                tier: *tier,
                blocks,
            }
        }
        KvEvent::StoredNames { tier, names } => {
            KvEvent::StoredNames { tier: *tier, names: part(names) }
        }
        KvEvent::Removed { tier, names } => KvEvent::Removed { tier: *tier, names: part(names) },
        KvEvent::Gone { tier, names } => KvEvent::Gone { tier: *tier, names: part(names) },
        KvEvent::Cleared => KvEvent::Cleared,
        KvEvent::ClearedTier(tier) => KvEvent::ClearedTier(*tier),
    })
}

/// Counts of a clear: one operation, in any number of slices.
fn clear_counts(removed: u64) -> BlockCounts {
    let mut counts = BlockCounts::default();
    counts.add(if removed > 0 { BlockOutcome::Applied } else { BlockOutcome::Noop });
    counts
}

/// Which blocks a sweep drops.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SweepKind {
    /// All blocks that the source stored. Then sets this status.
    All(SourceStatus),
    /// Blocks that are still suspect.
    Suspects,
    /// All blocks that the source stored, then the source itself.
    Source,
}

/// Drops many blocks, in slices.
pub(super) struct Sweep {
    pub(super) source: SourceId,
    pub(super) kind: SweepKind,
    pub(super) removed: u64,
    /// Whether any block was dropped.
    pub(super) begun: bool,
    pub(super) error: Option<IndexError>,
    pub(super) reply: Option<oneshot::Sender<u64>>,
}

impl Sweep {
    /// Executes slices until the budget is used up or the sweep is complete.
    fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        let done = self.sweep(index, budget).unwrap_or_else(|error| {
            self.error = Some(error);
            true
        });
        self.begun = true;
        if done {
            index.end_change(self.source);
        }
        done
    }

    /// Executes one slice. After the last slice, removes the source or sets its new status. Returns true once the sweep
    /// is complete.
    fn sweep(&mut self, index: &mut Index, budget: &mut usize) -> Result<bool, IndexError> {
        let step = match &self.kind {
            SweepKind::Suspects => index.drop_suspects(self.source, *budget)?,
            SweepKind::All(_) | SweepKind::Source => {
                index.clear_source(self.source, None, *budget)?
            }
        };
        self.removed += step.removed;
        let cost = usize::try_from(step.removed).unwrap_or(usize::MAX).max(1);
        *budget = budget.saturating_sub(cost);
        match &self.kind {
            SweepKind::Source if step.done => index.remove_source(self.source)?,
            SweepKind::All(then) if step.done => {
                index.clear_meanings(self.source);
                index.set_status(self.source, then.clone());
            }
            SweepKind::All(_) | SweepKind::Suspects | SweepKind::Source => {}
        }
        Ok(step.done)
    }
}

#[cfg(test)]
#[path = "command_test.rs"]
mod tests;
