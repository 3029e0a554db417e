//! Slot table of one pool under one lock: each slot's owner, its block, and the eviction candidates.
//!
//! [`Held`] is a counted reference to a slot. Every block handle wraps a `Held`, so dropping any handle calls
//! [`Slots::release`]. The slot's state alone determines the effect.

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
