//! What one session holds: slots that it writes, and blocks that it reads. No I/O, no clock.

use super::memory::Fresh;
use kvasir_blocks::TierBlock;
use kvasir_memory::WriteSlot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A slot that an engine writes. Dropped, it is free.
#[derive(Debug)]
pub(super) struct Lease {
    // Dropped before the slot is free.
    pub(super) writer: WriteSlot,
    pub(super) block: Fresh,
    /// When the engine stops writing.
    pub(super) deadline: Duration,
    /// The engine was told that it is over.
    pub(super) is_over_told: bool,
    /// The session had the slot before, and was not told that this lease was over: what it says of the slot may be meant
    /// for the earlier lease, so it can neither write nor commit it.
    pub(super) is_ambiguous: bool,
}

/// A block that an engine reads.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) block: TierBlock,
    /// How often it was given to the session.
    pub(super) times: u32,
}

/// What a session holds, by slot.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    pub(super) leases: BTreeMap<u32, Lease>,
    pub(super) held: BTreeMap<u32, Held>,
    /// Slots whose leases were over without the engine being told.
    lapsed: BTreeSet<u32>,
    /// Leases that are being committed at the moment.
    pub(super) committing: usize,
    /// Slots that this process fills by itself.
    pub(super) filling: usize,
    pub(super) is_ended: bool,
}

impl Holdings {
    /// Slots that are leased, those included that are being committed or filled here.
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

    /// The lease of a slot that the engine names, as it means it. If there is none, the engine is told so now.
    pub(super) fn lease_mut(&mut self, slot: u32) -> Option<&mut Lease> {
        self.lapsed.remove(&slot);
        self.leases.get_mut(&slot).filter(|lease| !lease.is_ambiguous)
    }

    /// Takes that lease.
    pub(super) fn take_lease(&mut self, slot: u32) -> Option<Lease> {
        self.lease_mut(slot)?;
        self.leases.remove(&slot)
    }

    /// Whether one more slot may be held, at most `max`, those of commits under way included.
    pub(super) fn has_room(&self, slot: u32, max: usize) -> bool {
        self.held.contains_key(&slot) || self.held.len() + self.committing < max
    }

    /// Holds a block once more.
    pub(super) fn hold(&mut self, block: TierBlock) {
        let slot = block.slot().0;
        let held = self.held.entry(slot).or_insert(Held { block, times: 0 });
        held.times = held.times.saturating_add(1);
    }

    /// Holds a block once less; it comes back when that was the last time. None if the slot is not held.
    pub(super) fn release(&mut self, slot: u32) -> Option<Option<Held>> {
        let held = self.held.get_mut(&slot)?;
        held.times -= 1;
        Some(if held.times == 0 { self.held.remove(&slot) } else { None })
    }

    /// Takes the leases that were over before `now - grace`: nobody writes their slots any more.
    pub(super) fn take_over(&mut self, now: Duration, grace: Duration) -> Vec<Lease> {
        let is_over = |_: &u32, lease: &mut Lease| lease.deadline.saturating_add(grace) <= now;
        let over: Vec<Lease> =
            self.leases.extract_if(.., is_over).map(|(_, lease)| lease).collect();
        let untold = over.iter().filter(|lease| !lease.is_over_told);
        self.lapsed.extend(untold.map(|lease| lease.block.slot().0));
        over
    }

    /// Everything, for good.
    pub(super) fn end(&mut self) -> (Vec<Lease>, Vec<Held>) {
        self.is_ended = true;
        let leases = std::mem::take(&mut self.leases).into_values().collect();
        (leases, std::mem::take(&mut self.held).into_values().collect())
    }
}
