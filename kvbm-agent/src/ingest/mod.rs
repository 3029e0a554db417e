//! The service `kvasir.v1.EventIngest` of an agent: engines in any language publish to the agent beside
//! them as agents publish to an index. What is acknowledged is in the agent's journal.
//!
//! `kvasir-engine`'s recovery decides what is next, what is a duplicate and which incarnation counts; a publisher that
//! skips a batch gets the number that is expected. Nothing is held back.

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
