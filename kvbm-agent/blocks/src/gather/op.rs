use crate::identity::SlotId;

/// The position at which an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPlace {
    /// The tensor-parallel rank.
    pub rank: u32,
    /// The block of the first byte. The operation may continue in the next blocks.
    pub block: SlotId,
    /// The allocation of the rank's set that contains all bytes.
    pub allocation: u32,
    /// Bytes from the start of the allocation.
    pub offset: u64,
}

impl CopyPlace {
    /// Whether `next` begins exactly `bytes` bytes after this position.
    fn is_before(&self, bytes: u64, next: &Self) -> bool {
        let is_same = self.rank == next.rank && self.allocation == next.allocation;
        is_same && self.offset.checked_add(bytes) == Some(next.offset)
    }

    /// The position `bytes` bytes further on.
    pub(super) const fn after(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
}

/// One copy of contiguous bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// Position to read from.
    pub source: CopyPlace,
    /// Position to write to.
    pub destination: CopyPlace,
    /// Length in bytes, at least one.
    pub bytes: u64,
}

impl CopyOp {
    /// Whether `next` continues this one on both sides.
    pub(super) fn is_before(&self, next: &Self) -> bool {
        self.source.is_before(self.bytes, &next.source)
            && self.destination.is_before(self.bytes, &next.destination)
    }
}

/// Limits of one plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyLimits {
    /// Maximum ranges before adjacent ones are merged; bounds the planning time.
    pub pieces_max: u64,
    /// Maximum operations; bounds the memory of a plan, 64 bytes each.
    pub ops_max: usize,
    /// Maximum bytes of an operation; longer ones are split.
    pub op_bytes_max: u64,
}

impl CopyLimits {
    /// A plan takes at most about 100 ms and 16 MiB. Split larger prompts into several plans.
    pub const DEFAULT: Self =
        Self { pieces_max: 1 << 22, ops_max: 1 << 18, op_bytes_max: 16 << 20 };
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
