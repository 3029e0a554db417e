//! The library of Kvasir's tests and demo.
//!
//! - [`oracle`]: the reference index, literal and slow: it defines the correct answers.
//! - [`script`]: seeded streams of events for it and for the index.
//! - [`image_store`]: an in-memory store of images of the index, which can lose parts of them on purpose.
//! - [`engine`]: a mock engine: a block pool and a publisher that behave as vLLM's do, in no time or in real time; its
//!   HTTP side.
//! - [`workload`]: prompts for engines: a seeded generator, and traces.
//! - [`server`], [`client`]: an `indexer-server` process and queries to it.
//! - [`raw_codec`]: gRPC messages as their bytes.
//! - [`nats`]: a real nats-server process.
//! - [`stop_signals`]: Ctrl-C and SIGTERM.
//! - [`place`]: free ports, and the folder for downloads.
//! - [`demo`]: all of these together, as the demo.
//! - [`sweep`]: ways of routing, compared in virtual time; one point of it again with processes.

pub mod oracle;
pub mod script;

pub mod image_store;

pub mod engine;
pub mod workload;

pub mod client;
pub mod nats;
pub mod place;
pub mod raw_codec;
pub mod server;
pub mod stop_signals;

pub mod demo;
pub mod sweep;
