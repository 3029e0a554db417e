//! Copies from slot to slot, in pieces that stay in the processor's caches.

use super::{ReadSlot, WriteSlot};
use crate::region::AccessError;

/// Bytes of a piece: source and target together stay in a first-level cache of 48 KiB.
const PIECE_BYTES: usize = 16 << 10;

/// Copies the first `bytes` of a block, and shows each piece to `look` in order, once: as it arrived in the target where this
/// process alone writes that, and otherwise as it was given to it. Shared memory is read once.
///
/// `look` says whether to go on. If it stops the copy, `Ok(false)` is returned, and the target has a part of the block.
///
/// # Errors
/// If one of the blocks is smaller, or a device fails; the target may have a part of the block then.
pub fn copy(
    source: &ReadSlot,
    target: &mut WriteSlot,
    bytes: usize,
    mut look: impl FnMut(&[u8]) -> bool,
) -> Result<bool, AccessError> {
    AccessError::check(0, bytes, source.block_bytes())?;
    AccessError::check(0, bytes, target.block_bytes())?;
    let mut bounce = Vec::new();
    let mut at = 0;
    while at < bytes {
        let end = bytes.min(at + PIECE_BYTES);
        let goes_on = match (source.as_slice(), target.as_mut_slice()) {
            (_, Some(block)) => {
                let piece = block.get_mut(at..end).unwrap_or_default();
                source.read(at, piece)?;
                look(piece)
            }
            (Some(block), None) => {
                let piece = block.get(at..end).unwrap_or_default();
                target.write(at, piece)?;
                look(piece)
            }
            (None, None) => {
                bounce.resize(end - at, 0);
                source.read(at, &mut bounce)?;
                target.write(at, &bounce)?;
                look(&bounce)
            }
        };
        if !goes_on {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}
