use super::BlockSetError;
use crate::layout::{AnyLayout, BlockLayout};

/// What memory a set lies in, by the names of transfer libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MemoryKind {
    /// An accelerator's memory.
    Vram = 0,
    /// Host memory.
    Dram = 1,
    /// A file; addresses are offsets in it.
    File = 2,
    /// An object of a volume; addresses are offsets in it.
    Object = 3,
}

impl MemoryKind {
    /// All kinds, by their codes.
    pub const ALL: [Self; 4] = [Self::Vram, Self::Dram, Self::File, Self::Object];
}

/// A stretch of its owner's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// Its first byte.
    pub address: u64,
    /// Bytes in it.
    pub bytes: u64,
}

impl AddressRange {
    /// The address behind it; none if it does not fit into 64 bits.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.address.checked_add(self.bytes)
    }

    /// Whether both have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (first, second) = if self <= other { (self, other) } else { (other, self) };
        second.bytes > 0 && second.address - first.address < first.bytes
    }
}

/// What a [`Registrar`](super::Registrar) registers: one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryRegion {
    /// What memory it is.
    pub kind: MemoryKind,
    /// The accelerator, file or object, by the owner's number.
    pub device_id: u64,
    /// Where.
    pub range: AddressRange,
}

/// The memory that a set lies in.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetMemory {
    /// What memory it is.
    pub kind: MemoryKind,
    /// The accelerator, file or object, by the owner's number.
    pub device_id: u64,
    /// One for each allocation of the layout, in their order. They may be larger than the layout needs.
    pub ranges: Vec<AddressRange>,
}

impl SetMemory {
    /// Its regions, in order.
    pub fn regions(&self) -> impl Iterator<Item = MemoryRegion> + '_ {
        let kind = self.kind;
        let device_id = self.device_id;
        self.ranges.iter().map(move |&range| MemoryRegion { kind, device_id, range })
    }

    /// Whether both have a byte of the same memory in common. Both have the same owner.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_same = self.kind == other.kind && self.device_id == other.device_id;
        is_same && self.ranges.iter().any(|at| other.ranges.iter().any(|other| at.overlaps(other)))
    }

    /// Checks that all regions of `layout` lie in it, and that no two allocations share a byte.
    pub(super) fn check(&self, layout: &AnyLayout) -> Result<(), BlockSetError> {
        let stated = self.ranges.len() as u64;
        let needed = layout.allocations();
        if stated != u64::from(needed) {
            return Err(BlockSetError::Regions { stated, needed });
        }
        let needed = layout.allocation_bytes();
        for (region, range) in (0..).zip(&self.ranges) {
            if range.end().is_none() {
                return Err(BlockSetError::RegionOverflow { region });
            }
            if range.bytes < needed {
                return Err(BlockSetError::RegionTooSmall { region, bytes: range.bytes, needed });
            }
        }
        let mut sorted: Vec<(AddressRange, u32)> = self.ranges.iter().copied().zip(0..).collect();
        sorted.sort_unstable();
        for pair in sorted.windows(2) {
            if let [(before, first), (after, second)] = pair
                && before.overlaps(after)
            {
                return Err(BlockSetError::RegionsOverlap { first: *first, second: *second });
            }
        }
        Ok(())
    }
}
