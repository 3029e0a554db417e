//! What Kvasir is tested with, and shown with.
//!
//! - [`oracle`]: the reference index, literal and slow: the definition of what is right.
//! - [`script`]: seeded streams of events for it and for the index.
//! - [`image_store`]: an in-memory store of images of the index, which can lose parts of them on purpose.
//! - [`engine`]: a mock engine: a block pool and a publisher that behave as vLLM's do.
//! - [`workload`]: prompts for engines: a seeded generator, and traces.
//! - [`server`], [`client`]: an `indexer-server` process and questions to it.
//! - [`nats`]: a real nats-server process.
//! - [`place`]: where processes listen, and where what is fetched is kept.
//! - [`demo`]: all of these together, for people.

pub mod oracle;
pub mod script;

pub mod image_store;

pub mod engine;
pub mod workload;

pub mod client;
pub mod nats;
pub mod place;
pub mod server;

pub mod demo;
