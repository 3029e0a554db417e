//! Relays an engine's own publisher. The link of `kvasir-engine` follows the engine through replays, restarts and
//! losses. The events go into the agent's [`hub`](kvasir_feed::hub).
//!
//! Suspect blocks are dropped immediately, because an agent's stream cannot mark them.

mod config;
mod follow;
mod pool;

pub use config::{REPLAYS_MAX, RelayConfig, RelayError, common};
pub use follow::Relay;
pub use pool::EnginePool;
