//! Reads the events that engines publish, orders them, and translates them into the index's events. All input
//! has limits.
//!
//! The modules, in the order of the data flow:
//!
//! [`zmtp`]: a ZMTP client (SUB and DEALER) with hard limits: a pure session, and thin sockets around it.
//! - [`decode`]: payloads of every engine and version to raw events. An unreadable field costs one
//!   event, not the batch.
//! - [`normalise`]: raw events to index events: tier, attention group, namespace, block hashes. Tokens
//!   are dropped here. Dropped operations are counted by reason.
//! - [`sequence`]: order, gaps, restarts and losses of one bare engine. A pure state machine: inputs
//!   in, steps out.
//! - [`expiry`]: a time to live for blocks on media whose connector never announces removals.
//! - [`link`]: the task that drives these five for one source.
//!
//! [`recover`] does for sources that state their incarnation, such as agents, what [`sequence`] does for bare
//! engines. Those sources use other transports and already publish index events. The private module `order`
//! contains the code that both share.
//!
//! [`scrape`] reads an engine's load and number of blocks from its metrics page.
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
