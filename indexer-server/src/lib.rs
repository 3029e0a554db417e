//! indexer-server: ingests KV-cache events into an in-memory index. Reports how many leading blocks of a prompt each
//! worker has cached.
//!
//! The modules are listed in the order of the data flow. Each module uses only earlier modules. [`ingest`], [`query`],
//! [`siblings`] and [`snapshot`] do not use one another:
//!
//! - [`partitions`]: the index of each (model, tenant), in shards behind locks, and the threads that write the shards.
//! - [`ingest`]: events from engines' sockets and from `PublishEvents`; the worker registry.
//! - [`snapshot`]: checkpoints of the index, and the restore.
//! - [`broker`]: events and snapshots over NATS.
//! - [`siblings`]: copies of workers from other replicas of the same shard.
//! - [`query`]: prefix matches, dumps, descriptions of workers.
//! - [`grpc`]: the gRPC port.
//! - [`config`]: flags, environment and file, checked before anything is opened.
//! - [`app`]: wires, runs and stops the modules.

pub mod partitions;

pub mod ingest;
pub mod query;
pub mod siblings;
pub mod snapshot;

pub mod broker;

pub mod grpc;

pub mod config;

pub mod app;
