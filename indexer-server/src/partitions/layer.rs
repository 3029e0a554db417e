use crossbeam_utils::sync::ShardedLock;
use kvasir_index::{PlacedMatch, PlacedScratch, Placements};
use kvasir_proto::types::LocalHash;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use std::{fmt, thread};

/// Size of the speculative blocks of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpeculativeSize {
    /// (rank, block) pairs.
    pub blocks: usize,
    /// Bytes allocated.
    pub bytes: usize,
}

/// Speculative blocks of one partition, separate from its index and under their own lock.
#[derive(Default)]
pub(super) struct Layer {
    placements: ShardedLock<Placements>,
    /// Number of speculative blocks. While it is zero, queries do not lock the placements.
    blocks: AtomicUsize,
}

impl Layer {
    pub(super) fn blocks(&self) -> usize {
        self.blocks.load(Ordering::Acquire)
    }

    pub(super) fn size(&self) -> SpeculativeSize {
        self.with_placements(|at| SpeculativeSize { blocks: at.blocks(), bytes: at.bytes() })
    }

    pub(super) fn with_placements<R>(&self, read: impl FnOnce(&Placements) -> R) -> R {
        read(&self.placements.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes the placements. The change must be short.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut Placements) -> R) -> R {
        let mut placements = self.placements.write().unwrap_or_else(PoisonError::into_inner);
        debug_assert_eq!(placements.blocks(), self.blocks(), "only a change moves the number");
        let change_of = UnderChange { placements: &mut placements, blocks: &self.blocks };
        change(change_of.placements)
    }

    /// Finds the ranks that are expected to hold leading blocks of a prompt, with the number of blocks. Returns an
    /// empty slice if the layer has no blocks.
    pub(super) fn find<'a>(
        &self,
        locals: &[LocalHash],
        now: Duration,
        scratch: &'a mut PlacedScratch,
    ) -> &'a [PlacedMatch] {
        if self.blocks() == 0 {
            return &[];
        }
        self.with_placements(|placements| placements.find(locals, now, scratch));
        scratch.matches()
    }
}

/// Placements during a change. If the change panics, all placements are dropped: they are guesses, and an empty
/// structure is better than a broken one.
struct UnderChange<'a> {
    placements: &'a mut Placements,
    blocks: &'a AtomicUsize,
}

impl Drop for UnderChange<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            tracing::error!(
                "a change of placements failed: all placements of the partition are dropped"
            );
            *self.placements = Placements::default();
        }
        self.blocks.store(self.placements.blocks(), Ordering::Release);
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Layer({} blocks)", self.blocks())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{WorkerId, WorkerKey};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_change_that_fails_leaves_nothing_behind() {
        let layer = Layer::default();
        let worker = WorkerKey { worker: WorkerId::new("w").expect("a valid id"), rank: 0 };
        let record = |placements: &mut Placements| {
            let mut recording =
                placements.begin(worker.clone(), Duration::ZERO, Duration::from_secs(1));
            placements.record(&mut recording, &[LocalHash(1), LocalHash(2)])
        };
        layer.change(record).expect("nothing in between");
        assert_eq!(layer.blocks(), 2);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            layer.change(|placements| {
                placements.prune(1, 9);
                panic!("half-way");
            });
        }));
        assert!(failed.is_err());
        assert_eq!((layer.blocks(), layer.size()), (0, SpeculativeSize::default()));
        layer.change(record).expect("it goes on");
        let mut scratch = PlacedScratch::default();
        assert_eq!(layer.find(&[LocalHash(1)], Duration::ZERO, &mut scratch).len(), 1);
    }
}
