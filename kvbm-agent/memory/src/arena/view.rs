//! Unchecked access to the bytes of a slot. Each access takes the claim to the slot as proof.

use super::SlotLayout;
use crate::claims::{Claim, WriteClaim};
use crate::raw;
use crate::region::{Access, AccessError};
use std::slice;

/// The bytes of one slot of a region.
pub(super) struct View<'a> {
    access: Access<'a>,
    /// Offset of the slot in its region. The complete slot is in the region.
    start: usize,
    layout: SlotLayout,
}

impl<'a> View<'a> {
    /// The slot, from `start` to the end of its stride, must be in the accessed region.
    pub(super) fn new(access: Access<'a>, start: usize, layout: SlotLayout) -> Self {
        Self { access, start, layout }
    }

    /// Returns the slot's bytes, or `None` if another process may write the region. The claim must be for this slot.
    pub(super) fn shared<'b>(&self, _claim: &'b impl Claim) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let Access::Private(first) = self.access else { return None };
        // SAFETY: the slot is in the region, whose bytes are initialised and belong only to the arena (contract of
        // `Region`). While the claim is borrowed, there is no exclusive slice of this slot: only `exclusive` creates
        // one, and it borrows the one claim that may write, which excludes all others. Slices of other slots do not
        // overlap: the stride is not less than the length of a slice.
        let bytes = unsafe {
            slice::from_raw_parts(first.add(self.start).as_ptr(), self.layout.stride_bytes)
        };
        Some(bytes)
    }

    /// Returns the slot's bytes for writing, or `None` if another process may write the region. The claim must be for
    /// this slot.
    pub(super) fn exclusive<'b>(&self, _claim: &'b mut WriteClaim) -> Option<&'b mut [u8]>
    where
        'a: 'b,
    {
        let Access::Private(first) = self.access else { return None };
        // SAFETY: see `shared`. No other slice of this slot exists: there is one claim of this kind, it excludes
        // readers, and it is borrowed exclusively while the slice lives.
        let bytes = unsafe {
            slice::from_raw_parts_mut(first.add(self.start).as_ptr(), self.layout.stride_bytes)
        };
        Some(bytes)
    }

    /// Copies the bytes at `offset` of the block into `into`. Fails if the range is outside the block.
    pub(super) fn read(
        &self,
        claim: &impl Claim,
        offset: usize,
        into: &mut [u8],
    ) -> Result<(), AccessError> {
        AccessError::check(offset, into.len(), self.layout.block_bytes)?;
        match self.access {
            Access::Private(_) => {
                let block = self.shared(claim).unwrap_or_default();
                if let Some(part) = block.get(offset..offset + into.len()) {
                    into.copy_from_slice(part);
                }
                Ok(())
            }
            Access::Shared(first) => {
                // SAFETY: the range was checked to be in the block, and the block is in the region. This process
                // creates no references to the region's bytes (contract of `Region`; this file slices only private
                // ones).
                unsafe { raw::read(first.add(self.start + offset), into) };
                Ok(())
            }
            Access::Copied(device) => device.read(self.start + offset, into),
        }
    }

    /// Copies `from` into the block at `offset`. Fails if the range is outside the block.
    pub(super) fn write(
        &self,
        claim: &mut WriteClaim,
        offset: usize,
        from: &[u8],
    ) -> Result<(), AccessError> {
        AccessError::check(offset, from.len(), self.layout.block_bytes)?;
        match self.access {
            Access::Private(_) => {
                let block = self.exclusive(claim).unwrap_or_default();
                if let Some(part) = block.get_mut(offset..offset + from.len()) {
                    part.copy_from_slice(from);
                }
                Ok(())
            }
            Access::Shared(first) => {
                // SAFETY: see `read`.
                unsafe { raw::write(first.add(self.start + offset), from) };
                Ok(())
            }
            Access::Copied(device) => device.write(self.start + offset, from),
        }
    }
}
