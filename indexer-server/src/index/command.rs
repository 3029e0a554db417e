use super::{
    IndexMetrics, Shard,
    metrics::{TOO_MANY_RANKS, UNKNOWN_SOURCE},
};
use kvasir_index::{Index, IndexError, SourceId, SourceStatus};
use kvasir_proto::types::{BlockCounts, BlockOutcome, DpRank, KvEvent};
use std::{mem, sync::Arc, vec};
use tokio::{sync::oneshot, time::Instant};

/// Most block operations under one hold of a shard's lock: about half a millisecond.
pub const HOLD_OPERATIONS_MAX: usize = 1_024;

/// Something to write into one shard.
pub(super) struct Command {
    pub(super) shard: Arc<Shard>,
    pub(super) work: Work,
    pub(super) queued_at: Instant,
}

/// A short change, all of it under one hold.
pub(super) type Brief = Box<dyn FnOnce(&mut Index) + Send>;

pub(super) enum Work {
    Brief(Option<Brief>),
    Apply(Apply),
    Sweep(Sweep),
}

impl Work {
    /// Does as much as the budget of block operations allows; true once all is done.
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
        }
    }

    /// Counts and answers, outside the lock. Whoever asked may be gone.
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
                    tracing::error!(%error, "sweep refused by the index");
                }
                let _asker_gone = sweep.reply.map(|reply| reply.send(sweep.removed));
            }
        }
    }
}

const fn refusal_reason(error: &IndexError) -> &'static str {
    match error {
        IndexError::TooMany { .. } => TOO_MANY_RANKS,
        IndexError::UnknownWorker { .. }
        | IndexError::UnknownSource { .. }
        | IndexError::DuplicateSource { .. }
        | IndexError::NotCleared { .. }
        | IndexError::DumpAborted { .. } => UNKNOWN_SOURCE,
    }
}

/// What became of one batch in the index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// Outcomes of its operations.
    pub counts: BlockCounts,
    /// Operations that the index refused as a whole, and why.
    pub refused: Option<(IndexError, u64)>,
}

/// The events of one batch, then the status of their source.
pub(super) struct Apply {
    source: SourceId,
    rank: DpRank,
    events: vec::IntoIter<KvEvent>,
    /// Blocks that the clear under way has dropped so far.
    cleared: u64,
    status: SourceStatus,
    done: Applied,
    reply: Option<oneshot::Sender<Applied>>,
}

impl Apply {
    pub(super) fn new(
        (source, rank): (SourceId, DpRank),
        events: Vec<KvEvent>,
        status: SourceStatus,
        reply: Option<oneshot::Sender<Applied>>,
    ) -> Self {
        let events = split_long(events).into_iter();
        Self { source, rank, events, cleared: 0, status, done: Applied::default(), reply }
    }

    fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        let left = self.events.len();
        let done = self.advance(index, budget);
        if done {
            index.end_change(self.source);
            index.set_status(self.source, self.status.clone());
        } else if self.events.len() < left || self.cleared > 0 {
            // Readers get in between: what they see is neither the old state nor the new one.
            index.begin_change(self.source);
        }
        done
    }

    fn advance(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        while let Some(event) = self.events.as_slice().first() {
            let operations = event.operations();
            if operations > *budget && *budget < HOLD_OPERATIONS_MAX {
                return false;
            }
            let outcome = match event {
                KvEvent::Cleared => match self.clear(index, *budget) {
                    Ok(None) => return false,
                    Ok(Some(counts)) => Ok(counts),
                    Err(error) => Err(error),
                },
                KvEvent::Stored { .. } | KvEvent::StoredNames { .. } | KvEvent::Removed { .. } => {
                    index.apply(self.source, self.rank, event)
                }
            };
            match outcome {
                Ok(counts) => self.done.counts.merge(counts),
                Err(error) => {
                    let refused = self.done.refused.get_or_insert((error, 0));
                    refused.1 += operations as u64;
                }
            }
            *budget = budget.saturating_sub(operations.max(1));
            self.events.next();
        }
        true
    }

    /// A step of a clear; its counts once it is done.
    fn clear(
        &mut self,
        index: &mut Index,
        budget: usize,
    ) -> Result<Option<BlockCounts>, IndexError> {
        let step = index.clear_source(self.source, Some(self.rank), budget.max(1))?;
        self.cleared += step.removed;
        Ok(step.done.then(|| clear_counts(mem::take(&mut self.cleared))))
    }
}

/// A clear is one operation, however many steps it takes.
fn clear_counts(removed: u64) -> BlockCounts {
    let mut counts = BlockCounts::default();
    counts.add(if removed > 0 { BlockOutcome::Applied } else { BlockOutcome::Noop });
    counts
}

/// Cuts events that are longer than a hold; each piece continues at the last block of the piece
/// before it.
fn split_long(events: Vec<KvEvent>) -> Vec<KvEvent> {
    if events.iter().all(|event| event.operations() <= HOLD_OPERATIONS_MAX) {
        return events;
    }
    let mut pieces = Vec::with_capacity(events.len() + 1);
    for event in events {
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let mut parent = parent;
                for piece in blocks.chunks(HOLD_OPERATIONS_MAX) {
                    pieces.push(KvEvent::Stored { parent, tier, blocks: piece.to_vec() });
                    parent = piece.last().map(|block| block.name);
                }
            }
            KvEvent::StoredNames { tier, names } => {
                let parts = names.chunks(HOLD_OPERATIONS_MAX);
                pieces
                    .extend(parts.map(|part| KvEvent::StoredNames { tier, names: part.to_vec() }));
            }
            KvEvent::Removed { tier, names } => {
                let parts = names.chunks(HOLD_OPERATIONS_MAX);
                pieces.extend(parts.map(|part| KvEvent::Removed { tier, names: part.to_vec() }));
            }
            KvEvent::Cleared => pieces.push(KvEvent::Cleared),
        }
    }
    pieces
}

/// What a sweep drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SweepKind {
    /// All that the source stored.
    All,
    /// What is still doubtful.
    Suspects,
    /// All that the source stored, then the source itself.
    Source,
}

/// Drops much at once, in steps.
pub(super) struct Sweep {
    pub(super) source: SourceId,
    pub(super) kind: SweepKind,
    pub(super) removed: u64,
    pub(super) error: Option<IndexError>,
    pub(super) reply: Option<oneshot::Sender<u64>>,
}

impl Sweep {
    fn step(&mut self, index: &mut Index, budget: &mut usize) -> bool {
        let done = self.sweep(index, budget).unwrap_or_else(|error| {
            self.error = Some(error);
            true
        });
        if done {
            index.end_change(self.source);
        } else {
            index.begin_change(self.source);
        }
        done
    }

    fn sweep(&mut self, index: &mut Index, budget: &mut usize) -> Result<bool, IndexError> {
        let step = match self.kind {
            SweepKind::Suspects => index.drop_suspects(self.source, *budget)?,
            SweepKind::All | SweepKind::Source => index.clear_source(self.source, None, *budget)?,
        };
        self.removed += step.removed;
        let cost = usize::try_from(step.removed).unwrap_or(usize::MAX).max(1);
        *budget = budget.saturating_sub(cost);
        if step.done && self.kind == SweepKind::Source {
            index.remove_source(self.source)?;
        }
        Ok(step.done)
    }
}

#[cfg(test)]
#[path = "command_test.rs"]
mod tests;
