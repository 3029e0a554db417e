//! Reader-writer locks of slots that never wait: one writer, or any number of readers.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// State of a slot that is being written. Lower values count its readers.
const WRITTEN: u32 = u32::MAX;
/// Maximum readers of a slot at a time.
const READERS_MAX: u32 = u32::MAX - 1;

/// Why a slot could not be acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The slot does not exist.
    #[error("slot {slot} does not exist: the arena has {slots} slots")]
    Unknown {
        /// The slot.
        slot: u32,
        /// Number of slots.
        slots: u32,
    },
    /// The slot is being written.
    #[error("slot {0} is being written")]
    Written(u32),
    /// The slot is being read.
    #[error("slot {0} is being read")]
    Read(u32),
}

/// Lock states of the slots of a storage. Acquiring a claim never waits.
#[derive(Debug)]
pub struct Claims {
    states: Box<[AtomicU32]>,
}

impl Claims {
    /// Creates the states of free slots.
    #[must_use]
    pub fn new(slots: u32) -> Arc<Self> {
        Arc::new(Self { states: (0..slots).map(|_| AtomicU32::new(0)).collect() })
    }

    /// Number of slots.
    #[must_use]
    pub fn slots(&self) -> u32 {
        // The length was a u32 when the states were created.
        u32::try_from(self.states.len()).unwrap_or(u32::MAX)
    }

    fn state(&self, slot: u32) -> Result<&AtomicU32, ClaimError> {
        let index = usize::try_from(slot).ok();
        let found = index.and_then(|index| self.states.get(index));
        found.ok_or(ClaimError::Unknown { slot, slots: self.slots() })
    }

    /// Whether a slot is neither read nor written at the moment.
    ///
    /// # Errors
    /// If the slot does not exist.
    pub fn is_free(&self, slot: u32) -> Result<bool, ClaimError> {
        Ok(self.state(slot)?.load(Ordering::Acquire) == 0)
    }

    /// Acquires a slot for reading, shared with other readers.
    ///
    /// # Errors
    /// If the slot is being written, or does not exist.
    pub fn read(self: &Arc<Self>, slot: u32) -> Result<ReadClaim, ClaimError> {
        let one_more = |state: u32| (state < READERS_MAX).then(|| state + 1);
        let outcome =
            self.state(slot)?.fetch_update(Ordering::Acquire, Ordering::Relaxed, one_more);
        match outcome {
            Ok(_) => Ok(ReadClaim { claims: Arc::clone(self), slot }),
            Err(_) => Err(ClaimError::Written(slot)),
        }
    }

    /// Acquires a slot exclusively.
    ///
    /// # Errors
    /// If the slot is being read or written, or does not exist.
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

/// A claim to a slot, for reading or exclusive.
pub trait Claim: Debug {
    /// The slot's number.
    #[must_use]
    fn slot(&self) -> u32;
}

/// A shared claim to a slot. Dropping it releases the slot.
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

/// An exclusive claim to a slot. Dropping it releases the slot.
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
    /// Downgrades to a read claim. The slot is never free in between.
    #[must_use]
    pub fn into_read(self) -> ReadClaim {
        let read = ReadClaim { claims: Arc::clone(&self.claims), slot: self.slot };
        self.claims.release(self.slot, |state| state.store(1, Ordering::Release));
        // The read claim owns the slot now. No slot has this number, so the drop releases nothing.
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
