//! Manages KV-cache blocks in four tiers without their bytes: ownership of slots, registration, eviction, copies
//! between tiers, and events.
//!
//! No I/O, no clock, no tasks: time is an argument, and a transfer is a value that the caller executes.
//!
//! Reading order: `tier` and `identity`, `layout`, `events`, `inactive`, `store` (slots under one lock), `lifecycle`
//! (typed handles), `pool`, `plan`, `gate`, `manager`. Then `sets` and `gather`, which peers share and which use only
//! `layout`. No module refers to a later one.
//!
//! Tiers are types: a block of one tier is not accepted by another tier's pool.
//!
//! ```compile_fail,E0308
//! use kvasir_blocks::{BlockPool, Device, Host, RegisteredBlock};
//!
//! fn mix(host: &BlockPool<Host>, block: &RegisteredBlock<Device>) {
//!     host.pin(block, std::time::Duration::ZERO).ok();
//! }
//! ```
//!
//! Operations that a block's state does not allow do not compile. An unfilled block can't be registered:
//!
//! ```compile_fail,E0599
//! use kvasir_blocks::{Host, MutableBlock};
//!
//! fn skip(block: MutableBlock<Host>) {
//!     block.register();
//! }
//! ```
//!
//! A filled block that is not committed can't be registered either:
//!
//! ```compile_fail,E0599
//! use kvasir_blocks::{Host, PartialBlock};
//!
//! fn skip(block: PartialBlock<Host>) {
//!     block.register();
//! }
//! ```
//!
//! A block in use can't begin a second sequence:
//!
//! ```compile_fail,E0382
//! use kvasir_blocks::{Host, MutableBlock};
//! use kvasir_proto::hash::Seed;
//!
//! fn twice(block: MutableBlock<Host>) {
//!     let first = block.init_sequence(Seed(1));
//!     let second = block.init_sequence(Seed(2));
//! }
//! ```
//!
//! A registered block can't be written, and the slot of a running transfer can't be registered:
//!
//! ```compile_fail,E0599
//! use kvasir_blocks::{BlockIdentity, Host, QuarantinedBlock};
//!
//! fn early(block: QuarantinedBlock<Host>, identity: BlockIdentity) {
//!     block.complete(identity);
//! }
//! ```

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

pub mod gather;
pub mod sets;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod simulation_test;

pub use events::{BlockEvent, Change, EventManager, PublishHandle, RegistrationHandle};
pub use gate::{Gate, GateConfig, GateInputs, GateVerdict};
pub use gather::{CopyLimits, CopyOp, CopyPlan, CopyRank};
pub use identity::{BlockIdentity, Checksum, Priority, SlotId};
pub use inactive::EvictionPolicy;
pub use layout::{
    AnyLayout, BlockInSlot, BlockLayout, FullyContiguous, LayerSeparate, LayoutConfig, LayoutForm,
};
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
pub use sets::{
    BlockSet, BlockSetDescription, BlockSetId, BlockSetLayout, BlockSetLimits, BlockSetRegistry,
    Fence, Registrar, RemoteBlockSet, RemoteBlocks, RemoteBlocksMut, SerializedBlockLayout,
    TransferGuard,
};
pub use store::{
    BlockInfo, DuplicatePolicy, Evicted, Exhausted, PinId, PinsExhausted, PoolConfig,
    PoolConfigError, PoolStats, RegisterError, RestoreError, SlotState,
};
pub use tier::{BlockTier, BlockTiers, Device, Disk, Host, TierMarker, Volume};
