use crate::backend::FetchFault;
use crate::limits::{FILL_BLOCKS_MAX, INLINE_BYTES_MAX, RECEIVE_BYTES_MAX};
use kvasir_blocks::{BlockIdentity, Priority};
use kvasir_tiers::Checksum;
use kvasir_tiers::manager::{AllocateError, Commit, CommitError, Filled, Filling, Session};
use tokio::task::spawn_blocking;

/// Allocates slots for the blocks of a fetch.
pub(super) struct Slots<'a> {
    session: &'a Session,
    block_bytes: usize,
    slots: Vec<Filling>,
}

impl<'a> Slots<'a> {
    /// Creates an allocator for a session, for blocks of this size.
    pub(super) const fn new(session: &'a Session, block_bytes: usize) -> Self {
        Self { session, block_bytes, slots: Vec::new() }
    }

    /// Returns the next slot, and allocates several if none is left. `due` is the number of blocks still expected.
    pub(super) fn next(&mut self, due: usize) -> Result<Filling, FetchFault> {
        if let Some(slot) = self.slots.pop() {
            return Ok(slot);
        }
        let fits = RECEIVE_BYTES_MAX / self.block_bytes.max(1);
        let count = fits.clamp(1, FILL_BLOCKS_MAX).min(due.max(1));
        self.slots = self.some(count)?;
        self.slots.pop().ok_or_else(no_slot)
    }

    /// Allocates `count` slots, or a single slot if fewer than `count` are available.
    pub(super) fn some(&self, count: usize) -> Result<Vec<Filling>, FetchFault> {
        let session = self.session;
        let slots = session.fill(count).or_else(|_too_many| session.fill(1));
        slots.map_err(|error| match error {
            AllocateError::Session(_) => FetchFault::Ended,
            AllocateError::Nothing
            | AllocateError::Lease { .. }
            | AllocateError::Limit { .. }
            | AllocateError::Exhausted(_) => FetchFault::NoRoom(error.to_string()),
        })
    }

    /// Bytes of a block.
    #[cfg(feature = "nixl")]
    pub(super) const fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Registers a complete block. Computes the checksum of a large block on a blocking thread.
    pub(super) async fn commit(
        &self,
        slot: Filling,
        identity: BlockIdentity,
        checksum: Option<Checksum>,
    ) -> Result<Filled, FetchFault> {
        let commit = Commit { identity, checksum, priority: Priority::default() };
        let committed = if self.block_bytes > INLINE_BYTES_MAX {
            let committed = spawn_blocking(move || slot.commit(&commit)).await;
            // The panic was logged.
            committed.map_err(|_panic| FetchFault::Lost("the agent failed".to_owned()))?
        } else {
            slot.commit(&commit)
        };
        committed.map_err(|error| of_commit(&error))
    }
}

/// Converts the error of a commit. For wrong bytes, the fault is the peer's; for all other errors, it is this agent's.
fn of_commit(error: &CommitError) -> FetchFault {
    match error {
        CommitError::Session(_) => FetchFault::Ended,
        CommitError::Checksum { .. } | CommitError::Identity | CommitError::Register(_) => {
            FetchFault::Corrupt(error.to_string())
        }
        CommitError::NotLeased { .. }
        | CommitError::LeaseOver { .. }
        | CommitError::Limit { .. }
        | CommitError::Unreadable { .. } => FetchFault::NoRoom(error.to_string()),
    }
}

pub(super) fn no_slot() -> FetchFault {
    FetchFault::NoRoom("no slot is free".to_owned())
}
