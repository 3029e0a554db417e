//! Copies blocks from slot to slot, in pieces that fit the processor's caches.

use super::{ReadSlot, WriteSlot};
use crate::region::AccessError;

/// Bytes of a piece. Source and target piece together fit into a first-level cache of 48 KiB.
const PIECE_BYTES: usize = 16 << 10;

/// Copies the first `bytes` bytes of a block, and passes each piece to `look` once, in order. If only this process
/// writes the target, `look` receives the target's bytes, otherwise the bytes that were written to it. Shared memory is
/// read once.
///
/// `look` returns whether to continue. If it stops the copy, the result is `Ok(false)` and the target is incomplete.
///
/// # Errors
/// If one of the blocks is smaller, or a device fails. The target may be incomplete then.
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
