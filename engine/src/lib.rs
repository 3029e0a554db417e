//! Reads what engines publish, with limits, puts it in order, and translates it into the index's
//! events.
//!
//! The modules, in the order of the data flow:
//!
//! - [`zmtp`]: a ZMTP client (SUB and DEALER) with hard limits: a pure session and thin sockets.
//! - [`decode`]: payloads of every engine and version to raw events. An unreadable field costs one
//!   event, not the batch.
//! - [`normalise`]: raw events to index events: tier, attention group, namespace, block hashes. Tokens
//!   are dropped here. Dropped operations are counted by reason.
//! - [`sequence`]: order, gaps, restarts and losses of one bare engine. A pure state machine: inputs
//!   in, steps out.
//! - [`expiry`]: a time to live for blocks on media whose connector never announces removals.
//! - [`link`]: the task that drives these five for one source.
//!
//! [`recover`] does for sources that state their incarnation, such as agents, what [`sequence`] does
//! for bare engines. They use other transports and already publish index events. The private module
//! `order` holds what the two share.
//!
//! [`scrape`] reads how busy an engine is and how many blocks it has from its page of metrics.
//!
//! [`throttle`] limits log lines that a peer can cause.

pub mod zmtp;

pub mod decode;

pub mod normalise;

mod order;

pub mod sequence;

pub mod recover;

pub mod expiry;

pub mod link;

pub mod scrape;

pub mod throttle;
