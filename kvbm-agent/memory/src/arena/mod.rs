//! Slots of a region: who may touch which, and copies between them.

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

/// How a region is cut into slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotLayout {
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Bytes from the start of a slot to the start of the next one.
    pub stride_bytes: usize,
    /// How many slots there are.
    pub slots: u32,
}

impl SlotLayout {
    /// Slots without room between them but what an alignment takes, which is a power of two.
    ///
    /// # Errors
    /// If the alignment is none, or the bytes overflow.
    pub fn aligned(block_bytes: usize, alignment: usize, slots: u32) -> Result<Self, ArenaError> {
        if !alignment.is_power_of_two() {
            return Err(ArenaError::Alignment(alignment));
        }
        let stride_bytes = block_bytes.checked_next_multiple_of(alignment);
        let stride_bytes = stride_bytes.ok_or(ArenaError::Overflow)?;
        let layout = Self { block_bytes, stride_bytes, slots };
        layout.bytes().map(|_| layout)
    }

    /// Bytes that all slots take.
    ///
    /// # Errors
    /// If that overflows, a block is empty, or does not fit into its slot.
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

/// A region cannot be cut so.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArenaError {
    /// No blocks, or blocks of no bytes.
    #[error("an arena needs at least one slot of at least one byte")]
    Empty,
    /// Not a power of two.
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
    /// More than an address can express.
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

/// A region cut into slots. The only way to its bytes is a guard: [`read`](Self::read) or [`write`](Self::write).
#[derive(Debug)]
pub struct Arena {
    region: Box<dyn Region>,
    layout: SlotLayout,
    claims: Arc<Claims>,
}

impl Arena {
    /// Cuts a region into slots, from its first byte on.
    ///
    /// # Errors
    /// If the slots do not fit into it.
    pub fn new(region: Box<dyn Region>, layout: SlotLayout) -> Result<Arc<Self>, ArenaError> {
        let needed = layout.bytes()?;
        let there = region.bytes();
        if needed > there {
            return Err(ArenaError::TooSmall { needed, there });
        }
        Ok(Arc::new(Self { region, layout, claims: Claims::new(layout.slots) }))
    }

    /// How it is cut.
    #[must_use]
    pub fn layout(&self) -> SlotLayout {
        self.layout
    }

    /// What kind of memory it is.
    #[must_use]
    pub fn kind(&self) -> RegionKind {
        self.region.kind()
    }

    /// Whether nobody holds a slot at the moment.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn is_free(&self, slot: u32) -> Result<bool, ClaimError> {
        self.claims.is_free(slot)
    }

    /// Holds a slot for reading, together with other readers. Does not wait.
    ///
    /// # Errors
    /// If it is being written, or there is none.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<ReadSlot, ClaimError> {
        Ok(ReadSlot { claim: self.claims.read(slot)?, arena: Arc::clone(self) })
    }

    /// Holds a slot alone. Does not wait.
    ///
    /// # Errors
    /// If somebody holds it, or there is none.
    pub fn write(self: &Arc<Self>, slot: u32) -> Result<WriteSlot, ClaimError> {
        Ok(WriteSlot { claim: self.claims.write(slot)?, arena: Arc::clone(self) })
    }

    /// The address of the first byte and the bytes of all slots, if the processor can address them.
    #[cfg(feature = "nixl")]
    pub(crate) fn place(&self) -> Option<(usize, usize)> {
        let (Access::Private(first) | Access::Shared(first)) = self.region.access() else {
            return None;
        };
        Some((first.as_ptr().expose_provenance(), self.layout.bytes().ok()?))
    }

    /// The bytes of a slot, for whoever holds a claim to it.
    fn view(&self, slot: u32) -> View<'_> {
        // Claims exist for slots of the layout only, and the layout's bytes do not overflow.
        let index = usize::try_from(slot).unwrap_or_default();
        View::new(self.region.access(), index * self.layout.stride_bytes, self.layout)
    }
}

/// A slot that is held by a claim. Dropping it gives the slot back.
#[derive(Debug)]
pub struct Slot<C> {
    claim: C,
    arena: Arc<Arena>,
}

/// A slot that is held for reading, together with other readers.
pub type ReadSlot = Slot<ReadClaim>;

/// A slot that is held alone.
pub type WriteSlot = Slot<WriteClaim>;

impl<C: Claim> Slot<C> {
    /// Which slot it is.
    #[must_use]
    pub fn slot(&self) -> u32 {
        self.claim.slot()
    }

    /// Bytes of its block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.arena.layout.block_bytes
    }

    /// Its block, where the processor can address it and nobody else writes it.
    #[must_use]
    pub fn as_slice(&self) -> Option<&[u8]> {
        self.padded()?.get(..self.block_bytes())
    }

    /// Its block with what follows until the next slot, under the same condition.
    #[must_use]
    pub fn padded(&self) -> Option<&[u8]> {
        self.arena.view(self.slot()).shared(&self.claim)
    }

    /// Copies a part of the block, from `offset` on.
    ///
    /// # Errors
    /// If the range does not lie in the block, or a device fails.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), AccessError> {
        self.arena.view(self.slot()).read(&self.claim, offset, into)
    }
}

#[cfg(feature = "nixl")]
impl WriteSlot {
    /// Whether it is a slot of that arena.
    pub(crate) fn is_of(&self, arena: &Arc<Arena>) -> bool {
        Arc::ptr_eq(&self.arena, arena)
    }

    /// The address of its block, if the processor can address it.
    pub(crate) fn address(&self) -> Option<usize> {
        let (first, _) = self.arena.place()?;
        // The slot lies in the region, as for `view`.
        Some(first + usize::try_from(self.slot()).ok()? * self.arena.layout.stride_bytes)
    }
}

impl WriteSlot {
    /// Its block, to be written, under the same condition.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        let block_bytes = self.block_bytes();
        self.padded_mut()?.get_mut(..block_bytes)
    }

    /// Its block with what follows until the next slot, under the same condition.
    #[must_use]
    pub fn padded_mut(&mut self) -> Option<&mut [u8]> {
        self.arena.view(self.slot()).exclusive(&mut self.claim)
    }

    /// Copies `from` into the block, from `offset` on.
    ///
    /// # Errors
    /// If the range does not lie in the block, or a device fails.
    pub fn write(&mut self, offset: usize, from: &[u8]) -> Result<(), AccessError> {
        self.arena.view(self.slot()).write(&mut self.claim, offset, from)
    }

    /// Goes on as a reader, without a moment in which nobody holds the slot.
    #[must_use]
    pub fn into_read(self) -> ReadSlot {
        ReadSlot { claim: self.claim.into_read(), arena: self.arena }
    }
}

#[cfg(test)]
#[path = "arena_test.rs"]
mod tests;
