//! Slots of a memory region: guards for shared and exclusive access, and copies between slots.

use crate::claims::{Claim, ClaimError, Claims, ReadClaim, WriteClaim};
#[cfg(feature = "nixl")]
use crate::region::Access;
use crate::region::{AccessError, Region, RegionKind};
use std::sync::Arc;

mod copy;
#[expect(
    unsafe_code,
    reason = "slots are made of a pointer and the claim that nobody else has them"
)]
mod view;

pub use copy::copy;
use view::View;

/// How a region is divided into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLayout {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Distance between the starts of two slots, in bytes.
    pub stride_bytes: usize,
    /// Number of slots.
    pub slots: u32,
}

impl SlotLayout {
    /// Creates a layout of consecutive slots, padded to `alignment`, which is a power of two.
    ///
    /// # Errors
    /// If the alignment is not a power of two, or the size overflows.
    pub fn aligned(block_bytes: usize, alignment: usize, slots: u32) -> Result<Self, ArenaError> {
        if !alignment.is_power_of_two() {
            return Err(ArenaError::Alignment(alignment));
        }
        let stride_bytes = block_bytes.checked_next_multiple_of(alignment);
        let stride_bytes = stride_bytes.ok_or(ArenaError::Overflow)?;
        let layout = Self { block_bytes, stride_bytes, slots };
        layout.bytes().map(|_| layout)
    }

    /// Bytes of all slots together.
    ///
    /// # Errors
    /// If the size overflows, a block is empty, or a block does not fit into its slot.
    pub fn bytes(&self) -> Result<usize, ArenaError> {
        let &Self { block_bytes, stride_bytes, slots } = self;
        if block_bytes == 0 || slots == 0 {
            return Err(ArenaError::Empty);
        }
        if block_bytes > stride_bytes {
            return Err(ArenaError::Stride { block_bytes, stride_bytes });
        }
        let slots = usize::try_from(slots).ok();
        let bytes = slots.and_then(|slots| stride_bytes.checked_mul(slots));
        bytes.filter(|bytes| isize::try_from(*bytes).is_ok()).ok_or(ArenaError::Overflow)
    }
}

/// Why a region can't be divided into slots.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// No slots, or blocks of 0 bytes.
    #[error("an arena needs at least one slot of at least one byte")]
    Empty,
    /// The alignment is not a power of two.
    #[error("alignment {0} is not a power of two")]
    Alignment(usize),
    /// Slots would overlap.
    #[error("blocks of {block_bytes} bytes do not fit into slots of {stride_bytes}")]
    Stride {
        /// Bytes of a block.
        block_bytes: usize,
        /// Bytes of a slot.
        stride_bytes: usize,
    },
    /// The size exceeds the address space.
    #[error("the slots take more bytes than this machine can address")]
    Overflow,
    /// The region is too small.
    #[error("the slots take {needed} bytes, and the region has {there}")]
    TooSmall {
        /// Bytes that the slots take.
        needed: usize,
        /// Bytes of the region.
        there: usize,
    },
}

/// A region divided into slots. Its bytes are accessible only through the guards of [`read`](Self::read) and
/// [`write`](Self::write).
#[derive(Debug)]
pub struct Arena {
    region: Box<dyn Region>,
    layout: SlotLayout,
    claims: Arc<Claims>,
}

impl Arena {
    /// Divides a region into slots, from its first byte on.
    ///
    /// # Errors
    /// If the region is too small for the slots.
    pub fn new(region: Box<dyn Region>, layout: SlotLayout) -> Result<Arc<Self>, ArenaError> {
        let needed = layout.bytes()?;
        let there = region.bytes();
        if needed > there {
            return Err(ArenaError::TooSmall { needed, there });
        }
        Ok(Arc::new(Self { region, layout, claims: Claims::new(layout.slots) }))
    }

    /// The layout of the slots.
    #[must_use]
    pub fn layout(&self) -> SlotLayout {
        self.layout
    }

    /// The kind of memory.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.region.kind()
    }

    /// Whether a slot is neither read nor written at the moment.
    ///
    /// # Errors
    /// If the slot does not exist.
    pub fn is_free(&self, slot: u32) -> Result<bool, ClaimError> {
        self.claims.is_free(slot)
    }

    /// Acquires a slot for reading, shared with other readers. Never waits.
    ///
    /// # Errors
    /// If the slot is being written, or does not exist.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<ReadSlot, ClaimError> {
        Ok(ReadSlot { claim: self.claims.read(slot)?, arena: Arc::clone(self) })
    }

    /// Acquires a slot exclusively. Never waits.
    ///
    /// # Errors
    /// If the slot is being read or written, or does not exist.
    pub fn write(self: &Arc<Self>, slot: u32) -> Result<WriteSlot, ClaimError> {
        Ok(WriteSlot { claim: self.claims.write(slot)?, arena: Arc::clone(self) })
    }

    /// Address of the first byte and size of all slots, if the processor can address the region.
    #[cfg(feature = "nixl")]
    pub(crate) fn place(&self) -> Option<(usize, usize)> {
        let (Access::Private(first) | Access::Shared(first)) = self.region.access() else {
            return None;
        };
        Some((first.as_ptr().expose_provenance(), self.layout.bytes().ok()?))
    }

    /// A view of a slot's bytes. The caller has a claim to the slot.
    fn view(&self, slot: u32) -> View<'_> {
        // Claims exist only for slots of the layout, and the layout's size does not overflow.
        let index = usize::try_from(slot).unwrap_or_default();
        View::new(self.region.access(), index * self.layout.stride_bytes, self.layout)
    }
}

/// Guard of an acquired slot. Dropping it releases the slot.
#[derive(Debug)]
pub struct Slot<C> {
    claim: C,
    arena: Arc<Arena>,
}

/// A guard for reading, shared with other readers.
pub type ReadSlot = Slot<ReadClaim>;

/// A guard for exclusive access.
pub type WriteSlot = Slot<WriteClaim>;

impl<C: Claim> Slot<C> {
    /// The slot's number.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.claim.slot()
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.arena.layout.block_bytes
    }

    /// The block as a slice. `None` if the processor can't address the memory, or other processes may write it.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.padded()?.get(..self.block_bytes())
    }

    /// The block and its padding up to the next slot, as a slice; `None` in the same cases as
    /// [`as_slice`](Self::as_slice).
    #[must_use]
    pub fn padded(&self) -> Option<&[u8]> {
        self.arena.view(self.slot()).shared(&self.claim)
    }

    /// Copies a part of the block, which begins at `offset`, into `into`.
    ///
    /// # Errors
    /// If the range is outside the block, or a device fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.arena.view(self.slot()).read(&self.claim, offset, into)
    }
}

#[cfg(feature = "nixl")]
impl WriteSlot {
    /// Whether the slot belongs to this arena.
    pub(crate) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// Address of the slot's block, if the processor can address it.
    pub(crate) fn address(&self) -> Option<usize> {
        let (first, _) = self.arena.place()?;
        // The slot is in the region; see `view`.
        Some(first + usize::try_from(self.slot()).ok()? * self.arena.layout.stride_bytes)
    }
}

impl WriteSlot {
    /// The block as a mutable slice; `None` in the same cases as [`as_slice`](Self::as_slice).
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let block_bytes = self.block_bytes();
        self.padded_mut()?.get_mut(..block_bytes)
    }

    /// The block and its padding up to the next slot, as a mutable slice; `None` in the same cases as
    /// [`as_slice`](Self::as_slice).
    #[must_use]
    pub fn padded_mut(&mut self) -> Option<&mut [u8]> {
        self.arena.view(self.slot()).exclusive(&mut self.claim)
    }

    /// Copies `from` into the block at `offset`.
    ///
    /// # Errors
    /// If the range is outside the block, or a device fails.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.arena.view(self.slot()).write(&mut self.claim, offset, from)
    }

    /// Downgrades to a read guard. The slot is never free in between.
    #[must_use]
    pub fn into_read(self) -> ReadSlot {
        ReadSlot { claim: self.claim.into_read(), arena: self.arena }
    }
}

#[cfg(test)]
#[path = "arena_test.rs"]
mod tests;
