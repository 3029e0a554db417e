//! Combines the pools of a worker's tiers: finds blocks and plans copies between tiers.

mod config;
mod found;
mod state;
mod tier_pool;

#[cfg(test)]
mod manager_test;

pub use config::{ConfigError, KvBlockManagerConfig, TierConfig};
pub use found::Found;
pub use state::{KvBlockManagerState, ManagerStats};
pub use tier_pool::TierPool;
