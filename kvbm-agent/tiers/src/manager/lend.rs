//! Blocks that this process reads itself, for example to send them to a peer, and holds meanwhile.

use super::error::ReadError;
use super::session::{Seat, Session};
use crate::checksum::Checksum;
use kvasir_blocks::{BlockIdentity, SlotId, TierBlock};
use kvasir_memory::{AccessError, ReadSlot};
use std::sync::Arc;

/// A block that stays in its slot while this exists, even if the session releases it.
#[derive(Debug)]
pub struct Loan {
    // Dropped before the block, because the slot's next owner may write immediately.
    reader: ReadSlot,
    block: TierBlock,
    seat: Arc<Seat>,
}

impl Session {
    /// Lends a held block to a sender.
    ///
    /// # Errors
    /// If the session does not hold the block, or the slot can't be read.
    pub fn lend(&self, slot: SlotId) -> Result<Loan, ReadError> {
        let seat = self.seat();
        let block = seat.try_with_holdings(|holdings| {
            let held = holdings.held.get(&slot.0).ok_or(ReadError::NotHeld { slot: slot.0 })?;
            Ok::<_, ReadError>(held.block.clone())
        })?;
        let reader =
            seat.shared.memory.arena.read(slot.0).map_err(|error| ReadError::Unreadable {
                slot: slot.0,
                reason: error.to_string(),
            })?;
        Ok(Loan { reader, block, seat: Arc::clone(seat) })
    }
}

impl Loan {
    /// The block's identity.
    #[must_use]
    pub fn identity(&self) -> &BlockIdentity {
        self.block.identity()
    }

    /// Verifies the bytes of the block. Memory that only this process writes is verified in place, any other memory in
    /// `copy`, which gets the size of a block. Blocks the thread while it reads the bytes.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if the bytes are wrong. The block is withdrawn, and its bytes must not be used.
    pub fn verify(&self, copy: &mut Vec<u8>) -> Result<Checksum, ReadError> {
        let shared = &self.seat.shared;
        let slot = self.block.slot().0;
        if self.reader.as_slice().is_none() {
            copy.resize(shared.block_bytes(), 0);
            let unreadable = |error: AccessError| error.to_string();
            let read = self.reader.read(0, copy).map_err(unreadable);
            read.map_err(|reason| ReadError::Unreadable { slot, reason })?;
        }
        let found = Checksum::of(self.identity().sequence.0, self.bytes(copy));
        let stated = self.block.checksum().map(|checksum| Checksum(checksum.0));
        if stated != Some(found) {
            if self.block.withdraw() {
                shared.report_corrupt(&self.block);
            }
            return Err(ReadError::Corrupt { slot });
        }
        shared.counters.reads_verified.up();
        Ok(found)
    }

    /// The bytes verified by the last call of [`verify`](Self::verify) with the same `copy`.
    #[must_use]
    pub fn bytes<'a>(&'a self, copy: &'a [u8]) -> &'a [u8] {
        let bytes = self.seat.shared.block_bytes();
        self.reader.as_slice().unwrap_or(copy).get(..bytes).unwrap_or_default()
    }
}
