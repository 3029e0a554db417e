use super::BlockSetError;
use crate::layout::{AnyLayout, BlockLayout};

/// The kind of memory of a set, with the names that transfer libraries use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum MemoryKind {
    /// An accelerator's memory.
    Vram = 0,
    /// Host memory.
    Dram = 1,
    /// A file. Addresses are offsets in the file.
    File = 2,
    /// An object in a volume. Addresses are offsets in the object.
    Object = 3,
}

impl MemoryKind {
    /// All kinds, by their codes.
    pub const ALL: [Self; 4] = [Self::Vram, Self::Dram, Self::File, Self::Object];
}

/// A range of addresses at the owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressRange {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u64,
}

impl AddressRange {
    /// End of the range (exclusive); `None` if it does not fit into 64 bits.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.address.checked_add(self.bytes)
    }

    /// Whether the two ranges have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let (first, second) = if self <= other { (self, other) } else { (other, self) };
        second.bytes > 0 && second.address - first.address < first.bytes
    }
}

/// One allocation, as a [`Registrar`](super::Registrar) registers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MemoryRegion {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The owner's number of the accelerator, file or object.
    pub device_id: u64,
    /// Addresses of the allocation.
    pub range: AddressRange,
}

/// The memory of a set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct SetMemory {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The owner's number of the accelerator, file or object.
    pub device_id: u64,
    /// One range for each allocation of the layout, in the same order. A range may be larger than the layout needs.
    pub ranges: Vec<AddressRange>,
}

impl SetMemory {
    /// The memory's regions, in order.
    pub fn regions(&self) -> impl Iterator<Item = MemoryRegion> + '_ {
        let kind = self.kind;
        let device_id = self.device_id;
        self.ranges.iter().map(move |&range| MemoryRegion { kind, device_id, range })
    }

    /// Whether two memories of the same owner have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let is_same = self.kind == other.kind && self.device_id == other.device_id;
        is_same && self.ranges.iter().any(|at| other.ranges.iter().any(|other| at.overlaps(other)))
    }

    /// Checks that the memory contains all regions of `layout`, and that no two allocations overlap.
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
