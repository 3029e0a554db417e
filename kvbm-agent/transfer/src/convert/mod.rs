//! Converts blocks between agents with different layouts: plans which bytes of an owner's block go where. Pure.
//!
//! - [`part`]: the part of a block that another agent needs. [`exchange`]: what is sent on one connection.

pub mod exchange;
pub mod part;

#[cfg(test)]
mod convert_test;

pub use exchange::{Exchange, ExchangeError, shard_of};
pub use part::{PartError, PartPlan, Scatter};
