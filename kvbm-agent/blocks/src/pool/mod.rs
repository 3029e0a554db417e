//! The pool of one tier's blocks.

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

/// The blocks of one tier: those in use (active), those that may be found and evicted (inactive), and free ones.
///
/// Everything happens under one lock. Clones are the same pool, which lives as long as a clone or a block of it; then
/// all its registrations end.
#[derive(Debug)]
pub struct BlockPool<T> {
    shared: Arc<Shared>,
    tier: PhantomData<fn() -> T>,
}

/// Blocks that a pool gave.
#[derive(Debug)]
#[must_use]
pub struct Allocation<T> {
    /// As many as were asked for.
    pub blocks: Vec<MutableBlock<T>>,
    /// What was evicted for them.
    pub evicted: Vec<Evicted>,
}

impl<T: TierMarker> BlockPool<T> {
    /// A pool of free blocks, whose registrations `events` publishes.
    ///
    /// # Errors
    /// [`PoolConfigError`] if a size is 0 or too large.
    pub fn new(config: PoolConfig, events: Arc<EventManager>) -> Result<Self, PoolConfigError> {
        Ok(Self { shared: Shared::new(config, T::TIER, events)?, tier: PhantomData })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &PoolConfig {
        &self.shared.config
    }

    /// A block in Reset: a free one, else one that is evicted for it.
    ///
    /// # Errors
    /// [`Exhausted`] if all blocks are in use, or needed by blocks in use.
    pub fn get_mutable_block(&self) -> Result<MutableBlock<T>, Exhausted> {
        let (slot, _evicted) = self.shared.lock().allocate_one()?;
        Ok(MutableBlock::new(self.held(slot)))
    }

    /// `count` blocks in Reset, or none: free ones first, then such as are evicted for them.
    ///
    /// # Errors
    /// [`Exhausted`] if there are not as many. Then nothing was evicted.
    pub fn get_mutable_blocks(&self, count: usize) -> Result<Allocation<T>, Exhausted> {
        let mut slots = Vec::new();
        let mut evicted = Vec::new();
        self.shared.lock().allocate(count, &mut slots, &mut evicted)?;
        let blocks = slots.into_iter().map(|slot| MutableBlock::new(self.held(slot)));
        Ok(Allocation { blocks: blocks.collect(), evicted })
    }

    /// The leading blocks of a prompt that are registered here, all in use from now on. Found under one lock.
    #[must_use]
    pub fn match_prefix(&self, sequences: &[SequenceHash]) -> Vec<RegisteredBlock<T>> {
        let found: Vec<BlockInfo> = {
            let mut slots = self.shared.lock();
            sequences.iter().map_while(|sequence| slots.take_match(*sequence)).collect()
        };
        found.into_iter().map(|block| self.registered(&block)).collect()
    }

    /// Of each hash the block that is registered here, in use from now on. Found under one lock.
    #[must_use]
    pub fn match_scattered(&self, sequences: &[SequenceHash]) -> Vec<Option<RegisteredBlock<T>>> {
        let found: Vec<Option<BlockInfo>> = {
            let mut slots = self.shared.lock();
            sequences.iter().map(|sequence| slots.take_match(*sequence)).collect()
        };
        found.into_iter().map(|block| block.map(|block| self.registered(&block))).collect()
    }

    /// Whether a block is registered here. Takes no share and counts as no use.
    #[must_use]
    pub fn contains(&self, sequence: SequenceHash) -> bool {
        self.shared.lock().find(sequence).is_some()
    }

    /// Registers a block whose bytes were in a slot before this pool was made: it is inactive from now on.
    ///
    /// # Errors
    /// [`RestoreError`] if the slot is not free, or the block can't be registered.
    pub fn restore(&self, block: BlockInfo) -> Result<(), RestoreError> {
        if !block.identity.is_consistent() {
            return Err(RestoreError::BadIdentity);
        }
        self.shared.lock().restore(block)
    }

    /// A slot that is free, for [`restore`](Self::restore): another call may take it first. If none is free and `evicts`, an
    /// unused block is evicted for it.
    #[must_use]
    pub fn free_slot(&self, evicts: bool) -> Option<SlotId> {
        self.shared.lock().free_slot(evicts)
    }

    /// Keeps a block in use until `deadline`, which is on the clock of [`BlockPool::expire_pins`].
    ///
    /// # Errors
    /// [`PinsExhausted`] if the pool has as many pins as it may have.
    pub fn pin(
        &self,
        block: &RegisteredBlock<T>,
        deadline: Duration,
    ) -> Result<PinId, PinsExhausted> {
        debug_assert!(Arc::ptr_eq(block.held().shared(), &self.shared), "a block of this pool");
        self.shared.lock().pin(block.slot(), deadline)
    }

    /// Ends a pin before its time. Whether it was still there.
    pub fn unpin(&self, pin: PinId) -> bool {
        self.shared.lock().unpin(pin)
    }

    /// Ends the pins whose deadline is not after `now`. How many.
    pub fn expire_pins(&self, now: Duration) -> usize {
        self.shared.lock().expire_pins(now)
    }

    /// Evicts all inactive blocks. With [`crate::EvictionPolicy::Lineage`], ancestors of blocks in use stay.
    pub fn reset_inactive(&self) -> Vec<Evicted> {
        self.shared.lock().reset_inactive()
    }

    /// What a slot is used for; none if there is no such slot.
    #[must_use]
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        self.shared.lock().state_of(slot)
    }

    /// The registered block of a slot.
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
