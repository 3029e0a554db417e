//! Which blocks are copied from one tier to another, when, and what becomes of the copies.
//!
//! A [`Lane`] is the plan of one direction: candidates wait by priority, transfers are started within limits, and each
//! ends with one [`Outcome`] that its executor reports when it has stopped. Only then is its slot used again, whatever
//! happened; only if every byte arrived and both checksums agree is the copy registered. [`Plan`] has the lanes of all
//! tiers. Nothing here moves a byte: orders are values, and time is an argument. Nothing is tried again by itself.

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
