//! Held blocks whose bytes this process sends by itself, as to a peer.

use super::error::ReadError;
use super::session::{Seat, Session};
use crate::checksum::Checksum;
use kvasir_blocks::{BlockIdentity, SlotId, TierBlock};
use kvasir_memory::{AccessError, ReadSlot};
use std::sync::Arc;

/// A block that stays in its slot for as long as this exists, whoever releases it meanwhile.
#[derive(Debug)]
pub struct Loan {
    // Dropped before the block: whoever gets the slot next may write it at once.
    reader: ReadSlot,
    block: TierBlock,
    seat: Arc<Seat>,
}

impl Session {
    /// Lends a held block: for who sends its bytes.
    ///
    /// # Errors
    /// If the session does not hold it, or the slot can't be read.
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
    /// What it is.
    #[must_use]
    pub fn identity(&self) -> &BlockIdentity {
        self.block.identity()
    }

    /// Verifies its bytes: where they are if this process alone writes the memory, else as a copy in `copy`, which gets the
    /// size of a block. Blocks the thread for as long as it takes to read them.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if the bytes are wrong: nobody is to be given them, and the block is withdrawn.
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

    /// What was verified last, with the same `copy`.
    #[must_use]
    pub fn bytes<'a>(&'a self, copy: &'a [u8]) -> &'a [u8] {
        let bytes = self.seat.shared.block_bytes();
        self.reader.as_slice().unwrap_or(copy).get(..bytes).unwrap_or_default()
    }
}
