//! Slots that this process fills by itself, as from a peer.

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

/// A slot that is filled outside of the session's lock, by whoever has this. Dropped, the slot is free. Unlike a lease it has
/// no deadline: its owner bounds how long it exists.
#[derive(Debug)]
pub struct Filling {
    /// Both are there until the slot is registered. The writer goes first, before the slot is free.
    writer: Option<WriteSlot>,
    fresh: Option<Fresh>,
    /// What was written so far, if each byte was written once and in order.
    in_order: Option<InOrder>,
    place: Place,
}

/// The first bytes of a slot, summed up before they were written there.
#[derive(Debug, Default)]
struct InOrder {
    bytes: usize,
    summing: Summing,
}

/// A place among the slots that the session may write.
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
            // Whoever waits for a slot may have it.
            self.place.0.shared.wake.notify_one();
        }
    }
}

/// What is left of a [`Filling`] whose slot a device writes. Drop it after the slot.
#[derive(Debug)]
pub struct Detached(Filling);

/// A block that was filled and registered. While this exists, its slot stays as it is.
#[derive(Debug)]
pub struct Filled {
    /// What became of it.
    pub kind: CommitKind,
    _block: TierBlock,
}

impl Session {
    /// Takes `count` slots to be filled, or none. They count among those that the session may write.
    ///
    /// # Errors
    /// [`AllocateError`] names what to do about it.
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
            // Whoever had the slot before has let go of it before it was free.
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
    /// Its slot in the engines' memory.
    #[must_use]
    pub fn slot(&self) -> SlotId {
        self.fresh.as_ref().map_or(SlotId(u32::MAX), Fresh::slot)
    }

    /// Its first `bytes` bytes, to be written, where this process alone writes the memory.
    #[must_use]
    pub fn as_mut_slice(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let slice = self.writer.as_mut()?.as_mut_slice()?.get_mut(..bytes)?;
        self.in_order = None;
        Some(slice)
    }

    /// Copies bytes into the slot, whatever its memory is. While each call continues the one before it, from the first byte on,
    /// the bytes are summed up where they come from, and [`commit`](Self::commit) does not read the slot again.
    ///
    /// # Errors
    /// If the range does not lie in a block.
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

    /// Gives the slot itself away, to a device that writes it. None if there is no slot any more.
    #[must_use]
    pub fn detach(mut self) -> Option<(WriteSlot, Detached)> {
        let writer = self.writer.take()?;
        Some((writer, Detached(self)))
    }

    /// Sets the padding to 0, sums up the slot's bytes and registers them as a block, which stays for as long as what is
    /// returned. Blocks the thread for as long as it takes to read the block, unless it was [written](Self::write) in order.
    ///
    /// # Errors
    /// [`CommitError`]; then the slot is free, and nothing is registered.
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
                // The slot is free: whoever waits for one may have it.
                shared.wake.notify_one();
            }
        }
        registered
    }

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
        // A session that has ended registers nothing more.
        seat.try_with_holdings(|_| Ok::<_, CommitError>(()))?;
        match fresh.register(commit.identity, found, commit.priority) {
            Ok((kind, block)) => {
                shared.offer(&block, commit.priority);
                Ok(Filled { kind, _block: block })
            }
            Err((Refused::Identity, _free)) => Err(CommitError::Identity),
            Err((Refused::Register(error), _free)) => Err(error.into()),
        }
    }
}

impl Detached {
    /// Takes the slot back. None if it is another one: both are free then.
    #[must_use]
    pub fn attach(self, writer: WriteSlot) -> Option<Filling> {
        let Self(mut filling) = self;
        if writer.slot() != filling.slot().0 {
            // Before the slot is free.
            drop(writer);
            return None;
        }
        filling.writer = Some(writer);
        Some(filling)
    }
}

/// What the bytes of a filled slot add up to. An engine that maps the memory can write to the slot at any moment, with or without
/// a lease: a second look proves no more than that the right bytes were written. Each reader verifies what it reads.
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
