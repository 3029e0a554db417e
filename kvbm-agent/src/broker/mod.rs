//! NATS: batches and heartbeats that are published, and `LocalIndexer` by request and reply.
//!
//! A connection is used until it breaks and does not reconnect by itself: what a client queues for the
//! next connection would go out after what was lost with the old one, out of order. A new one continues
//! after the last batch that is known to have arrived.
//!
//! - Core NATS retains no batch: it has arrived once the server has forwarded it. What an index
//!   did not receive it asks for.
//! - In the stream it has arrived once the stream has acknowledged it. Several are under way; when one
//!   is not acknowledged in time all from there are published again, each under the same message id,
//!   so that the stream has each once and in order.
//!
//! Requests, loads and storage events have connections of their own, so that they never delay a batch.

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
