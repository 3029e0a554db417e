//! Who holds which slot: one writer, or any number of readers.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The state of a slot that a writer holds; below, the number of its readers.
const WRITTEN: u32 = u32::MAX;
/// Most readers of a slot at a time.
const READERS_MAX: u32 = u32::MAX - 1;

/// A slot could not be borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// There is no such slot.
    #[error("there is no slot {slot}: there are {slots}")]
    Unknown {
        /// The slot.
        slot: u32,
        /// How many there are.
        slots: u32,
    },
    /// Somebody writes it.
    #[error("slot {0} is being written")]
    Written(u32),
    /// Somebody reads it.
    #[error("slot {0} is being read")]
    Read(u32),
}

/// The slots of a storage, and who holds them. Claims never wait.
#[derive(Debug)]
pub struct Claims {
    states: Box<[AtomicU32]>,
}

impl Claims {
    /// Slots that nobody holds.
    #[must_use]
    pub fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self { states: (0..slots).map(|_| AtomicU32::new(0)).collect() })
    }

    /// How many slots there are.
    #[must_use]
    pub fn slots(&self) -> u32 {
        // They were made from a u32.
        u32::try_from(self.states.len()).unwrap_or(u32::MAX)
    }

    fn state(&self, slot: u32) -> Result<&AtomicU32, ClaimError> {
        let index = usize::try_from(slot).ok();
        let found = index.and_then(|index| self.states.get(index));
        found.ok_or(ClaimError::Unknown { slot, slots: self.slots() })
    }

    /// Whether nobody holds the slot at the moment.
    ///
    /// # Errors
    /// If there is no such slot.
    pub fn is_free(&self, slot: u32) -> Result<bool, ClaimError> {
        Ok(self.state(slot)?.load(Ordering::Acquire) == 0)
    }

    /// Holds a slot together with other readers.
    ///
    /// # Errors
    /// If it is being written, or there is none.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<ReadClaim, ClaimError> {
        let one_more = |state: u32| (state < READERS_MAX).then(|| state + 1);
        let outcome =
            self.state(slot)?.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more);
        match outcome {
            Ok(_) => Ok(ReadClaim { claims: Arc::clone(self), slot }),
            Err(_) => Err(ClaimError::Written(slot)),
        }
    }

    /// Holds a slot alone.
    ///
    /// # Errors
    /// If somebody holds it, or there is none.
    pub fn write(self: &Arc<Self>, slot: u32) -> Result<WriteClaim, ClaimError> {
        let outcome =
            self.state(slot)?.compare_exchange(0, WRITTEN, Ordering::Acquire, Ordering::Relaxed);
        match outcome {
            Ok(_) => Ok(WriteClaim { claims: Arc::clone(self), slot }),
            Err(WRITTEN) => Err(ClaimError::Written(slot)),
            Err(_) => Err(ClaimError::Read(slot)),
        }
    }

    fn release(&self, slot: u32, release: impl Fn(&AtomicU32)) {
        if let Ok(state) = self.state(slot) {
            release(state);
        }
    }
}

/// A slot that is held, for reading or alone.
pub trait Claim: Debug {
    /// Which slot it is.
    #[must_use]
    fn slot(&self) -> u32;
}

/// A slot that others may hold for reading, too. Dropping it gives the slot back.
#[derive(Debug)]
pub struct ReadClaim {
    claims: Arc<Claims>,
    slot: u32,
}

impl Claim for ReadClaim {
    fn slot(&self) -> u32 {
        self.slot
    }
}

impl Drop for ReadClaim {
    fn drop(&mut self) {
        self.claims.release(self.slot, |state| {
            state.fetch_sub(1, Ordering::Release);
        });
    }
}

/// A slot that nobody else holds. Dropping it gives the slot back.
#[derive(Debug)]
pub struct WriteClaim {
    claims: Arc<Claims>,
    slot: u32,
}

impl Claim for WriteClaim {
    fn slot(&self) -> u32 {
        self.slot
    }
}

impl WriteClaim {
    /// Goes on as one reader, without a moment in which nobody holds the slot.
    #[must_use]
    pub fn into_read(self) -> ReadClaim {
        let read = ReadClaim { claims: Arc::clone(&self.claims), slot: self.slot };
        self.claims.release(self.slot, |state| state.store(1, Ordering::Release));
        // The slot is the reader's now. No slot has this number, so nothing is given back.
        let mut gone = self;
        gone.slot = u32::MAX;
        read
    }
}

impl Drop for WriteClaim {
    fn drop(&mut self) {
        self.claims.release(self.slot, |state| state.store(0, Ordering::Release));
    }
}

#[cfg(test)]
#[path = "claims_test.rs"]
mod tests;
