//! The slots of one pool under one lock: who owns each, which block it holds, and what may be evicted.
//!
//! [`Held`] is a share in a slot. Every handle of a block is one with a type around it, so dropping any handle ends in
//! [`Slots::release`], and what that means is the slot's state alone.

mod config;
mod error;
mod held;
mod pins;
mod slot;
mod slots;
mod stats;

pub use config::{DuplicatePolicy, PoolConfig, PoolConfigError};
pub use error::{Exhausted, PinsExhausted, RegisterError, RestoreError};
pub(crate) use held::{Held, Shared, WeakHeld};
pub use pins::PinId;
pub use slot::{BlockInfo, Evicted, SlotState};
pub(crate) use slots::{Registered, Slots};
pub use stats::PoolStats;
