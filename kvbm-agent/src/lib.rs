//! Beside an engine: tells the index what the engine holds.
//!
//! - [`consolidate`]: several sources of one worker as one: pure.
//! - [`journal`]: the last batches of a source and all that it holds: pure.
//! - [`disk`]: the same on disk, for an agent that comes back.
//! - [`feed`]: a source as tasks share it.
//! - [`hub`]: what all its sources say, as one stream.
//! - [`relay`]: a source that is an engine's own publisher.
//! - [`publisher`]: a source that is the engine which embeds the agent.
//! - [`ingest`]: `EventIngest`: sources that are engines in any language.
//! - [`load`]: how busy the worker is.
//! - [`uplink`]: its numbered, acknowledged stream of events to an indexer.
//! - [`service`]: `LocalIndexer`: ranges and dumps for indexers that missed something; `WorkerLoads`.
//! - [`broker`]: the same over NATS: batches published, questions answered.
//! - [`zmq`]: the same as an engine would publish it: PUB and replay ROUTER in vLLM's wire format.
//! - [`config`], [`app`]: the process.
//! - [`agent`]: all of these for one source: what an engine without events of its own embeds.

pub mod consolidate;

pub mod journal;

pub mod disk;

pub mod feed;

pub mod hub;

mod pause;

pub mod relay;

pub mod publisher;

pub mod ingest;

pub mod load;

pub mod uplink;

pub mod service;

pub mod broker;

pub mod zmq;

pub mod agent;

pub mod config;

pub mod app;
