//! Plans copies of blocks between tiers and processes their outcomes.
//!
//! A [`Lane`] plans one direction. Candidates are queued by priority, and transfers are started within limits. When a
//! transfer has stopped, its executor reports one [`Outcome`]. Only then may its slot be reused, whatever the outcome.
//! A copy is registered only if every byte arrived and both checksums agree. [`Plan`] contains the lanes of all tiers.
//! This module moves no bytes: orders are values, and time is an argument. It never retries by itself.

mod filter;
mod lane;
mod limits;
mod order;
mod queue;
mod routes;
mod settled;
mod tier_block;

#[cfg(test)]
mod plan_test;

pub use filter::FrequencyFilter;
pub use lane::Lane;
pub use limits::{LaneLimits, LaneStats, Offered};
pub use order::{Failure, Outcome, Route, Side, TransferId, TransferOrder};
pub use routes::Plan;
pub use settled::{Settled, Verdict};
pub use tier_block::{AnyTier, TierBlock};
