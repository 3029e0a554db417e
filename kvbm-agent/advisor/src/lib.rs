//! An example of a storage provider's subscriber: it follows the storage events of block managers over NATS, keeps a tree
//! of what is stored where, and advises on promotion, demotion and compaction. Agents know nothing of it.
//!
//! - [`state`]: the tree, the streams that it comes from, and the advice. No I/O, no clock.
//! - [`config`]: what can be configured.
//! - [`metrics`]: what is counted.
//! - [`subscriber`]: the connection to NATS.
//! - [`hook`]: a command that carries advice out.
//! - [`app`]: the process.

pub mod state;

pub mod config;

pub mod metrics;

pub mod subscriber;

pub mod hook;

pub mod app;
