//! The bytes of a slot. Whoever holds a claim to the slot may look at it; the claim is shown with each access.

use super::SlotLayout;
use crate::claims::{Claim, WriteClaim};
use crate::raw;
use crate::region::{Access, AccessError};
use std::slice;

/// The bytes of one slot of a region.
pub(super) struct View<'a> {
    access: Access<'a>,
    /// Where the slot begins in its region. With the stride, it lies in the region.
    start: usize,
    layout: SlotLayout,
}

impl<'a> View<'a> {
    /// `start` and the layout's stride lie in the region of the access.
    pub(super) fn new(access: Access<'a>, start: usize, layout: SlotLayout) -> Self {
        Self { access, start, layout }
    }

    /// The slot as a slice, where it can be one. The claim is to this slot.
    pub(super) fn shared<'b>(&self, _claim: &'b impl Claim) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        let Access::Private(first) = self.access else { return None };
        // SAFETY: the slot lies in the region, whose bytes are initialised and belong to the arena alone (contract of
        // `Region`). While the claim is borrowed, there is no exclusive slice of this slot: only `exclusive` makes one, which
        // borrows the one claim that may write, and that excludes all others. Slices of other slots do not overlap: the stride
        // is not less than what is sliced.
        let bytes = unsafe {
            slice::from_raw_parts(first.add(self.start).as_ptr(), self.layout.stride_bytes)
        };
        Some(bytes)
    }

    /// The slot as a slice that nobody else has, where it can be one. The claim is to this slot.
    pub(super) fn exclusive<'b>(&self, _claim: &'b mut WriteClaim) -> Option<&'b mut [u8]>
    where
        'a: 'b,
    {
        let Access::Private(first) = self.access else { return None };
        // SAFETY: as for `shared`; and no other slice of this slot exists: there is one claim of this kind, it excludes
        // readers, and it is borrowed exclusively for as long as the slice lives.
        let bytes = unsafe {
            slice::from_raw_parts_mut(first.add(self.start).as_ptr(), self.layout.stride_bytes)
        };
        Some(bytes)
    }

    /// Copies a part of the block.
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
                // SAFETY: the range was checked to lie in the block, and the block lies in the region, of whose bytes
                // nothing in this process makes references (contract of `Region`; this file slices private ones only).
                unsafe { raw::read(first.add(self.start + offset), into) };
                Ok(())
            }
            Access::Copied(device) => device.read(self.start + offset, into),
        }
    }

    /// Copies into a part of the block.
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
                // SAFETY: as for `read`.
                unsafe { raw::write(first.add(self.start + offset), from) };
                Ok(())
            }
            Access::Copied(device) => device.write(self.start + offset, from),
        }
    }
}
