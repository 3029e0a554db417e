//! The event side of an agent: merges the events of a worker's sources into one numbered stream that an index can
//! follow. `libkvasir` links this crate into engines.
//!
//! - [`consolidate`]: merges several sources of one worker. Pure.
//! - [`journal`]: a worker's latest batches and held blocks. Pure.
//! - [`disk`]: the journal on disk, for an agent that restarts.
//! - [`feed`]: a journal shared by tasks.
//! - [`hub`]: all sources of a worker as one stream.
//! - [`publisher`]: a source that is an engine in this process.
//! - [`uplink`]: the numbered, acknowledged stream of batches to an index.
//! - [`pause`]: exponential backoff with jitter.

pub mod consolidate;

pub mod journal;

pub mod disk;

pub mod feed;

pub mod hub;

pub mod publisher;

pub mod uplink;

pub mod pause;
