//! Sessions: one engine's interface to the block manager.

use super::error::{AllocateError, CommitError, ReadError, SessionError};
use super::leases::{Holdings, Lease};
use super::memory::{CommitKind, Refused, copy_out, sum};
use super::shared::Shared;
use crate::checksum::Checksum;
use kvasir_blocks::{BlockIdentity, BlockTier, Priority, SlotId, TierBlock};
use kvasir_memory::{AccessError, ReadSlot};
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A slot that the session may write until its lease expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeasedSlot {
    /// Number of the slot in the engines' memory.
    pub slot: SlotId,
}

/// Parameters of committing a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The block's identity.
    pub identity: BlockIdentity,
    /// The engine's checksum of the bytes, if known. It also detects a wrong copy into the slot.
    pub checksum: Option<Checksum>,
    /// The eviction priority.
    pub priority: Priority,
}

/// A block held by the session. Its slot stays unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldBlock {
    /// The block's slot in the engines' memory.
    pub slot: SlotId,
    /// The block's identity.
    pub identity: BlockIdentity,
    /// Checksum of the bytes.
    pub checksum: Checksum,
    /// The tier where the block was found.
    pub found_in: BlockTier,
}

/// A committed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The result of the commit.
    pub kind: CommitKind,
    /// The registered block, held by the session.
    pub block: HeldBlock,
}

/// One engine's leases and held blocks. Dropping it without [`end`](Self::end) means that the engine was lost. Blocks
/// are released immediately. Leased slots are released after lease and grace, because the engine may still write them.
#[derive(Debug)]
pub struct Session {
    seat: Arc<Seat>,
}

/// Why a block can't be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotHeld {
    Session(SessionError),
    /// The block was withdrawn concurrently and no longer has a checksum.
    Withdrawn,
    /// The session has reached its limit of held blocks.
    Limit {
        max: usize,
    },
}

/// The manager's state of a session.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) shared: Arc<Shared>,
    name: String,
    holdings: Mutex<Holdings>,
}

impl Seat {
    pub(super) fn new(shared: Arc<Shared>, name: String) -> Self {
        Self { shared, name, holdings: Mutex::default() }
    }

    /// Frees the slots of leases that expired at least `lease_grace` before `now`.
    pub(super) fn expire(&self, now: Duration) {
        let over = self.holdings.lock().take_over(now, self.shared.config.lease_grace);
        for lease in &over {
            let session = &*self.name;
            let slot = lease.block.slot().0;
            tracing::warn!(session, slot, "a lease has expired: its slot is free again");
        }
        self.shared.counters.leases_over.add_len(over.len());
    }

    /// Releases all leases and blocks immediately.
    pub(super) fn release_all(&self) {
        let (leases, held) = self.holdings.lock().end_session();
        drop((leases, held));
        self.shared.wake.notify_one();
    }

    /// Ends a session whose connection was lost, unless it has ended. Releases its held blocks. Its leased slots stay
    /// reserved until lease and grace period are over, because the engine may still write.
    fn mark_lost(&self) {
        let (leases, held) = {
            let mut holdings = self.holdings.lock();
            if holdings.is_ended {
                return;
            }
            holdings.end_session()
        };
        self.shared.counters.sessions_lost.up();
        self.shared.orphans.lock().extend(leases);
        drop(held);
        self.shared.wake.notify_one();
    }

    /// Checks that the manager is not stopping and the session has not ended.
    fn check(&self, holdings: &Holdings) -> Result<(), SessionError> {
        // Check this first, because a stopping manager ends its sessions.
        if self.shared.is_stopping() {
            return Err(SessionError::Stopping);
        }
        if holdings.is_ended {
            return Err(SessionError::Ended);
        }
        Ok(())
    }

    /// Runs `work` on the session's holdings, under their lock.
    pub(super) fn with_holdings<T>(&self, work: impl FnOnce(&mut Holdings) -> T) -> T {
        work(&mut self.holdings.lock())
    }

    /// Like [`with_holdings`](Self::with_holdings), but fails if the session has ended.
    pub(super) fn try_with_holdings<T, E: From<SessionError>>(
        &self,
        work: impl FnOnce(&mut Holdings) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut holdings = self.holdings.lock();
        self.check(&holdings)?;
        work(&mut holdings)
    }

    /// Holds a block for the session.
    ///
    /// # Errors
    /// [`NotHeld`]. The block is released then.
    pub(super) fn hold_block(
        &self,
        block: TierBlock,
        found_in: BlockTier,
    ) -> Result<HeldBlock, NotHeld> {
        self.hold_in(&mut self.holdings.lock(), block, found_in)
    }

    /// Holds a block, as [`hold_block`](Self::hold_block), under the lock of the holdings. Fails if the session has
    /// ended, the block was withdrawn, or the limit is reached.
    fn hold_in(
        &self,
        holdings: &mut Holdings,
        block: TierBlock,
        found_in: BlockTier,
    ) -> Result<HeldBlock, NotHeld> {
        self.check(holdings).map_err(NotHeld::Session)?;
        let checksum = block.checksum().ok_or(NotHeld::Withdrawn)?;
        let slot = block.slot();
        let identity = *block.identity();
        let max = self.shared.config.session.held_blocks_max;
        if !holdings.has_room(slot.0, max) {
            return Err(NotHeld::Limit { max });
        }
        holdings.add_reference(block);
        Ok(HeldBlock { slot, identity, checksum: Checksum(checksum.0), found_in })
    }

    /// How many more blocks the session may hold.
    ///
    /// # Errors
    /// If the session has ended.
    pub(super) fn room(&self) -> Result<usize, SessionError> {
        let holdings = self.holdings.lock();
        self.check(&holdings)?;
        let taken = holdings.held.len() + holdings.committing;
        Ok(self.shared.config.session.held_blocks_max.saturating_sub(taken))
    }
}

impl Session {
    pub(super) fn new(seat: Arc<Seat>) -> Self {
        Self { seat }
    }

    pub(super) fn seat(&self) -> &Arc<Seat> {
        &self.seat
    }

    fn shared(&self) -> &Shared {
        &self.seat.shared
    }

    /// The session's name in logs.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.seat.name
    }

    /// Leases exactly `count` slots for writing. The engine must stop writing before the lease expires. Its next call
    /// for an expired slot returns that the lease is over. Until then, a new lease of the same slot counts as expired,
    /// too, because a call could mean either lease.
    ///
    /// # Errors
    /// [`AllocateError`] states how to fix the request.
    pub fn allocate(
        &self,
        count: usize,
        lease: Duration,
    ) -> Result<Vec<LeasedSlot>, AllocateError> {
        let shared = self.shared();
        let max = shared.config.lease_max;
        let slots_max = shared.config.session.leased_slots_max;
        if count == 0 {
            return Err(AllocateError::Nothing);
        }
        if lease.is_zero() || lease > max {
            return Err(AllocateError::Lease { lease, max });
        }
        let mut holdings = self.seat.holdings.lock();
        self.seat.check(&holdings)?;
        let leased = holdings.leased();
        if leased.saturating_add(count) > slots_max {
            return Err(AllocateError::Limit { count, leased, max: slots_max });
        }
        let deadline = shared.now().saturating_add(lease);
        let fresh = shared.memory.allocate(count)?;
        let mut slots = Vec::with_capacity(fresh.len());
        for block in fresh {
            let slot = block.slot();
            // The previous user released the memory before the slot was freed.
            let Ok(writer) = shared.memory.arena.write(slot.0) else {
                tracing::error!(slot = slot.0, "a free slot is in use, which is a defect");
                continue;
            };
            holdings.lease(writer, block, deadline);
            slots.push(LeasedSlot { slot });
        }
        shared.counters.leases.add_len(slots.len());
        Ok(slots)
    }

    /// Copies bytes into a leased slot, for engines that do not map the memory.
    ///
    /// # Errors
    /// If the slot is not leased, or the range is outside the block.
    pub fn write(&self, slot: SlotId, offset: usize, bytes: &[u8]) -> Result<(), ReadError> {
        let mut holdings = self.seat.holdings.lock();
        self.seat.check(&holdings)?;
        let lease = holdings.lease_mut(slot.0);
        let lease = lease.ok_or(ReadError::NotHeld { slot: slot.0 })?;
        Ok(lease.writer.write(offset, bytes)?)
    }

    /// Zeroes the padding of a leased slot, computes the checksum and registers the block, which the session then
    /// holds. Blocks the thread while it reads the block.
    ///
    /// # Errors
    /// [`CommitError`]. The slot stays leased, unless the lease has expired.
    pub fn commit(&self, slot: SlotId, commit: &Commit) -> Result<Committed, CommitError> {
        let committed = self.try_commit(slot, commit);
        let counters = &self.shared().counters;
        match &committed {
            Ok(Committed { kind: CommitKind::New, .. }) => counters.commits_new.up(),
            Ok(Committed { kind: CommitKind::Duplicate, .. }) => counters.commits_duplicate.up(),
            Ok(Committed { kind: CommitKind::Existing, .. }) => counters.commits_existing.up(),
            Err(_) => counters.commits_refused.up(),
        }
        committed
    }

    /// Computes the checksum of a leased slot, registers the block, and holds it. Leaves the slot leased if the
    /// checksum differs from the stated one or the registration is refused.
    fn try_commit(&self, slot: SlotId, commit: &Commit) -> Result<Committed, CommitError> {
        let shared = self.shared();
        // `committing` counts the lease meanwhile, so that the lock is free while the checksum is computed.
        let Lease { mut writer, block, deadline, .. } = self.take_lease(slot)?;
        let cleared = shared.memory.clear_padding(&mut writer);
        // From here on, this process does not write the slot.
        let reader = writer.into_read();
        let bytes = shared.block_bytes();
        let found = cleared.and_then(|()| sum(&reader, bytes, commit.identity.sequence));
        drop(reader);
        let checked = found.map_err(|error| unreadable_slot(slot, &error)).and_then(|found| {
            match commit.checksum.filter(|stated| *stated != found) {
                Some(stated) => Err(CommitError::Checksum { stated: stated.0, found: found.0 }),
                None => Ok(found),
            }
        });
        let (refused, block) = match checked {
            Err(refused) => (refused, block),
            Ok(found) => match block.register(commit.identity, found, commit.priority) {
                Ok((kind, block)) => return self.hold_committed(kind, block, commit),
                Err((Refused::Identity, block)) => (CommitError::Identity, block),
                Err((Refused::Register(error), block)) => (error.into(), block),
            },
        };
        // The slot belongs to this session, so it is not in use elsewhere.
        let writer = shared.memory.arena.write(slot.0);
        let mut holdings = self.seat.holdings.lock();
        holdings.committing -= 1;
        if let (Ok(writer), false) = (writer, holdings.is_ended) {
            holdings.lease(writer, block, deadline);
        }
        Err(refused)
    }

    /// Takes a lease out of the holdings, and counts it as `committing`. Fails at the limit of held blocks, for a slot
    /// without a lease, and for an expired lease.
    fn take_lease(&self, slot: SlotId) -> Result<Lease, CommitError> {
        let shared = self.shared();
        let mut holdings = self.seat.holdings.lock();
        self.seat.check(&holdings)?;
        let max = shared.config.session.held_blocks_max;
        if holdings.held.len() + holdings.committing >= max {
            return Err(CommitError::Limit { max });
        }
        let slot = slot.0;
        if holdings.leases.get(&slot).is_some_and(|lease| lease.is_ambiguous) {
            return Err(CommitError::LeaseOver { slot });
        }
        let lease = holdings.lease_mut(slot).ok_or(CommitError::NotLeased { slot })?;
        if lease.deadline <= shared.now() {
            lease.is_over_told = true;
            return Err(CommitError::LeaseOver { slot });
        }
        let lease = holdings.take_lease(slot).ok_or(CommitError::NotLeased { slot })?;
        holdings.committing += 1;
        Ok(lease)
    }

    /// Offers a registered block to the next lower tier, and holds it for the session.
    fn hold_committed(
        &self,
        kind: CommitKind,
        block: TierBlock,
        commit: &Commit,
    ) -> Result<Committed, CommitError> {
        let shared = self.shared();
        shared.offer_block(&block, commit.priority);
        let slot = block.slot().0;
        let held = {
            let mut holdings = self.seat.holdings.lock();
            // `committing` has reserved room among the held blocks.
            holdings.committing -= 1;
            self.seat.hold_in(&mut holdings, block, shared.memory.tier())
        };
        let block = held.map_err(|why| match why {
            NotHeld::Session(ended) => ended.into(),
            NotHeld::Limit { max } => CommitError::Limit { max },
            NotHeld::Withdrawn => {
                let reason = "the block was withdrawn meanwhile".to_owned();
                CommitError::Unreadable { slot, reason }
            }
        })?;
        Ok(Committed { kind, block })
    }

    /// Releases a leased slot, which the engine no longer writes. Returns false if the slot was not leased.
    pub fn abort(&self, slot: SlotId) -> bool {
        let lease = self.seat.holdings.lock().take_lease(slot.0);
        let was_leased = lease.is_some();
        drop(lease);
        if was_leased {
            self.shared().counters.leases_aborted.up();
            self.shared().wake.notify_one();
        }
        was_leased
    }

    /// Holds the leading blocks of a prompt that are already in the engines' memory, up to the session's limit.
    ///
    /// # Errors
    /// If the session has ended.
    pub fn hold_prefix(&self, sequences: &[SequenceHash]) -> Result<Vec<HeldBlock>, SessionError> {
        let shared = self.shared();
        let wanted = sequences.get(..self.seat.room()?).unwrap_or(sequences);
        let mut held = Vec::new();
        for block in shared.memory.match_prefix(wanted) {
            shared.offer_block(&block, Priority::default());
            match self.seat.hold_block(block, shared.memory.tier()) {
                Ok(block) => held.push(block),
                Err(NotHeld::Session(ended)) => return Err(ended),
                Err(NotHeld::Withdrawn | NotHeld::Limit { .. }) => break,
            }
        }
        Ok(held)
    }

    /// Returns a verified copy of a held block. Blocks the thread while it copies.
    ///
    /// # Errors
    /// [`ReadError::Corrupt`] if the bytes are wrong. The block is withdrawn, and no bytes are returned.
    pub fn read(&self, slot: SlotId) -> Result<Vec<u8>, ReadError> {
        self.verified(slot, copy_out).map(|(copy, _)| copy)
    }

    /// The committed checksum of a held block; `None` if the slot is not held.
    #[must_use]
    pub fn checksum(&self, slot: SlotId) -> Option<Checksum> {
        let holdings = self.seat.holdings.lock();
        holdings.held.get(&slot.0)?.block.checksum().map(|checksum| Checksum(checksum.0))
    }

    /// Verifies a held block in place, for engines that read the memory themselves.
    ///
    /// # Errors
    /// Same errors as [`read`](Self::read).
    pub fn verify(&self, slot: SlotId) -> Result<Checksum, ReadError> {
        let in_place = |reader: &ReadSlot, bytes, sequence| {
            sum(reader, bytes, sequence).map(|found| ((), found))
        };
        self.verified(slot, in_place).map(|((), found)| found)
    }

    /// Reads a held block with `read`, and compares its checksum. A corrupt block is withdrawn from its tier.
    fn verified<T>(
        &self,
        slot: SlotId,
        read: impl FnOnce(&ReadSlot, usize, SequenceHash) -> Result<(T, Checksum), AccessError>,
    ) -> Result<(T, Checksum), ReadError> {
        let shared = self.shared();
        let block = {
            let holdings = self.seat.holdings.lock();
            self.seat.check(&holdings)?;
            let held = holdings.held.get(&slot.0).ok_or(ReadError::NotHeld { slot: slot.0 })?;
            // An additional handle keeps the block in its slot while it is read, even if the session releases it.
            held.block.clone()
        };
        let slot = slot.0;
        let unreadable = |reason: String| ReadError::Unreadable { slot, reason };
        let reader = shared.memory.arena.read(slot);
        let reader = reader.map_err(|error| unreadable(error.to_string()))?;
        let sequence = block.identity().sequence;
        let outcome = read(&reader, shared.block_bytes(), sequence);
        drop(reader);
        let (bytes, found) = outcome.map_err(|error| unreadable(error.to_string()))?;
        let stated = block.checksum().map(|checksum| Checksum(checksum.0));
        if stated != Some(found) {
            if block.withdraw() {
                shared.report_corrupt(&block);
            }
            return Err(ReadError::Corrupt { slot });
        }
        shared.counters.reads_verified.up();
        Ok((bytes, found))
    }

    /// Drops one of the session's references to a block. Returns whether the block was held.
    pub fn release(&self, slot: SlotId) -> bool {
        let released = self.seat.holdings.lock().release(slot.0);
        let was_held = released.is_some();
        if let Some(Some(held)) = released {
            self.shared().release(held);
        }
        was_held
    }

    /// Ends the session and releases everything immediately. The engine must no longer read or write any slot.
    pub fn end(&self) {
        self.seat.release_all();
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.seat.mark_lost();
    }
}

fn unreadable_slot(slot: SlotId, error: &AccessError) -> CommitError {
    CommitError::Unreadable { slot: slot.0, reason: error.to_string() }
}
