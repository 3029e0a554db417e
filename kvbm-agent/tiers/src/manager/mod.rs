//! The block manager: `kvasir-blocks` plans, storages execute, and engines connect by sessions.
//!
//! - [`config`]: configuration. [`error`]: errors, each with the field and the fix.
//! - `memory`: the tier that engines read and write. `convert`: conversions between the types of plan and storages.
//! - `waiters`, `counters`, `shared`: state shared by sessions and the driver.
//! - `relay`, `records`, `executors`, `driver`: the task that executes transfers.
//! - `leases`, [`session`], `onboard`: slots and blocks of one engine. `fill`, `lend`: slots that this process fills
//!   and sends itself.
//! - [`feed`]: the event stream for the index. [`metrics`]: metrics. [`block_manager`]: the manager itself.
//!
//! Lock order: holdings of a session, waiters, plan, pool, events. No lock is held across an await.

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
