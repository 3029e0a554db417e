//! The pure cores of the router: from overlap and load to a decision.
//!
//! Nothing here does I/O, reads a clock or draws random numbers: times are [`Duration`](std::time::Duration)s counted
//! from wherever the caller likes, and randomness is a function that the caller hands in. Shells around it ask the
//! index, speak to clients and to other replicas.

mod cost;
mod error;

pub use cost::{Cost, CostConfig, CostInput, TierBlocks, TierCredits};
pub use error::ConfigError;
