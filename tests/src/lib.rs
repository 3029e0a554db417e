//! The library of Kvasir's tests and demo.
//!
//! - [`oracle`]: the reference index, literal and slow, which defines the correct answers.
//! - [`script`]: seeded streams of events for the oracle and for the index.
//! - [`image_store`]: an in-memory store of images of the index, with deliberate faults.
//! - [`engine`]: a mock engine: a block pool and a publisher that behave like vLLM's, without time or in real time,
//!   with an HTTP API.
//! - [`workload`]: prompts for engines: a seeded generator, and traces.
//! - [`server`], [`client`]: an `indexer-server` process, and queries to it.
//! - [`raw_codec`]: gRPC messages as bytes.
//! - [`nats`]: a real nats-server process.
//! - [`stop_signals`]: Ctrl-C and SIGTERM.
//! - [`place`]: free ports, and the folder for downloads.
//! - [`demo`]: the demo, which combines all of these.
//! - [`sweep`]: compares routing policies in virtual time, and repeats one point with processes.

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
