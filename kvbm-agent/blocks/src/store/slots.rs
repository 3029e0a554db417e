#![expect(clippy::indexing_slicing, reason = "slots are numbered by this file only")]

use super::pins::Pins;
use super::slot::{Content, Slot};
use super::{
    BlockInfo, DuplicatePolicy, Evicted, Exhausted, PinId, PinsExhausted, PoolConfig, PoolStats,
    RegisterError, RestoreError, SlotState,
};
use crate::events::{EventManager, Registration, RegistrationHandle};
use crate::identity::{BlockIdentity, Checksum, Priority, SlotId};
use crate::inactive::{ClassLists, InactiveEntry, InactiveIndex};
use crate::planted::{Planted, is_planted};
use crate::tier::BlockTier;
use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum hash-table capacity reserved at the start; the table of a larger pool grows.
const RESERVED_BLOCKS_MAX: usize = 1 << 20;

/// The slot under which a block was registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registered {
    /// In its own slot, as the first block with its content.
    New,
    /// In its own slot, as a duplicate of the first block with its content.
    Duplicate,
    /// In another slot, which already has the block; a reference to it was counted. The owner keeps the own slot.
    Existing(BlockInfo),
}

/// All slots of a pool. A caller may change only slots that it owns; [`super::Held`] ensures this.
#[derive(Debug)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: ClassLists,
    /// Registered blocks, without duplicates.
    by_hash: FxHashMap<SequenceHash, SlotId>,
    inactive: Box<dyn InactiveIndex>,
    pins: Pins,
    duplicates: DuplicatePolicy,
    tier: BlockTier,
    events: Arc<EventManager>,
    /// Gauges and counters, updated with each change.
    stats: PoolStats,
    /// Buffer for evicted slots, kept to avoid allocations.
    victims: Vec<SlotId>,
}

impl Slots {
    pub(super) fn new(config: &PoolConfig, tier: BlockTier, events: Arc<EventManager>) -> Self {
        let mut free = ClassLists::new(config.blocks, 1);
        // A stack: push the first slot last, so that it is allocated first.
        for slot in (0..config.blocks).rev() {
            free.push_back(0, SlotId(slot));
        }
        let reserved = (config.blocks as usize).min(RESERVED_BLOCKS_MAX);
        Self {
            slots: (0..config.blocks).map(|_| Slot::FREE).collect(),
            free,
            by_hash: FxHashMap::with_capacity_and_hasher(reserved, Default::default()),
            inactive: config.eviction.index(config.blocks),
            pins: Pins::new(config.pins_max),
            duplicates: config.duplicates,
            tier,
            events,
            stats: PoolStats::default(),
            victims: Vec::new(),
        }
    }

    /// Takes a free slot. If none is free, evicts a block, which is also returned.
    pub(crate) fn allocate_one(&mut self) -> Result<(SlotId, Option<Evicted>), Exhausted> {
        if let Some(slot) = self.free.pop_back(0) {
            self.mark_mutable(slot);
            return Ok((slot, None));
        }
        let mut slots = Vec::new();
        let mut evicted = Vec::new();
        self.allocate(1, &mut slots, &mut evicted)?;
        let slot = slots.pop();
        slot.map(|slot| (slot, evicted.pop())).ok_or(self.exhausted(1))
    }

    /// Takes `count` slots: free ones first, then slots of evicted blocks, which are added to `evicted`. Fails, and
    /// takes no slot, if too few blocks are evictable.
    pub(crate) fn allocate(
        &mut self,
        count: usize,
        slots: &mut Vec<SlotId>,
        evicted: &mut Vec<Evicted>,
    ) -> Result<(), Exhausted> {
        let missing = count.saturating_sub(self.free.len());
        self.victims.clear();
        let is_short = missing > 0 && !self.inactive.evict(missing, &mut self.victims);
        if is_short && !(is_planted(Planted::AllocateSome) && self.free.len() > 0) {
            self.stats.allocations_refused += 1;
            return Err(self.exhausted(count));
        }
        for at in 0..self.victims.len() {
            evicted.extend(self.reset_evicted(self.victims[at]));
        }
        for _ in 0..count {
            let Some(slot) = self.free.pop_back(0) else { break };
            self.mark_mutable(slot);
            slots.push(slot);
        }
        Ok(())
    }

    /// Returns a free slot without reserving it: another call may take it. If all slots are used and `evicts` is true,
    /// evicts an unused block first.
    pub(crate) fn free_slot(&mut self, evicts: bool) -> Option<SlotId> {
        self.victims.clear();
        if self.free.len() == 0 && evicts && self.inactive.evict(1, &mut self.victims) {
            for at in 0..self.victims.len() {
                self.reset_evicted(self.victims[at]);
            }
        }
        let slot = self.free.pop_back(0)?;
        self.free.push_back(0, slot);
        Some(slot)
    }

    fn mark_mutable(&mut self, slot: SlotId) {
        debug_assert_eq!(self.state(slot), SlotState::Free);
        self.slots[slot.index()].content = Content::Mutable;
        self.stats.mutable += 1;
        self.stats.allocations += 1;
    }

    fn exhausted(&self, wanted: usize) -> Exhausted {
        Exhausted { wanted, free: self.free.len(), inactive: self.inactive.len() }
    }

    /// Drops one reference to a slot. The last reference frees the slot, or makes its registered block evictable. A
    /// quarantined slot stays reserved.
    pub(super) fn release(&mut self, slot: SlotId) {
        let at = &mut self.slots[slot.index()];
        match &mut at.content {
            Content::Free => debug_assert!(false, "{slot:?} was released twice"),
            Content::Mutable => {
                self.stats.mutable -= 1;
                self.reset(slot);
            }
            Content::Quarantined => self.stats.abandoned += 1,
            Content::Registered { block, shares, .. } => {
                *shares -= 1;
                if *shares == 0 {
                    let entry = entry(block);
                    self.stats.active -= 1;
                    self.inactive.insert(entry);
                }
            }
            Content::Duplicate { primary, shares, .. } => {
                *shares -= 1;
                if *shares == 0 {
                    let primary = *primary;
                    self.stats.duplicates -= 1;
                    self.reset(slot);
                    self.release(primary);
                }
            }
            Content::Withdrawn { shares } => {
                *shares -= 1;
                if *shares == 0 {
                    self.stats.withdrawn -= 1;
                    self.reset(slot);
                }
            }
        }
    }

    /// Frees a slot. Ends its registration, if any.
    fn reset(&mut self, slot: SlotId) {
        let at = &mut self.slots[slot.index()];
        at.generation = at.generation.wrapping_add(1);
        at.content = Content::Free;
        self.free.push_back(0, slot);
    }

    /// Frees the slot of a block that the eviction policy has removed. Returns the block.
    fn reset_evicted(&mut self, slot: SlotId) -> Option<Evicted> {
        let Content::Registered { block, .. } = &self.slots[slot.index()].content else {
            debug_assert!(false, "{slot:?} was not inactive");
            return None;
        };
        let block = *block;
        if !is_planted(Planted::EvictUnderneath) {
            self.by_hash.remove(&block.identity.sequence);
        }
        self.stats.evictions += 1;
        self.reset(slot);
        Some(block)
    }

    /// Adds a reference to a registered block, which is then not evictable.
    pub(crate) fn share(&mut self, slot: SlotId) {
        match &mut self.slots[slot.index()].content {
            Content::Registered { block, shares, .. } => {
                if *shares == 0 {
                    self.inactive.remove(&entry(block));
                    self.stats.active += 1;
                    self.stats.resurrections += 1;
                }
                *shares += 1;
            }
            Content::Duplicate { shares, .. } | Content::Withdrawn { shares } => *shares += 1,
            Content::Free | Content::Mutable | Content::Quarantined => {
                debug_assert!(false, "{slot:?} is not shared");
            }
        }
    }

    /// Adds a reference to a registered block, unless the slot's generation has changed. Returns whether the reference
    /// was added.
    pub(super) fn share_again(&mut self, slot: SlotId, generation: u32) -> bool {
        let at = &self.slots[slot.index()];
        let is_same = at.generation == generation;
        let is_shared =
            matches!(at.content, Content::Registered { .. } | Content::Duplicate { .. });
        if is_same && is_shared {
            self.share(slot);
        }
        is_same && is_shared
    }

    /// Registers a block whose bytes are in its slot. Returns `New`, or as [`register_again`](Self::register_again) if
    /// its hash is registered already.
    pub(crate) fn register(&mut self, block: BlockInfo) -> Result<Registered, RegisterError> {
        let slot = block.slot;
        debug_assert_eq!(self.state(slot), SlotState::Mutable);
        if let Some(primary) = self.find(block.identity.sequence) {
            return self.register_again(block, primary);
        }
        let registration = self.publish(&block.identity)?;
        self.stats.mutable -= 1;
        self.stats.active += 1;
        self.place(registration, block, 1);
        Ok(Registered::New)
    }

    /// Registers a block whose hash is registered at `primary`. Depending on the policy, the new copy stays as a
    /// duplicate, or the existing one is returned. Fails if the identities differ.
    fn register_again(
        &mut self,
        block: BlockInfo,
        primary: SlotId,
    ) -> Result<Registered, RegisterError> {
        let Some(first) = self.info(primary) else { return Err(RegisterError::Conflict) };
        if first.identity != block.identity {
            self.stats.conflicts += 1;
            return Err(RegisterError::Conflict);
        }
        self.inactive.touched(block.identity.sequence);
        self.share(primary);
        if self.duplicates == DuplicatePolicy::Reject {
            self.stats.duplicates_rejected += 1;
            return Ok(Registered::Existing(first));
        }
        self.slots[block.slot.index()].content = Content::Duplicate { primary, block, shares: 1 };
        self.stats.mutable -= 1;
        self.stats.duplicates += 1;
        self.stats.duplicates_allowed += 1;
        Ok(Registered::Duplicate)
    }

    fn publish(&mut self, identity: &BlockIdentity) -> Result<RegistrationHandle, RegisterError> {
        let registration = Registration { tier: self.tier, identity: *identity };
        let published = self.events.prepare(registration).publish();
        self.stats.conflicts += u64::from(published.is_err());
        Ok(published?)
    }

    fn place(&mut self, registration: RegistrationHandle, block: BlockInfo, shares: u32) {
        self.by_hash.insert(block.identity.sequence, block.slot);
        self.inactive.registered(&block.identity);
        self.inactive.touched(block.identity.sequence);
        self.stats.registrations += 1;
        let content = Content::Registered { _registration: registration, block, shares };
        self.slots[block.slot.index()].content = content;
    }

    /// Registers a block that was stored before the process started. The block is evictable. Fails if the slot is not
    /// free, or the hash is registered already.
    pub(crate) fn restore(&mut self, block: BlockInfo) -> Result<(), RestoreError> {
        let slot = block.slot;
        match self.state_of(slot) {
            None => return Err(RestoreError::NoSlot(slot)),
            Some(SlotState::Free) => {}
            Some(_) => return Err(RestoreError::NotFree(slot)),
        }
        if let Some(other) = self.find(block.identity.sequence) {
            return Err(RestoreError::Duplicate(other));
        }
        let registration = self.publish(&block.identity)?;
        self.free.remove(slot);
        self.place(registration, block, 0);
        self.inactive.insert(entry(&block));
        Ok(())
    }

    /// Ends the registration of a block with wrong bytes, even if it is in use. The slot is freed when the last
    /// reference is dropped. Returns false if the slot has no registered block.
    pub(crate) fn withdraw(&mut self, slot: SlotId) -> bool {
        let at = &mut self.slots[slot.index()];
        if let Content::Duplicate { primary, shares, .. } = at.content {
            at.generation = at.generation.wrapping_add(1);
            at.content = Content::Withdrawn { shares };
            self.stats.duplicates -= 1;
            self.stats.withdrawn += 1;
            self.stats.withdrawals += 1;
            self.release(primary);
            return true;
        }
        let Content::Registered { block, shares, .. } = &at.content else { return false };
        let block = *block;
        let shares = *shares;
        self.by_hash.remove(&block.identity.sequence);
        if shares == 0 {
            self.inactive.remove(&entry(&block));
            self.inactive.unregistered(&block.identity);
            self.reset(slot);
        } else {
            at.generation = at.generation.wrapping_add(1);
            at.content = Content::Withdrawn { shares };
            self.inactive.unregistered(&block.identity);
            self.stats.active -= 1;
            self.stats.withdrawn += 1;
        }
        self.stats.withdrawals += 1;
        true
    }

    /// Finds a registered block by its hash, and adds a reference to it.
    pub(crate) fn take_match(&mut self, sequence: SequenceHash) -> Option<BlockInfo> {
        self.stats.match_requests += 1;
        let slot = self.find(sequence)?;
        let block = self.info(slot)?;
        self.stats.match_hits += 1;
        self.inactive.touched(sequence);
        self.share(slot);
        Some(block)
    }

    /// The slot of a registered block.
    pub(crate) fn find(&self, sequence: SequenceHash) -> Option<SlotId> {
        self.by_hash.get(&sequence).copied()
    }

    /// Evicts all inactive blocks that the eviction policy allows.
    pub(crate) fn reset_inactive(&mut self) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        self.victims.clear();
        while self.inactive.evict(1, &mut self.victims) {
            while let Some(slot) = self.victims.pop() {
                evicted.extend(self.reset_evicted(slot));
            }
        }
        evicted
    }

    pub(crate) fn quarantine(&mut self, slot: SlotId) {
        debug_assert_eq!(self.state(slot), SlotState::Mutable);
        self.slots[slot.index()].content = Content::Quarantined;
        self.stats.mutable -= 1;
        self.stats.quarantined += 1;
    }

    pub(crate) fn end_quarantine(&mut self, slot: SlotId) {
        debug_assert_eq!(self.state(slot), SlotState::Quarantined);
        self.slots[slot.index()].content = Content::Mutable;
        self.stats.quarantined -= 1;
        self.stats.mutable += 1;
    }

    /// Sets the checksum of a registered block, unless it has one.
    pub(crate) fn set_checksum(&mut self, slot: SlotId, checksum: Checksum) {
        if let Some(block) = self.block_mut(slot) {
            block.checksum.get_or_insert(checksum);
        }
    }

    /// Sets the priority of a block in use. For a duplicate, sets the priority of the first block.
    pub(crate) fn set_priority(&mut self, slot: SlotId, priority: Priority) {
        if let Content::Duplicate { primary, .. } = self.slots[slot.index()].content {
            self.set_priority(primary, priority);
        }
        if let Some(block) = self.block_mut(slot) {
            block.priority = priority;
        }
    }

    pub(crate) fn pin(&mut self, slot: SlotId, deadline: Duration) -> Result<PinId, PinsExhausted> {
        let pin = self.pins.insert(slot, deadline)?;
        self.share(slot);
        Ok(pin)
    }

    pub(crate) fn unpin(&mut self, pin: PinId) -> bool {
        let slot = self.pins.remove(pin);
        if let Some(slot) = slot {
            self.release(slot);
        }
        slot.is_some()
    }

    /// Releases the pins that have expired at `now`. Returns their number.
    pub(crate) fn expire_pins(&mut self, now: Duration) -> usize {
        let mut expired = 0;
        while let Some(slot) = self.pins.pop_expired(now) {
            self.release(slot);
            self.stats.pins_expired += 1;
            expired += 1;
        }
        expired
    }

    pub(super) fn generation(&self, slot: SlotId) -> u32 {
        self.slots[slot.index()].generation
    }

    /// The state of a slot; `None` if the slot does not exist.
    pub(crate) fn state_of(&self, slot: SlotId) -> Option<SlotState> {
        self.slots.get(slot.index()).map(Slot::state)
    }

    fn state(&self, slot: SlotId) -> SlotState {
        self.slots[slot.index()].state()
    }

    /// The registered block in a slot.
    pub(crate) fn info(&self, slot: SlotId) -> Option<BlockInfo> {
        match &self.slots.get(slot.index())?.content {
            Content::Registered { block, .. } | Content::Duplicate { block, .. } => Some(*block),
            Content::Free | Content::Mutable | Content::Quarantined | Content::Withdrawn { .. } => {
                None
            }
        }
    }

    fn block_mut(&mut self, slot: SlotId) -> Option<&mut BlockInfo> {
        match &mut self.slots[slot.index()].content {
            Content::Registered { block, .. } | Content::Duplicate { block, .. } => Some(block),
            Content::Free | Content::Mutable | Content::Quarantined | Content::Withdrawn { .. } => {
                None
            }
        }
    }

    pub(crate) fn stats(&self) -> PoolStats {
        PoolStats {
            blocks: self.slots.len() as u64,
            free: self.free.len() as u64,
            inactive: self.inactive.len() as u64,
            pins: self.pins.len() as u64,
            ..self.stats
        }
    }
}

const fn entry(block: &BlockInfo) -> InactiveEntry {
    InactiveEntry { slot: block.slot, identity: block.identity, priority: block.priority }
}
