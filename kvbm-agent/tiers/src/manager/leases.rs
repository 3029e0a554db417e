//! Slots and blocks of one session: write leases, and blocks held for reading. No I/O, no clock.

use super::memory::Fresh;
use kvasir_blocks::TierBlock;
use kvasir_memory::WriteSlot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A slot that an engine writes. Dropping it frees the slot.
#[derive(Debug)]
pub(super) struct Lease {
    // Dropped before the slot is freed.
    pub(super) writer: WriteSlot,
    pub(super) block: Fresh,
    /// When the lease expires.
    pub(super) deadline: Duration,
    /// Whether the engine was notified that the lease has expired.
    pub(super) is_over_told: bool,
    /// The session had an earlier lease of this slot, and was not notified of its expiry. A call for this slot may
    /// refer to the earlier lease, so this lease can be neither written nor committed.
    pub(super) is_ambiguous: bool,
}

/// A block that an engine reads.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) block: TierBlock,
    /// Reference count within the session.
    pub(super) times: u32,
}

/// Leases and held blocks of a session, by slot.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub(super) leases: BTreeMap<u32, Lease>,
    pub(super) held: BTreeMap<u32, Held>,
    /// Slots whose leases expired without notifying the engine.
    lapsed: BTreeSet<u32>,
    /// Leases that are being committed.
    pub(super) committing: usize,
    /// Slots that this process fills itself.
    pub(super) filling: usize,
    pub(super) is_ended: bool,
}

impl Holdings {
    /// Number of leased slots, including slots being committed or filled.
    pub(super) fn leased(&self) -> usize {
        self.leases.len() + self.committing + self.filling
    }

    /// Leases a slot until `deadline`.
    pub(super) fn lease(&mut self, writer: WriteSlot, block: Fresh, deadline: Duration) {
        let slot = block.slot().0;
        let is_ambiguous = self.lapsed.remove(&slot);
        let lease = Lease { writer, block, deadline, is_over_told: false, is_ambiguous };
        self.leases.insert(slot, lease);
    }

    /// Returns the lease that the engine means by this slot number. `None` is reported to the engine as an expired
    /// lease, so later leases of the slot are unambiguous.
    pub(super) fn lease_mut(&mut self, slot: u32) -> Option<&mut Lease> {
        self.lapsed.remove(&slot);
        self.leases.get_mut(&slot).filter(|lease| !lease.is_ambiguous)
    }

    /// Removes and returns that lease, under the same conditions as [`lease_mut`](Self::lease_mut).
    pub(super) fn take_lease(&mut self, slot: u32) -> Option<Lease> {
        self.lease_mut(slot)?;
        self.leases.remove(&slot)
    }

    /// Whether one more slot may be held, with a limit of `max` including running commits.
    pub(super) fn has_room(&self, slot: u32, max: usize) -> bool {
        self.held.contains_key(&slot) || self.held.len() + self.committing < max
    }

    /// Adds a reference to a held block.
    pub(super) fn add_reference(&mut self, block: TierBlock) {
        let slot = block.slot().0;
        let held = self.held.entry(slot).or_insert(Held { block, times: 0 });
        held.times = held.times.saturating_add(1);
    }

    /// Drops one reference to a held block, and returns the block after the last one. `None` if the slot is not held.
    pub(super) fn release(&mut self, slot: u32) -> Option<Option<Held>> {
        let held = self.held.get_mut(&slot)?;
        held.times -= 1;
        Some(if held.times == 0 { self.held.remove(&slot) } else { None })
    }

    /// Removes the leases that expired before `now - grace`. Their slots are no longer written.
    pub(super) fn take_over(&mut self, now: Duration, grace: Duration) -> Vec<Lease> {
        let is_over = |_: &u32, lease: &mut Lease| lease.deadline.saturating_add(grace) <= now;
        let over: Vec<Lease> =
            self.leases.extract_if(.., is_over).map(|(_, lease)| lease).collect();
        let untold = over.iter().filter(|lease| !lease.is_over_told);
        self.lapsed.extend(untold.map(|lease| lease.block.slot().0));
        over
    }

    /// Ends the session, and returns all leases and held blocks.
    pub(super) fn end_session(&mut self) -> (Vec<Lease>, Vec<Held>) {
        self.is_ended = true;
        let leases = std::mem::take(&mut self.leases).into_values().collect();
        (leases, std::mem::take(&mut self.held).into_values().collect())
    }
}
