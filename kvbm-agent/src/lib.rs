//! Agent that runs beside an engine, and publishes the engine's cached blocks to the index. Its stream is a feed of
//! [`kvasir_feed`].
//!
//! - [`relay`]: reads an engine's own publisher.
//! - [`ingest`]: `EventIngest`, for publishers in any language.
//! - [`load`]: loads of the worker's ranks.
//! - [`service`]: `LocalIndexer`, with ranges and dumps for indexers that missed batches; `WorkerLoads`.
//! - [`broker`]: batches and answers over NATS.
//! - [`zmq`]: batches and replays as an engine publishes them: PUB and ROUTER in vLLM's wire format.
//! - [`blocks`]: the block manager (feature `blocks`), which stores engines' blocks in memory, on disk and in volumes.
//! - `storage`: the block manager's storage events, for storage providers (feature `blocks`).
//! - [`config`], [`app`]: the process.
//! - [`agent`]: all of these for one worker. An engine without events of its own embeds it.

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
