//! indexer-server: ingests KV-cache events, holds the index in memory, and answers which worker holds which
//! leading blocks of a prompt.
//!
//! The modules are listed in the order in which data flows. Each uses earlier ones only, and
//! [`ingest`], [`query`], [`siblings`] and [`snapshot`] do not use one another:
//!
//! - [`partitions`]: the index of each (model, tenant), in shards behind locks, and the threads that write them.
//! - [`ingest`]: events from engines' sockets and from `PublishEvents`; the worker registry.
//! - [`snapshot`]: checkpoints of the index, and the restore.
//! - [`broker`]: events and snapshots over NATS.
//! - [`siblings`]: copies of workers from other replicas of the same shard.
//! - [`query`]: matches, dumps, descriptions of workers.
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
