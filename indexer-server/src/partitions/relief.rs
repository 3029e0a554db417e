//! Evicts (sheds) blocks when the byte budget is used up.

use super::budget::Excess;
use super::{Pace, Partitions, STEP_OPERATIONS_MAX, Shard};
use kvasir_index::Shed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Consecutive critical sections without an eviction, after which the writer tries again only before its next write.
const IDLE_HOLDS_MAX: usize = 16;

/// Critical sections that evict from the largest shard, for each critical section that writes, while too much is
/// allocated but not used. A shard frees memory only after it has lost many blocks. The limit spreads this work over
/// time.
const ALLOCATION_HOLDS_MAX: usize = 2;

/// Largest change of the cached largest shard, as a fraction of its size, before all shards are compared again.
const CHANGED_FRACTION: usize = 8;

/// Evicts for one writer thread, in separate critical sections between the thread's writes. The evicted shard may
/// belong to any writer thread.
#[derive(Debug)]
pub struct Relief {
    partitions: Arc<Partitions>,
    pace: Pace,
    /// Cache: the shard with the largest use when it was last searched, and its bytes. Comparing all shards may be
    /// expensive.
    largest: Option<(Weak<Shard>, usize)>,
}

impl Relief {
    /// Starts without evictions.
    #[must_use]
    pub fn new(partitions: Arc<Partitions>) -> Self {
        Self { partitions, pace: Pace::default(), largest: None }
    }

    /// Evicts before more is written into a shard, until the budget has room for one critical section or the eviction
    /// finds no more blocks. Returns the evicted blocks; `held` receives how long each lock was held.
    ///
    /// Evicts from the shard with most bytes in use. If only allocated free space is over the limit, it evicts a little
    /// at a time, and a shard that might grow frees space of its own. (Eviction from the shard with most free space
    /// would increase this space more and more, until the shard was empty.)
    pub fn make_room(&mut self, written: &Arc<Shard>, mut held: impl FnMut(Duration)) -> Shed {
        let mut all = Shed::default();
        let mut idle = 0;
        let mut elsewhere = 0;
        while idle < IDLE_HOLDS_MAX {
            let shard = match self.partitions.budget().excess(written.bytes()) {
                None => break,
                Some(Excess::Use) => self.largest(),
                Some(Excess::Allocation { .. }) if elsewhere < ALLOCATION_HOLDS_MAX => {
                    elsewhere += 1;
                    self.largest()
                }
                Some(Excess::Allocation { growing: true }) if written.is_sheddable() => {
                    Some(Arc::clone(written))
                }
                Some(Excess::Allocation { .. }) => break,
            };
            let Some(shard) = shard else { break };
            let (shed, time) = self.evict_once(&shard);
            held(time);
            self.partitions.budget().count_shed(shed);
            if shed == Shed::default() {
                idle += 1;
            } else {
                all = Shed { pairs: all.pairs + shed.pairs, parked: all.parked + shed.parked };
                idle = 0;
            }
        }
        all
    }

    /// Returns the shard that uses most bytes among the shards with blocks to evict. Reuses the previous shard while
    /// its size is nearly unchanged.
    fn largest(&mut self) -> Option<Arc<Shard>> {
        if let Some((shard, size)) = &self.largest
            && let Some(shard) = shard.upgrade()
            && shard.is_sheddable()
            && shard.bytes().in_use().abs_diff(*size) <= size / CHANGED_FRACTION
        {
            return Some(shard);
        }
        let shard = self.partitions.largest()?;
        self.largest = Some((Arc::downgrade(&shard), shard.bytes().in_use()));
        Some(shard)
    }

    /// Evicts blocks of a shard in one critical section, which readers end early. Returns the evicted blocks and how
    /// long the lock was held.
    fn evict_once(&mut self, shard: &Shard) -> (Shed, Duration) {
        let pace = &mut self.pace;
        shard.write(|index| {
            let begin = Instant::now();
            let mut all = Shed::default();
            pace.begin();
            loop {
                let step = index.shed(pace.step());
                all.pairs += step.pairs;
                all.parked += step.parked;
                // A search without result takes about as long as a slice that evicts.
                let found = usize::try_from(step.pairs + step.parked).unwrap_or(usize::MAX);
                let done = if found == 0 { STEP_OPERATIONS_MAX } else { found };
                if !index.is_sheddable() || !pace.may_continue(done, shard.is_awaited()) {
                    return (all, begin.elapsed());
                }
            }
        })
    }
}

#[cfg(test)]
#[path = "relief_test.rs"]
mod tests;
