//! NATS: publishes batches and heartbeats, and serves `LocalIndexer` by request and reply.
//!
//! A connection is used until it breaks, and does not reconnect by itself. A reconnecting client would send queued
//! messages after lost ones, out of order. A new connection resumes after the last batch that is known to have arrived.
//!
//! - Core NATS retains no batch: a batch has arrived once the server has forwarded it. Indexes request missing batches.
//! - With JetStream, a batch has arrived once the stream has acknowledged it. Several batches are in transit. After a
//!   late acknowledgement, all batches from there are published again, each under its message id. The stream therefore
//!   has each batch once and in order.
//!
//! Requests, loads and storage events have their own connections, so that they never delay a batch.

mod answer;
mod config;
mod connection;
mod error;
mod jetstream;
mod loads;
mod message;
mod plain;
mod publish;
mod reply;
mod session;
#[cfg(feature = "blocks")]
mod storage;

pub use answer::answer_questions;
pub use config::{BrokerConfig, BrokerStatus};
pub use kvasir_proto::broker::Delivery;
pub use loads::LoadPublisher;
pub use publish::NatsPublisher;
#[cfg(feature = "blocks")]
pub use storage::StoragePublisher;
