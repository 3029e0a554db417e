//! Plans and copies the part of a block that another agent needs.

use crate::limits::PART_PIECES_MAX;
use crate::wire::RankBlock;
use kvasir_blocks::gather::CopyError;
use kvasir_blocks::sets::{BlockSetError, BlockSetLayout};
use kvasir_blocks::{CopyLimits, CopyPlan, CopyRank, SlotId};
use std::slice::Iter;

/// The only block of a slot.
const BLOCK: [SlotId; 1] = [SlotId(0)];
const LIMITS: CopyLimits = CopyLimits {
    pieces_max: PART_PIECES_MAX as u64,
    ops_max: PART_PIECES_MAX,
    op_bytes_max: u64::MAX,
};

/// Why a part can't be planned.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The two layouts are incompatible.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// A layout is invalid.
    #[error(transparent)]
    Set(#[from] BlockSetError),
    /// The block has more bytes than this machine can address.
    #[error("a block is too large for this machine")]
    TooLarge,
}

/// A range of bytes that is contiguous at both agents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// Offset in the owner's block.
    from: usize,
    /// Offset in the receiver's slot.
    to: usize,
    bytes: usize,
}

/// Which bytes of an owner's block go where in a receiver's slot. They are sent in the order of the pieces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartPlan {
    pieces: Vec<Piece>,
    bytes: usize,
}

impl PartPlan {
    /// Plans the bytes of `owner` that `receiver` needs. The plan is empty if there are none.
    ///
    /// # Errors
    /// [`PartError`] names the dimension that differs, or the limit.
    pub fn new(owner: &RankBlock, receiver: &RankBlock) -> Result<Self, PartError> {
        let from = owner.set()?;
        let to = receiver.set()?;
        let rank = |layout| CopyRank { layout, blocks: &BLOCK };
        let plan = CopyPlan::part(rank(&from), rank(&to), &LIMITS)?;
        let mut pieces: Vec<Piece> = Vec::new();
        let mut sum = 0_usize;
        for op in plan.ops() {
            let bytes = usize::try_from(op.bytes).map_err(|_too_large| PartError::TooLarge)?;
            let piece = Piece {
                from: offset(&from, op.source.allocation, op.source.offset, op.bytes)?,
                to: offset(&to, op.destination.allocation, op.destination.offset, op.bytes)?,
                bytes,
            };
            sum = sum.checked_add(bytes).ok_or(PartError::TooLarge)?;
            // Adjacent allocations may be contiguous.
            if let Some(last) = pieces.last_mut()
                && last.from + last.bytes == piece.from
                && last.to + last.bytes == piece.to
            {
                last.bytes += bytes;
            } else {
                pieces.push(piece);
            }
        }
        pieces.shrink_to_fit();
        Ok(Self { pieces, bytes: sum })
    }

    /// A complete, unchanged block.
    #[must_use]
    pub fn whole(bytes: usize) -> Self {
        Self { pieces: vec![Piece { from: 0, to: 0, bytes }], bytes }
    }

    /// Bytes of the part.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Replaces the content of `part` by the part of an owner's block. Skips ranges outside the block.
    pub fn gather(&self, block: &[u8], part: &mut Vec<u8>) {
        part.clear();
        part.reserve_exact(self.bytes);
        for &Piece { from, bytes, .. } in &self.pieces {
            part.extend_from_slice(block.get(from..from + bytes).unwrap_or_default());
        }
    }

    /// Receives the part piece by piece, and determines where each range goes.
    #[must_use]
    pub fn scatter(&self) -> Scatter<'_> {
        Scatter { rest: self.pieces.iter(), current: None }
    }
}

/// Returns the offset in the slot of a byte of an allocation.
fn offset(
    set: &BlockSetLayout,
    allocation: u32,
    offset: u64,
    bytes: u64,
) -> Result<usize, PartError> {
    let address = set.addresses(allocation, offset, bytes).map(|range| range.address);
    address.and_then(|at| usize::try_from(at).ok()).ok_or(PartError::TooLarge)
}

/// A part that is being received.
#[derive(Debug)]
pub struct Scatter<'a> {
    rest: Iter<'a, Piece>,
    /// The rest of the current range.
    current: Option<Piece>,
}

impl Scatter<'_> {
    /// Places the next bytes of the part: calls `write` with an offset in the slot and the bytes for it. Ignores bytes
    /// beyond the part.
    ///
    /// # Errors
    /// The first error of `write`.
    pub fn place<E>(
        &mut self,
        mut bytes: &[u8],
        mut write: impl FnMut(usize, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while !bytes.is_empty() {
            let next = self.current.take().or_else(|| self.rest.next().copied());
            let Some(piece) = next else { return Ok(()) };
            let (now, later) = bytes.split_at(piece.bytes.min(bytes.len()));
            write(piece.to, now)?;
            if now.len() < piece.bytes {
                let to = piece.to + now.len();
                let bytes = piece.bytes - now.len();
                self.current = Some(Piece { to, bytes, ..piece });
            }
            bytes = later;
        }
        Ok(())
    }
}
