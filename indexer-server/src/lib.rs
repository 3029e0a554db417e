//! indexer-server: takes in KV-cache events, keeps the index in memory, answers which worker holds
//! which leading blocks of a prompt.
//!
//! The modules are listed in the order in which data flows. Each uses earlier ones only, and
//! [`ingest`], [`query`], [`siblings`] and [`snapshot`] do not use one another:
//!
//! - [`partitions`]: the index of each (model, tenant), in shards behind locks, and the threads that write them.
//! - [`ingest`]: events in, from engines' sockets and from `PublishEvents`; the worker registry.
//! - [`snapshot`]: checkpoints of the index, and the way back.
//! - [`broker`]: events by NATS, and snapshots there.
//! - [`siblings`]: copies of what other replicas of the same shard have.
//! - [`query`]: requests out: matches, dumps, descriptions of workers.
//! - [`grpc`]: the port that requests and events come to.
//! - [`config`]: flags, environment and file, checked before anything is opened.
//! - [`app`]: wires all of it, runs it, stops it in order.

pub mod partitions;

pub mod ingest;
pub mod query;
pub mod siblings;
pub mod snapshot;

pub mod broker;

pub mod grpc;

pub mod config;

pub mod app;
