use super::BlockSetError;
use crate::layout::LayoutError;

/// Maximum ranks of a tensor-parallel group.
pub const TP_SIZE_MAX: u32 = 1_024;

/// The part of each token in a set: the ranks of a tensor-parallel group split the heads among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorParallel {
    /// The rank of the set, less than `size`.
    pub rank: u32,
    /// Number of ranks in the group: 1 to [`TP_SIZE_MAX`].
    pub size: u32,
    /// Number of consecutive ranks with the same heads; divides `size`. It is 1 if each rank has its own heads, and
    /// `size` if all ranks have all heads (MLA). It is in between if there are fewer heads than ranks (GQA).
    pub replicas: u32,
}

impl TensorParallel {
    /// A single rank with all heads.
    pub const SINGLE: Self = Self { rank: 0, size: 1, replicas: 1 };

    /// Checks every field.
    ///
    /// # Errors
    /// [`BlockSetError`] names the first field that is 0, too large, or not a divisor.
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

    /// Number of parts that the heads are split into: `size / replicas`. A checked value never has a 0.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.size.checked_div(self.replicas).unwrap_or(1)
    }

    /// Number of the rank's part, less than [`TensorParallel::shards`].
    #[must_use]
    pub fn shard(&self) -> u32 {
        self.rank.checked_div(self.replicas).unwrap_or(0)
    }
}
