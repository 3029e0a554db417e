//! Blocks of KV cache in four tiers, without their bytes: who owns a slot, which block is in it, what is evicted, what
//! is copied where, and what is told about it.
//!
//! No I/O, no clock, no tasks: time is an argument, and a transfer is a value that somebody else carries out.

mod identity;
mod planted;
mod tier;

pub mod events;
pub mod inactive;
pub mod layout;

pub mod lifecycle;
pub mod pool;
mod store;

pub mod gate;
pub mod manager;
pub mod plan;

#[cfg(test)]
mod simulation_test;

pub use events::{BlockEvent, Change, EventManager, PublishHandle, RegistrationHandle};
pub use gate::{Gate, GateConfig, GateInputs, GateVerdict};
pub use identity::{BlockIdentity, Checksum, Priority, SlotId};
pub use inactive::EvictionPolicy;
pub use layout::{BlockLayout, FullyContiguous, LayerSeparate, LayoutConfig};
pub use lifecycle::{
    BlockState, CompleteBlock, MutableBlock, PartialBlock, QuarantinedBlock, RegisteredBlock,
    Registration, WeakBlock,
};
pub use manager::{Found, KvBlockManagerConfig, KvBlockManagerState, ManagerStats, TierPool};
pub use plan::{
    Lane, LaneLimits, LaneStats, Offered, Outcome, Plan, Route, Settled, TierBlock, TransferId,
    TransferOrder, Verdict,
};
pub use pool::{Allocation, BlockPool};
pub use store::{
    BlockInfo, DuplicatePolicy, Evicted, Exhausted, PinId, PinsExhausted, PoolConfig,
    PoolConfigError, PoolStats, RegisterError, RestoreError, SlotState,
};
pub use tier::{BlockTier, BlockTiers, Device, Disk, Host, TierMarker, Volume};
