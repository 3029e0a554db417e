//! The event side of an agent: what a worker's sources publish, as one numbered stream that an index can follow. It is
//! what `libkvasir` links into engines.
//!
//! - [`consolidate`]: several sources of one worker as one: pure.
//! - [`journal`]: the last batches of a worker and all that it holds: pure.
//! - [`disk`]: the journal on disk, for an agent that restarts.
//! - [`feed`]: a journal that tasks share.
//! - [`hub`]: all sources of a worker as one stream.
//! - [`publisher`]: a source that is the engine in the same process.
//! - [`uplink`]: the numbered, acknowledged stream of batches to an index.
//! - [`pause`]: pauses between attempts.

pub mod consolidate;

pub mod journal;

pub mod disk;

pub mod feed;

pub mod hub;

pub mod publisher;

pub mod uplink;

pub mod pause;
