//! A source that is an engine's own publisher: `kvasir-engine`'s link follows it, replays, restarts and
//! losses included, and what it says goes into the agent's [`hub`](kvasir_feed::hub).
//!
//! What is doubtful is dropped at once: an agent says what is held, and cannot say that it is not sure.

mod config;
mod follow;

pub use config::{REPLAYS_MAX, RelayConfig, RelayError, common};
pub use follow::Relay;
