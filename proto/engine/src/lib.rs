//! The engines' side of the contract: what an engine publishes, read with limits, put in order and
//! said in the index's words.
//!
//! The modules stand in the order in which data flows:
//!
//! - [`zmtp`]: a ZMTP client (SUB and DEALER) with hard limits: a pure session and thin sockets.
//! - [`decode`]: payloads of every engine and version to raw events; what cannot be read costs an
//!   event, not the batch.
//! - [`normalise`]: what a raw event means: tier, attention group, namespace, block hashes. Tokens
//!   end here. What is dropped is counted by reason.
//! - [`sequence`]: order, gaps, restarts and loss of one source: a pure state machine, inputs in,
//!   steps out.
//! - [`expiry`]: a time to live for blocks on media whose connector never removes.
//! - [`link`]: the task that drives the five for one source.
//!
//! Sources that state their incarnation, such as agents, come over other transports and in the
//! index's words already. [`recover`] is to them what [`sequence`] is to bare engines.
//!
//! [`throttle`] keeps what any of them says from filling the log.

pub mod zmtp;

pub mod decode;

pub mod normalise;

mod order;

pub mod sequence;

pub mod recover;

pub mod expiry;

pub mod link;

pub mod throttle;
