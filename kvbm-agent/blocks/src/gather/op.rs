use crate::identity::SlotId;

/// Where an operation reads or writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyPlace {
    /// The tensor-parallel rank.
    pub rank: u32,
    /// The block that the first byte belongs to. An operation may go on in the next blocks.
    pub block: SlotId,
    /// The allocation of the rank's set, in which all bytes lie.
    pub allocation: u32,
    /// Bytes from the start of the allocation.
    pub offset: u64,
}

impl CopyPlace {
    /// Whether `next` begins where `bytes` bytes from here end.
    fn is_before(&self, bytes: u64, next: &Self) -> bool {
        let is_same = self.rank == next.rank && self.allocation == next.allocation;
        is_same && self.offset.checked_add(bytes) == Some(next.offset)
    }

    /// The place `bytes` further on.
    pub(super) const fn after(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
}

/// One copy of contiguous bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyOp {
    /// Where bytes are read.
    pub source: CopyPlace,
    /// Where they are written.
    pub destination: CopyPlace,
    /// How many, at least one.
    pub bytes: u64,
}

impl CopyOp {
    /// Whether `next` continues this one on both sides.
    pub(super) fn is_before(&self, next: &Self) -> bool {
        self.source.is_before(self.bytes, &next.source)
            && self.destination.is_before(self.bytes, &next.destination)
    }
}

/// What one plan has at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CopyLimits {
    /// Stretches that are looked at before those that touch are joined: bounds the time that a plan takes.
    pub pieces_max: u64,
    /// Operations: bounds the memory that a plan takes, 64 bytes each.
    pub ops_max: usize,
    /// Bytes of an operation: longer ones are cut.
    pub op_bytes_max: u64,
}

impl CopyLimits {
    /// A plan takes at most some 100 ms and 16 MiB. Plan a prompt in parts if it needs more.
    pub const DEFAULT: Self =
        Self { pieces_max: 1 << 22, ops_max: 1 << 18, op_bytes_max: 16 << 20 };
}

impl Default for CopyLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
