//! Blocks between agents whose blocks lie differently: which bytes of whose block go where. Pure.
//!
//! - [`part`]: the part of a block that one agent needs of another one. [`exchange`]: what is sent on one connection.

pub mod exchange;
pub mod part;

#[cfg(test)]
mod convert_test;

pub use exchange::{Exchange, ExchangeError, shard_of};
pub use part::{PartError, PartPlan, Scatter};
