use super::BlockSetError;
use crate::layout::LayoutError;

/// Most ranks of a tensor-parallel group.
pub const TP_SIZE_MAX: u32 = 1_024;

/// Which part of each token a set holds: ranks of a tensor-parallel group split the heads among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorParallel {
    /// The rank that the set belongs to, below `size`.
    pub rank: u32,
    /// Ranks of the group: 1 to [`TP_SIZE_MAX`].
    pub size: u32,
    /// Consecutive ranks that hold the same heads; divides `size`. 1 where each rank has its own heads, `size` where all
    /// hold everything (MLA), between where there are fewer heads than ranks (GQA).
    pub replicas: u32,
}

impl TensorParallel {
    /// One rank that holds everything.
    pub const SINGLE: Self = Self { rank: 0, size: 1, replicas: 1 };

    /// Checks every field.
    ///
    /// # Errors
    /// [`BlockSetError`] names the first field that is 0, too large, or divides nothing.
    pub const fn validate(&self) -> Result<(), BlockSetError> {
        let Self { rank, size, replicas } = *self;
        if size == 0 {
            return Err(BlockSetError::Layout(LayoutError::Zero { field: "tp_size" }));
        }
        if size > TP_SIZE_MAX {
            let value = size as u64;
            let max = TP_SIZE_MAX as u64;
            return Err(BlockSetError::Layout(LayoutError::TooLarge {
                field: "tp_size",
                value,
                max,
            }));
        }
        if rank >= size {
            let value = rank as u64;
            let max = size as u64 - 1;
            return Err(BlockSetError::Layout(LayoutError::TooLarge {
                field: "tp_rank",
                value,
                max,
            }));
        }
        if replicas == 0 {
            return Err(BlockSetError::Layout(LayoutError::Zero { field: "tp_replicas" }));
        }
        if !size.is_multiple_of(replicas) {
            return Err(BlockSetError::Replicas { replicas, size });
        }
        Ok(())
    }

    /// Parts that the heads are split into: `size / replicas`. A checked value has no 0 in it.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.size.checked_div(self.replicas).unwrap_or(1)
    }

    /// The part that this rank holds, below [`TensorParallel::shards`].
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.rank.checked_div(self.replicas).unwrap_or(0)
    }
}
