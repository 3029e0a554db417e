//! A publisher as engines have them: PUB and replay ROUTER in vLLM's wire format, for consumers that expect an
//! engine there.
//!
//! Live frames are `[topic, sequence, payload]`. A replay is requested with `["", start]` and answered with
//! `["", topic, sequence, payload]` for every batch that the journal still has from `start` on, then
//! `["", "", ff × 8, ""]`. Numbers are those of the agent's stream; they begin again with a new incarnation, as an
//! engine's do when it restarts. A subscriber that missed something, or is slow, gets it by replay; what the journal
//! has dropped is gone here, as it is at an engine.
//!
//! **Tokens are not there.** vLLM's `BlockStored` carries the tokens of its blocks; an agent has hashed them and let
//! them go. So events have empty `token_ids`, and in `local_hashes` (a key of our own, in vLLM's map form) what was
//! made of the tokens, one for each of `block_hashes`. A Kvasir index or agent that is configured so that the engine
//! is a `custom` one reads that. Others pass the key over: they see blocks without tokens, as vLLM's offloading
//! connectors announce them, and cannot match prompts with them.
//!
//! The time stamp of a batch is none: it is made of the incarnation, so that a batch of another incarnation is never
//! taken for this one's ([`Fingerprint`](kvasir_proto::types::Fingerprint)).
//!
//! **Limits.** A publisher that never waits loses messages: beyond [`UNSENT_BYTES_MAX`] on their way to
//! subscribers nothing more is sent until some have been taken. The sockets are the crate `zeromq`'s, which
//! believes what lengths a peer claims: only peers that are trusted may reach them, hence the loopback default.

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
