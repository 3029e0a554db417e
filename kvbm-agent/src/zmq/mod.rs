//! ZMQ publisher like an engine's: PUB and replay ROUTER in vLLM's wire format, for consumers that expect an engine.
//!
//! Live frames are `[topic, sequence, payload]`. A replay is requested with `["", start]`. The answer is one message
//! `["", topic, sequence, payload]` for every batch in the journal from `start` on, then `["", "", ff × 8, ""]`.
//! Numbers are those of the agent's stream. They begin again with a new incarnation, as an engine's do when it
//! restarts. A subscriber that missed batches, or is slow, requests a replay. Batches evicted from the journal are lost
//! here, as they are at an engine.
//!
//! **Events have no tokens.** vLLM's `BlockStored` carries the tokens of its blocks, but an agent hashes tokens and
//! drops them. Therefore `token_ids` is empty. `local_hashes` (a key of our own, in vLLM's map form) has the hashes of
//! the tokens, one for each of `block_hashes`. A Kvasir index or agent reads this key if the engine is configured as
//! `custom`. Other readers ignore it: they see blocks without tokens, like those of vLLM's offloading connectors, and
//! cannot match prompts with them.
//!
//! The time stamp of a batch is no time. It is derived from the incarnation, so that batches of different incarnations
//! are never confused ([`Fingerprint`](kvasir_proto::types::Fingerprint)).
//!
//! **Limits.** A publisher that never waits loses messages: beyond [`UNSENT_BYTES_MAX`] unsent bytes, nothing more is
//! sent until subscribers have taken some. The sockets are those of the crate `zeromq`, which trusts the lengths that a
//! peer claims. Only trusted peers may reach them, hence the loopback default.

mod config;
mod frames;
mod payload;
mod publish;
mod replay;
mod room;
mod socket;

pub use config::{
    MESSAGE_OVERHEAD_BYTES, REPLAY_STALL_TIMEOUT, REPLAY_UNSENT_BYTES_MAX, REPLAYS_UNSENT_MAX,
    TOPIC_BYTES_MAX, UNSENT_BYTES_MAX, ZMQ_TOPIC_DEFAULT, ZmqConfig, ZmqConfigError, ZmqStatus,
};
pub use socket::{ZmqEndpoints, ZmqSockets};
