use crate::events::EventManager;
use crate::identity::SlotId;
use crate::plan::{AnyTier, TierBlock};
use crate::pool::BlockPool;
use crate::store::{
    BlockInfo, Evicted, PinId, PinsExhausted, PoolConfig, PoolConfigError, PoolStats, RestoreError,
    SlotState,
};
use crate::tier::{BlockTier, Device, Disk, Host, Volume};
use kvasir_proto::types::SequenceHash;
use std::sync::Arc;
use std::time::Duration;

/// The pool of any tier, for code that is not generic over tiers.
#[derive(Debug, Clone)]
pub enum TierPool {
    /// Pool of the accelerator's memory.
    Device(BlockPool<Device>),
    /// Pool of host memory.
    Host(BlockPool<Host>),
    /// Pool of a disk.
    Disk(BlockPool<Disk>),
    /// Pool of a volume.
    Volume(BlockPool<Volume>),
}

/// Evaluates one expression for the pool of any tier.
macro_rules! each {
    ($tier:expr, $pool:ident => $do:expr) => {
        match $tier {
            TierPool::Device($pool) => $do,
            TierPool::Host($pool) => $do,
            TierPool::Disk($pool) => $do,
            TierPool::Volume($pool) => $do,
        }
    };
}

fn wrapped<T: AnyTier>(pool: &BlockPool<T>, sequences: &[SequenceHash]) -> Vec<TierBlock> {
    pool.match_prefix(sequences).into_iter().map(T::wrap).collect()
}

impl TierPool {
    /// Creates the pool of a tier. Fails if `config` is out of range.
    pub(super) fn new(
        tier: BlockTier,
        config: PoolConfig,
        events: Arc<EventManager>,
    ) -> Result<Self, PoolConfigError> {
        Ok(match tier {
            BlockTier::Device => Self::Device(BlockPool::new(config, events)?),
            BlockTier::Host => Self::Host(BlockPool::new(config, events)?),
            BlockTier::Disk => Self::Disk(BlockPool::new(config, events)?),
            BlockTier::Volume => Self::Volume(BlockPool::new(config, events)?),
        })
    }

    pub(super) const fn device(&self) -> Option<&BlockPool<Device>> {
        if let Self::Device(pool) = self { Some(pool) } else { None }
    }

    pub(super) const fn host(&self) -> Option<&BlockPool<Host>> {
        if let Self::Host(pool) = self { Some(pool) } else { None }
    }

    pub(super) const fn disk(&self) -> Option<&BlockPool<Disk>> {
        if let Self::Disk(pool) = self { Some(pool) } else { None }
    }

    pub(super) const fn volume(&self) -> Option<&BlockPool<Volume>> {
        if let Self::Volume(pool) = self { Some(pool) } else { None }
    }

    /// Gauges and counters.
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        each!(self, pool => pool.stats())
    }

    /// See [`BlockPool::match_prefix`].
    #[must_use]
    pub fn match_prefix(&self, sequences: &[SequenceHash]) -> Vec<TierBlock> {
        each!(self, pool => wrapped(pool, sequences))
    }

    /// See [`BlockPool::contains`].
    #[must_use]
    pub fn contains(&self, sequence: SequenceHash) -> bool {
        each!(self, pool => pool.contains(sequence))
    }

    /// See [`BlockPool::slot_state`].
    #[must_use]
    pub fn slot_state(&self, slot: SlotId) -> Option<SlotState> {
        each!(self, pool => pool.slot_state(slot))
    }

    /// See [`BlockPool::slot_block`].
    #[must_use]
    pub fn slot_block(&self, slot: SlotId) -> Option<BlockInfo> {
        each!(self, pool => pool.slot_block(slot))
    }

    /// See [`BlockPool::free_slot`].
    #[must_use]
    pub fn free_slot(&self, evicts: bool) -> Option<SlotId> {
        each!(self, pool => pool.free_slot(evicts))
    }

    /// See [`BlockPool::restore`].
    ///
    /// # Errors
    /// Same errors as [`BlockPool::restore`].
    pub fn restore(&self, block: BlockInfo) -> Result<(), RestoreError> {
        each!(self, pool => pool.restore(block))
    }

    /// See [`BlockPool::expire_pins`].
    pub fn expire_pins(&self, now: Duration) -> usize {
        each!(self, pool => pool.expire_pins(now))
    }

    /// See [`BlockPool::reset_inactive`].
    pub fn reset_inactive(&self) -> Vec<Evicted> {
        each!(self, pool => pool.reset_inactive())
    }

    /// Pins a block of this pool, as [`BlockPool::pin`]. Returns `None` if the block is in another tier.
    ///
    /// # Errors
    /// Same errors as [`BlockPool::pin`].
    pub fn pin(
        &self,
        block: &TierBlock,
        deadline: Duration,
    ) -> Result<Option<PinId>, PinsExhausted> {
        match (self, block) {
            (Self::Device(pool), TierBlock::Device(block)) => pool.pin(block, deadline).map(Some),
            (Self::Host(pool), TierBlock::Host(block)) => pool.pin(block, deadline).map(Some),
            (Self::Disk(pool), TierBlock::Disk(block)) => pool.pin(block, deadline).map(Some),
            (Self::Volume(pool), TierBlock::Volume(block)) => pool.pin(block, deadline).map(Some),
            _ => Ok(None),
        }
    }

    /// See [`BlockPool::unpin`].
    pub fn unpin(&self, pin: PinId) -> bool {
        each!(self, pool => pool.unpin(pin))
    }
}
