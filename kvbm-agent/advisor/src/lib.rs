//! Example subscriber for storage providers: follows the storage events of block managers over NATS. It keeps a tree of
//! the stored blocks and their locations. From the tree it advises on promotion, demotion and compaction. Agents do not
//! depend on it.
//!
//! - [`state`]: the tree, the streams that fill it, and the advice. No I/O, no clock.
//! - [`config`]: the command-line options.
//! - [`metrics`]: the counters.
//! - [`subscriber`]: the connection to NATS.
//! - [`hook`]: runs a program for each piece of advice.
//! - [`app`]: the process.

pub mod state;

pub mod config;

pub mod metrics;

pub mod subscriber;

pub mod hook;

pub mod app;
