//! The pool of one tier: allocates, finds, pins and evicts blocks.

use crate::events::EventManager;
use crate::identity::{BlockIdentity, SlotId};
use crate::lifecycle::{Block, MutableBlock, RegisteredBlock};
use crate::store::{
    BlockInfo, Evicted, Exhausted, Held, PinId, PinsExhausted, PoolConfig, PoolConfigError,
    PoolStats, RestoreError, Shared, SlotState,
};
use crate::tier::TierMarker;
use kvasir_proto::types::SequenceHash;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
mod pool_test;

/// The blocks of one tier: active (in use), inactive (can be found and evicted) and free.
///
/// One lock protects the pool. Clones share it. The pool lives as long as a clone or one of its blocks; then all its
/// registrations end.
#[derive(Debug)]
pub struct BlockPool<T> {
    shared: Arc<Shared>,
    tier: PhantomData<fn() -> T>,
}

/// Blocks that were allocated together.
#[derive(Debug)]
#[must_use]
pub struct Allocation<T> {
    /// The allocated blocks, exactly as many as requested.
    pub blocks: Vec<MutableBlock<T>>,
    /// The blocks that were evicted to make room.
    pub evicted: Vec<Evicted>,
}

impl<T: TierMarker> BlockPool<T> {
    /// Creates a pool of free blocks. `events` publishes its registrations.
    ///
    /// # Errors
    /// [`PoolConfigError`] if a size is 0 or too large.
    pub fn new(config: PoolConfig, events: Arc<EventManager>) -> Result<Self, PoolConfigError> {
        Ok(Self { shared: Shared::new(config, T::TIER, events)?, tier: PhantomData })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// Allocates an empty block (state Reset). Evicts one if none is free.
    ///
    /// # Errors
    /// [`Exhausted`] if all blocks are in use, or are ancestors of blocks in use.
    pub fn get_mutable_block(&self) -> Result<MutableBlock<T>, Exhausted> {
        let (slot, _evicted) = self.shared.lock().allocate_one()?;
        Ok(MutableBlock::new(self.held(slot)))
    }

    /// Allocates exactly `count` empty blocks (state Reset): free ones first, then evicted ones.
    ///
    /// # Errors
    /// [`Exhausted`] if the pool can't provide `count` blocks. Nothing is evicted then.
    pub fn get_mutable_blocks(&self, count: usize) -> Result<Allocation<T>, Exhausted> {
        let mut slots = Vec::new();
        let mut evicted = Vec::new();
        self.shared.lock().allocate(count, &mut slots, &mut evicted)?;
        let blocks = slots.into_iter().map(|slot| MutableBlock::new(self.held(slot)));
        Ok(Allocation { blocks: blocks.collect(), evicted })
    }

    /// Returns the leading blocks of a prompt that are registered here, found in one critical section. The handles keep
    /// them in use.
    #[must_use]
    pub fn match_prefix(&self, sequences: &[SequenceHash]) -> Vec<RegisteredBlock<T>> {
        let found: Vec<BlockInfo> = {
            let mut slots = self.shared.lock();
            sequences.iter().map_while(|sequence| slots.take_match(*sequence)).collect()
        };
        found.into_iter().map(|block| self.registered(&block)).collect()
    }

    /// Returns the registered block of each hash, found in one critical section. The handles keep the blocks in use.
    #[must_use]
    pub fn match_scattered(&self, sequences: &[SequenceHash]) -> Vec<Option<RegisteredBlock<T>>> {
        let found: Vec<Option<BlockInfo>> = {
            let mut slots = self.shared.lock();
            sequences.iter().map(|sequence| slots.take_match(*sequence)).collect()
        };
        found.into_iter().map(|block| block.map(|block| self.registered(&block))).collect()
    }

    /// Whether a block is registered here. Takes no reference and does not count as a use.
    #[must_use]
    pub fn contains(&self, sequence: SequenceHash) -> bool {
        self.shared.lock().find(sequence).is_some()
    }

    /// Registers a block whose bytes were in a slot before this pool was created, as an inactive block.
    ///
    /// # Errors
    /// [`RestoreError`] if the slot is not free, or the block can't be registered.
    pub fn restore(&self, block: BlockInfo) -> Result<(), RestoreError> {
        if !block.identity.is_consistent() {
            return Err(RestoreError::BadIdentity);
        }
        self.shared.lock().restore(block)
    }

    /// Returns a free slot for [`restore`](Self::restore). The slot is not reserved: another call may take it first. If
    /// no slot is free and `evicts` is set, evicts an unused block.
    #[must_use]
    pub fn free_slot(&self, evicts: bool) -> Option<SlotId> {
        self.shared.lock().free_slot(evicts)
    }

    /// Pins a block: keeps it in use until `deadline`, on the clock of [`BlockPool::expire_pins`].
    ///
    /// # Errors
    /// [`PinsExhausted`] if the pool has its maximum number of pins.
    pub fn pin(
        &self,
        block: &RegisteredBlock<T>,
        deadline: Duration,
    ) -> Result<PinId, PinsExhausted> {
        debug_assert!(Arc::ptr_eq(block.held().shared(), &self.shared), "a block of this pool");
        self.shared.lock().pin(block.slot(), deadline)
    }

    /// Ends a pin early. Returns whether the pin existed.
    pub fn unpin(&self, pin: PinId) -> bool {
        self.shared.lock().unpin(pin)
    }

    /// Ends the pins whose deadline is not after `now`. Returns their number.
    pub fn expire_pins(&self, now: Duration) -> usize {
        self.shared.lock().expire_pins(now)
    }

    /// Evicts all inactive blocks. With [`crate::EvictionPolicy::Lineage`], ancestors of blocks in use remain.
    pub fn reset_inactive(&self) -> Vec<Evicted> {
        self.shared.lock().reset_inactive()
    }

    /// The state of a slot; `None` if the slot does not exist.
    #[must_use]
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        self.shared.lock().state_of(slot)
    }

    /// The registered block in a slot.
    #[must_use]
    pub fn slot_block(&self, slot: SlotId) -> Option<BlockInfo> {
        self.shared.lock().info(slot)
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        self.shared.lock().stats()
    }

    fn held(&self, slot: SlotId) -> Held {
        Held::new(Arc::clone(&self.shared), slot)
    }

    fn registered(&self, block: &BlockInfo) -> RegisteredBlock<T> {
        let identity: BlockIdentity = block.identity;
        RegisteredBlock::new(self.held(block.slot), identity)
    }
}

impl<T> Clone for BlockPool<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), tier: PhantomData }
    }
}
