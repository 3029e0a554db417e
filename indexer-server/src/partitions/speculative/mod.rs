//! Speculative blocks of all partitions: one limit for all, changed by one task at a time.
//!
//! Recording, expiry and removal are serialised by a mutex. Therefore a long prompt is recorded in pieces without other
//! changes between them, and the limit on all partitions is exact. Readers do not wait for the mutex: a piece locks one
//! partition for at most [`HOLD_OPERATIONS_MAX`] blocks.

mod metrics;
#[cfg(test)]
#[path = "speculation_test.rs"]
mod tests;

pub use metrics::{SPECULATIVE_OUTCOMES, SpeculationMetrics};

use super::{HOLD_OPERATIONS_MAX, Partition, Partitions};
use kvasir_index::{Placements, Recorded, RecordingCut};
use kvasir_proto::types::{LocalHash, WorkerId, WorkerKey};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::yield_now;

/// Limits of the speculative blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpeculationConfig {
    /// Maximum (rank, block) pairs over all partitions. At least the maximum of one prompt.
    pub blocks_max: usize,
    /// Number of blocks that remain after pruning at the maximum.
    pub blocks_kept: usize,
}

/// Records and drops speculative blocks.
#[derive(Debug)]
pub struct Speculation {
    partitions: Arc<Partitions>,
    config: SpeculationConfig,
    /// Number of blocks in all partitions. The mutex serialises all changes.
    turn: Mutex<usize>,
    metrics: SpeculationMetrics,
}

/// A prompt to record, and its time to live.
#[derive(Debug, Clone)]
pub struct Speculative<'a> {
    /// The rank to which the prompt was sent.
    pub worker: WorkerKey,
    /// Blocks of the prompt, at most `QUERY_BLOCKS_MAX`.
    pub locals: &'a [LocalHash],
    /// Current time, since the origin.
    pub now: Duration,
    /// Time to live of the blocks.
    pub ttl: Duration,
}

/// Why a prompt was not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SpeculationError {
    /// The worker was removed meanwhile.
    #[error("the worker is gone")]
    Gone,
    /// A fault of the server: another change ran within the recording.
    #[error(transparent)]
    Cut(#[from] RecordingCut),
}

impl Speculation {
    /// Starts without speculative blocks.
    #[must_use]
    pub fn new(
        partitions: Arc<Partitions>,
        config: SpeculationConfig,
        metrics: SpeculationMetrics,
    ) -> Self {
        Self { partitions, config, turn: Mutex::new(0), metrics }
    }

    /// Counters of speculative blocks, by outcome.
    #[must_use]
    pub const fn metrics(&self) -> &SpeculationMetrics {
        &self.metrics
    }

    /// Records a prompt, in pieces. First prunes other placements if the blocks do not fit. `registered` reports
    /// whether the worker is still registered: a removal makes it false, then calls
    /// [`remove_worker`](Self::remove_worker).
    ///
    /// # Errors
    /// If the worker is gone.
    pub async fn record(
        &self,
        partition: &Partition,
        prompt: Speculative<'_>,
        registered: impl Fn() -> bool,
    ) -> Result<Recorded, SpeculationError> {
        let Speculative { worker, locals, now, ttl } = prompt;
        let mut blocks = self.turn.lock().await;
        if !registered() {
            return Err(SpeculationError::Gone);
        }
        self.make_room(&mut blocks, locals.len()).await;
        let layer = partition.speculative();
        let mut recording = layer.change(|placements| placements.begin(worker, now, ttl));
        let mut recorded = Recorded::default();
        for piece in locals.chunks(HOLD_OPERATIONS_MAX) {
            let step = layer.change(|placements| placements.record(&mut recording, piece))?;
            *blocks += step.added;
            self.metrics.add("recorded", step.added);
            self.metrics.add("refreshed", step.refreshed);
            recorded.added += step.added;
            recorded.refreshed += step.refreshed;
            yield_now().await;
        }
        Ok(recorded)
    }

    /// Prunes placements, to within one slice, if `more` blocks do not fit. The tenant with the most blocks loses the
    /// placements closest to expiry, so a tenant that fills the limit does not affect others.
    async fn make_room(&self, blocks: &mut usize, more: usize) {
        let SpeculationConfig { blocks_max, blocks_kept } = self.config;
        let room = blocks_max.saturating_sub(more);
        if *blocks <= room {
            return;
        }
        let target = blocks_kept.min(room);
        let partitions = self.partitions.list();
        // Count again, in case a change failed half-way.
        *blocks = partitions.iter().map(|partition| partition.speculative().blocks()).sum();
        while *blocks > target {
            let largest = of_largest_tenant(&partitions);
            let Some((partition, _)) = ends_first(&largest) else { break };
            let excess = *blocks - target;
            let pruned = partition.speculative().change(|placements| {
                let left = placements.blocks().saturating_sub(excess);
                placements.prune(left, HOLD_OPERATIONS_MAX)
            });
            *blocks -= pruned.blocks;
            self.metrics.add("pruned", pruned.blocks);
            yield_now().await;
        }
    }

    /// Drops the placements that have expired by `now` (since the origin). Returns immediately if no placement is
    /// stored.
    pub async fn expire(&self, now: Duration) {
        if *self.turn.lock().await == 0 {
            return;
        }
        let partitions = self.partitions.list();
        while let Some((partition, _)) = ends_first(&partitions).filter(|(_, end)| *end <= now) {
            self.step(partition, "expired", |placements| {
                placements.expire(now, HOLD_OPERATIONS_MAX)
            })
            .await;
        }
    }

    /// Drops the placements of a worker. A later worker of the same name starts without placements.
    pub async fn remove_worker(&self, partition: &Partition, worker: &WorkerId) {
        let turn = self.turn.lock().await;
        partition.speculative().change(|placements| placements.remove_worker(worker));
        drop(turn);
        let sweep = |placements: &mut Placements| placements.sweep(HOLD_OPERATIONS_MAX);
        while !self.step(partition, "removed", sweep).await {}
    }

    /// Drops one slice of blocks from a partition, and counts it under `outcome`. Returns true once all blocks are
    /// dropped.
    async fn step(
        &self,
        partition: &Partition,
        outcome: &'static str,
        drop_some: impl FnOnce(&mut Placements) -> kvasir_index::Dropped,
    ) -> bool {
        let mut blocks = self.turn.lock().await;
        let dropped = partition.speculative().change(drop_some);
        *blocks -= dropped.blocks;
        self.metrics.add(outcome, dropped.blocks);
        drop(blocks);
        yield_now().await;
        dropped.done
    }
}

/// Returns the partitions of the tenant with the most speculative blocks.
fn of_largest_tenant(partitions: &[Arc<Partition>]) -> Vec<Arc<Partition>> {
    let mut blocks: BTreeMap<&str, usize> = BTreeMap::new();
    for partition in partitions {
        *blocks.entry(partition.key().tenant()).or_default() += partition.speculative().blocks();
    }
    let largest = blocks.into_iter().max_by_key(|(_, blocks)| *blocks);
    let of_it =
        |at: &&Arc<Partition>| largest.is_some_and(|(tenant, _)| tenant == at.key().tenant());
    partitions.iter().filter(of_it).map(Arc::clone).collect()
}

/// The partition with the placement that expires first, and the time of this expiry.
fn ends_first(partitions: &[Arc<Partition>]) -> Option<(&Partition, Duration)> {
    let occupied = partitions.iter().filter(|partition| partition.speculative().blocks() > 0);
    let ends = occupied.filter_map(|partition| {
        let end = partition.speculative().with_placements(Placements::first_end)?;
        Some((&**partition, end))
    });
    ends.min_by_key(|(_, end)| *end)
}
