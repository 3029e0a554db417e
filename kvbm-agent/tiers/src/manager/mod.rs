//! The manager: `kvasir-blocks` decides, storages carry out, and engines use it by sessions.
//!
//! - [`config`]: what it is made of. [`error`]: what it refuses, with the field and the fix.
//! - `memory`: the tier that engines read and write. `convert`: the words of plan and storages for one thing.
//! - `waiters`, `counters`, `shared`: what sessions and the driver have in common.
//! - `relay`, `records`, `executors`, `driver`: the one task that has transfers carried out.
//! - `leases`, [`session`], `onboard`: what one engine holds. `fill`, `lend`: slots that this process fills and sends itself.
//! - [`feed`]: what changed, for the index. [`metrics`]: figures. [`block_manager`]: all of it.
//!
//! Locks are taken in this order, and none is held across an await: holdings of a session, waiters, plan, pool, events.

pub mod block_manager;
pub mod config;
mod convert;
mod counters;
mod driver;
pub mod error;
mod executors;
pub mod feed;
mod fill;
mod leases;
mod lend;
mod memory;
pub mod metrics;
mod onboard;
mod records;
mod relay;
pub mod session;
mod shared;
mod waiters;

pub use block_manager::{KvBlockManager, Pin, ShutdownReport};
pub use config::{DiskTier, HostTier, ManagerConfig, SessionLimits, TierStorages};
pub use error::{
    AllocateError, CommitError, FeedTaken, PinError, ReadError, SessionError, StartError,
};
pub use feed::{EventFeed, FeedStep};
pub use fill::{Detached, Filled, Filling};
pub use lend::Loan;
pub use memory::CommitKind;
pub use metrics::ManagerMetrics;
pub use onboard::{OnboardRequest, Onboarded, StopReason, Stopped};
pub use session::{Commit, Committed, HeldBlock, LeasedSlot, Session};
