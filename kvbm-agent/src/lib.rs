//! Beside an engine: publishes to the index what the engine holds. What it publishes is a feed of [`kvasir_feed`].
//!
//! - [`relay`]: a source that is an engine's own publisher.
//! - [`ingest`]: `EventIngest`: sources that are engines in any language.
//! - [`load`]: how busy the worker is.
//! - [`service`]: `LocalIndexer`: ranges and dumps for indexers that missed something; `WorkerLoads`.
//! - [`broker`]: batches and answers over NATS.
//! - [`zmq`]: batches and replays as an engine publishes them: PUB and ROUTER in vLLM's wire format.
//! - [`blocks`]: the block manager (feature `blocks`): memory, disk and volumes for what engines save.
//! - `storage`: what the block manager stores where, for storage providers (feature `blocks`).
//! - [`config`], [`app`]: the process.
//! - [`agent`]: all of these for one worker: what an engine without events of its own embeds.

pub mod relay;

pub mod ingest;

pub mod load;

pub mod service;

pub mod broker;

pub mod zmq;

#[cfg(feature = "blocks")]
pub mod storage;

#[cfg_attr(not(feature = "blocks"), path = "blocks/absent.rs")]
pub mod blocks;

pub mod agent;

pub mod config;

pub mod app;
