//! Makes room when the byte budget is used up.

use super::{
    Pace, Partitions, STEP_OPERATIONS_MAX, Shard,
    budget::{Bytes, Excess},
};
use kvasir_index::Shed;
use std::sync::{Arc, Weak};

/// Holds in a row that find nothing to shed before it is left for the next time.
const IDLE_HOLDS_MAX: usize = 16;

/// A shard that was the largest, and how large.
#[derive(Debug)]
struct Largest {
    shard: Weak<Shard>,
    size: usize,
}

/// Sheds for one writer thread, in holds of its own between those that write, whichever thread
/// writes the shard that gives way.
#[derive(Debug)]
pub struct Relief {
    partitions: Arc<Partitions>,
    pace: Pace,
    /// By bytes in use.
    in_use: Option<Largest>,
    /// By bytes allocated.
    allocated: Option<Largest>,
}

impl Relief {
    /// Nothing is shed yet.
    #[must_use]
    pub fn new(partitions: Arc<Partitions>) -> Self {
        Self { partitions, pace: Pace::default(), in_use: None, allocated: None }
    }

    /// Before more is written into a shard: sheds until the budget has room for a hold, or there is
    /// nothing left to shed. Returns what was shed.
    ///
    /// What is in use too much goes at once, from the shard that uses most. Where only free places
    /// are too many, a shard that might grow makes free places of its own, and the shard that has
    /// most allocated sheds one hold at a time, until its memory comes back.
    pub fn make_room(&mut self, written: &Arc<Shard>) -> Shed {
        let mut all = Shed::default();
        let mut idle = 0;
        while idle < IDLE_HOLDS_MAX {
            let excess = self.partitions.budget().excess(written.bytes());
            let (shard, goes_on) = match excess {
                None => break,
                Some(Excess::Use) => (self.using_most(), true),
                Some(Excess::Allocation { growing: true }) if written.is_sheddable() => {
                    (Some(Arc::clone(written)), true)
                }
                Some(Excess::Allocation { .. }) => (self.having_most(), false),
            };
            let Some(shard) = shard else { break };
            let shed = self.hold(&shard);
            self.partitions.budget().count_shed(shed);
            if shed == Shed::default() {
                idle += 1;
            } else {
                all = Shed { pairs: all.pairs + shed.pairs, parked: all.parked + shed.parked };
                idle = 0;
            }
            if !goes_on {
                break;
            }
        }
        all
    }

    fn using_most(&mut self) -> Option<Arc<Shard>> {
        largest(&self.partitions, &mut self.in_use, Bytes::in_use)
    }

    fn having_most(&mut self) -> Option<Arc<Shard>> {
        largest(&self.partitions, &mut self.allocated, |bytes| bytes.allocated)
    }

    /// One hold of a shard's lock: as much as one that writes, and cut short by readers like one.
    fn hold(&mut self, shard: &Shard) -> Shed {
        let pace = &mut self.pace;
        shard.write(|index| {
            let mut all = Shed::default();
            pace.begin();
            loop {
                let step = index.shed(pace.step());
                all.pairs += step.pairs;
                all.parked += step.parked;
                // Looking for something in vain takes about as long as a step that sheds.
                let found = usize::try_from(step.pairs + step.parked).unwrap_or(usize::MAX);
                let done = if found == 0 { STEP_OPERATIONS_MAX } else { found };
                if !index.is_sheddable() || !pace.go_on(done, shard.is_awaited()) {
                    return all;
                }
            }
        })
    }
}

/// The shard of which there is something to shed and that is the largest by some measure. One that was
/// the largest is taken again until it has lost an eighth: there may be many to compare.
fn largest(
    partitions: &Partitions,
    before: &mut Option<Largest>,
    measure: impl Fn(Bytes) -> usize,
) -> Option<Arc<Shard>> {
    let size_of = |shard: &Shard| measure(shard.bytes());
    let still = before.as_ref().and_then(|Largest { shard, size }| {
        let shard = shard.upgrade()?;
        (shard.is_sheddable() && size_of(&shard) > size - size / 8).then_some(shard)
    });
    still.or_else(|| {
        let shard = partitions.largest(size_of)?;
        let size = size_of(&shard);
        *before = Some(Largest { shard: Arc::downgrade(&shard), size });
        Some(shard)
    })
}
