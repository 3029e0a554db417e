//! A source that is an engine's own publisher: `kvasir-engine`'s link follows it, replays, restarts and
//! losses included, and what it publishes goes into the agent's [`hub`](kvasir_feed::hub).
//!
//! Suspect blocks are dropped at once: an agent's stream cannot mark them.

mod config;
mod follow;
mod pool;

pub use config::{REPLAYS_MAX, RelayConfig, RelayError, common};
pub use follow::Relay;
pub use pool::EnginePool;
