//! Slots that this process writes itself, not an engine: for example, blocks fetched from a peer.

use super::error::{AllocateError, CommitError};
use super::leases::Holdings;
use super::memory::{CommitKind, Fresh, Refused, sum};
use super::session::{Commit, Seat, Session};
use super::shared::Shared;
use crate::checksum::{Checksum, Summing};
use kvasir_blocks::{SlotId, TierBlock};
use kvasir_memory::{AccessError, WriteSlot};
use kvasir_proto::types::SequenceHash;
use std::sync::Arc;

/// A slot that its owner fills without the session's lock. Dropping it frees the slot. Unlike a lease it has no
/// deadline: the owner limits its lifetime.
#[derive(Debug)]
pub struct Filling {
    /// Both are present until the slot is registered. The writer is dropped before the slot is freed.
    writer: Option<WriteSlot>,
    fresh: Option<Fresh>,
    /// Checksum state, as long as bytes are written once and in order.
    in_order: Option<InOrder>,
    place: Place,
}

/// The first bytes of a slot, checksummed before they were written.
#[derive(Debug, Default)]
struct InOrder {
    bytes: usize,
    summing: Summing,
}

/// A permit: counts one slot towards the session's limit of written slots.
#[derive(Debug)]
struct Place(Arc<Seat>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.with_holdings(|holdings| holdings.filling -= 1);
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let given_back = (self.writer.take(), self.fresh.take());
        if given_back.1.is_some() {
            drop(given_back);
            // A task may be waiting for a slot.
            self.place.0.shared.wake.notify_one();
        }
    }
}

/// The remainder of a [`Filling`] whose slot a device writes. Drop it after the slot.
#[derive(Debug)]
pub struct Detached(Filling);

/// A block that was filled and registered. While this exists, its slot stays unchanged.
#[derive(Debug)]
pub struct Filled {
    /// The result of the registration.
    pub kind: CommitKind,
    _block: TierBlock,
}

impl Session {
    /// Allocates exactly `count` slots to fill. They count towards the session's limit of leased slots.
    ///
    /// # Errors
    /// [`AllocateError`] states how to fix the request.
    pub fn fill(&self, count: usize) -> Result<Vec<Filling>, AllocateError> {
        let seat = self.seat();
        let shared = &seat.shared;
        if count == 0 {
            return Err(AllocateError::Nothing);
        }
        let max = shared.config.session.leased_slots_max;
        let fresh = seat.try_with_holdings(|holdings: &mut Holdings| {
            let leased = holdings.leased();
            if leased.saturating_add(count) > max {
                return Err(AllocateError::Limit { count, leased, max });
            }
            let fresh = shared.memory.allocate(count)?;
            holdings.filling += fresh.len();
            Ok(fresh)
        })?;
        let places = fresh.into_iter().map(|fresh| (fresh, Place(Arc::clone(seat))));
        let filling = places.filter_map(|(fresh, place)| {
            // The previous user released the memory before the slot was freed.
            let Ok(writer) = shared.memory.arena.write(fresh.slot().0) else {
                tracing::error!(slot = fresh.slot().0, "a free slot is in use, which is a defect");
                return None;
            };
            let writer = Some(writer);
            let fresh = Some(fresh);
            Some(Filling { writer, fresh, in_order: Some(InOrder::default()), place })
        });
        Ok(filling.collect())
    }
}

impl Filling {
    /// The slot in the engines' memory.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.fresh.as_ref().map_or(SlotId(u32::MAX), Fresh::slot)
    }

    /// The first `bytes` bytes for writing, if only this process writes the memory.
    #[must_use]
    pub fn as_mut_slice(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let slice = self.writer.as_mut()?.as_mut_slice()?.get_mut(..bytes)?;
        self.in_order = None;
        Some(slice)
    }

    /// Copies bytes into the slot, for any kind of memory. If the calls write the block in order, from its first byte
    /// on, the checksum is computed from `bytes`, and [`commit`](Self::commit) need not read the slot again.
    ///
    /// # Errors
    /// If the range is outside the block.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        let Some(writer) = &mut self.writer else { return Ok(()) };
        let in_order = self.in_order.take().filter(|before| before.bytes == offset);
        writer.write(offset, bytes)?;
        self.in_order = in_order.map(|InOrder { bytes: before, mut summing }| {
            summing.update(bytes);
            InOrder { bytes: before + bytes.len(), summing }
        });
        Ok(())
    }

    /// Returns the slot's guard for a device that writes it, and the remainder. `None` if the slot is gone.
    #[must_use]
    pub fn detach(mut self) -> Option<(WriteSlot, Detached)> {
        let writer = self.writer.take()?;
        Some((writer, Detached(self)))
    }

    /// Zeroes the padding, computes the checksum and registers the block, which is kept while the returned value
    /// exists. Blocks the thread while it reads the block, unless the block was [written](Self::write) in order.
    ///
    /// # Errors
    /// [`CommitError`]. The slot is freed then, and no block is registered.
    pub fn commit(mut self, commit: &Commit) -> Result<Filled, CommitError> {
        let shared = Arc::clone(&self.place.0.shared);
        let registered = self.try_commit(commit);
        let counters = &shared.counters;
        match &registered {
            Ok(Filled { kind: CommitKind::New, .. }) => counters.commits_new.up(),
            Ok(Filled { kind: CommitKind::Duplicate, .. }) => counters.commits_duplicate.up(),
            Ok(Filled { kind: CommitKind::Existing, .. }) => counters.commits_existing.up(),
            Err(_) => {
                counters.commits_refused.up();
                // The slot is free: a task may be waiting for one.
                shared.wake.notify_one();
            }
        }
        registered
    }

    /// Computes the checksum and registers the block. Fails if the checksum differs from the stated one, or if the
    /// session has ended.
    fn try_commit(&mut self, commit: &Commit) -> Result<Filled, CommitError> {
        let seat = &self.place.0;
        let shared = &seat.shared;
        let slot = self.slot().0;
        let sequence = commit.identity.sequence;
        let (Some(writer), Some(fresh)) = (self.writer.take(), self.fresh.take()) else {
            return Err(CommitError::NotLeased { slot });
        };
        let found = sum_up(shared, writer, self.in_order.take(), sequence);
        let found =
            found.map_err(|error| CommitError::Unreadable { slot, reason: error.to_string() })?;
        if let Some(stated) = commit.checksum.filter(|stated| *stated != found) {
            return Err(CommitError::Checksum { stated: stated.0, found: found.0 });
        }
        // An ended session registers no more blocks.
        seat.try_with_holdings(|_| Ok::<_, CommitError>(()))?;
        match fresh.register(commit.identity, found, commit.priority) {
            Ok((kind, block)) => {
                shared.offer_block(&block, commit.priority);
                Ok(Filled { kind, _block: block })
            }
            Err((Refused::Identity, _free)) => Err(CommitError::Identity),
            Err((Refused::Register(error), _free)) => Err(error.into()),
        }
    }
}

impl Detached {
    /// Returns the slot's guard to the filling. Returns `None` if the guard belongs to another slot; then both slots
    /// are freed.
    #[must_use]
    pub fn attach(self, writer: WriteSlot) -> Option<Filling> {
        let Self(mut filling) = self;
        if writer.slot() != filling.slot().0 {
            // Drop the writer before the slot is freed.
            drop(writer);
            return None;
        }
        filling.writer = Some(writer);
        Some(filling)
    }
}

/// Computes the checksum of a filled slot. If the block was written in order and has no padding, the checksum of the
/// written bytes is used. Otherwise zeroes the padding and reads the slot. An engine that maps the memory can write to
/// the slot at any time, so each reader verifies the bytes again.
fn sum_up(
    shared: &Shared,
    mut writer: WriteSlot,
    in_order: Option<InOrder>,
    sequence: SequenceHash,
) -> Result<Checksum, AccessError> {
    let bytes = shared.block_bytes();
    if let Some(InOrder { summing, .. }) = in_order.filter(|at| at.bytes == bytes)
        && !shared.memory.has_padding()
    {
        return Ok(summing.seal(sequence.0));
    }
    shared.memory.clear_padding(&mut writer)?;
    sum(&writer.into_read(), bytes, sequence)
}
