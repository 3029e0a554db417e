//! Makes room when the byte budget is used up.

use super::{Pace, Partitions, STEP_OPERATIONS_MAX, Shard, budget::Excess};
use kvasir_index::Shed;
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::time::Instant;

/// Holds in a row that find nothing to shed before it is left for the next time.
const IDLE_HOLDS_MAX: usize = 16;

/// Holds that shed elsewhere for each that writes, as long as too much is allocated and not used:
/// memory comes back only once a shard has lost much of what it had, which must not take its time
/// all at once.
const ALLOCATION_HOLDS_MAX: usize = 2;

/// Share of its size by which a shard may have changed before all are compared again.
const CHANGED_FRACTION: usize = 8;

/// Sheds for one writer thread, in holds of its own between those that write, whichever thread
/// writes the shard that gives way.
#[derive(Debug)]
pub struct Relief {
    partitions: Arc<Partitions>,
    pace: Pace,
    /// The shard that used most when that was last looked for, and how many bytes: there may be
    /// many to compare.
    largest: Option<(Weak<Shard>, usize)>,
}

impl Relief {
    /// Nothing is shed yet.
    #[must_use]
    pub fn new(partitions: Arc<Partitions>) -> Self {
        Self { partitions, pace: Pace::default(), largest: None }
    }

    /// Before more is written into a shard: sheds until the budget has room for a hold, or there is
    /// nothing left to shed. Returns what was shed; `held` receives how long each lock was held.
    ///
    /// The shard that uses most gives way. Where only free places are too many, it sheds a little at a
    /// time, and a shard that might grow makes free places of its own. (Were it the shard with most
    /// free places, it would have more and more of them, until it held nothing.)
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
            let (shed, time) = self.hold(&shard);
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

    /// The shard that uses most, of those that have something to shed.
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

    /// One hold of a shard's lock: as much as one that writes, and cut short by readers like one.
    fn hold(&mut self, shard: &Shard) -> (Shed, Duration) {
        let pace = &mut self.pace;
        shard.write(|index| {
            let begin = Instant::now();
            let mut all = Shed::default();
            pace.begin();
            loop {
                let step = index.shed(pace.step());
                all.pairs += step.pairs;
                all.parked += step.parked;
                // Looking for something in vain takes about as long as a step that sheds.
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
