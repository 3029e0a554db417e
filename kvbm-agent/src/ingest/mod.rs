//! gRPC service `kvasir.v1.EventIngest` of an agent. Engines in any language publish to the agent beside them like
//! agents publish to an index. Acknowledged batches are in the agent's journal.
//!
//! The recovery in `kvasir-engine` decides which batch is next, which is a duplicate, and which incarnation is current.
//! A publisher that skips a batch receives the expected number. No batch is buffered.

mod config;
mod error;
mod refusals;
mod service;
mod session;
mod source;

pub use config::IngestConfig;
pub use error::IngestError;
pub use refusals::{Refusals, StreamRefusal};
pub use service::EventIngestService;
