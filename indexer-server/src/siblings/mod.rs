//! Copies workers from a sibling (another replica of the same shard), including blocks that engines may no longer be
//! able to replay.
//!
//! A copy is treated like a checkpoint: each source resumes at its cursor and verifies it (by the fingerprint for a
//! bare engine, by the incarnation for an agent). Only complete copies are used. [`Sibling`] hides the transport.

mod copier;
mod error;
mod fetch;
mod metrics;
mod offer;
mod sibling;

#[cfg(test)]
mod siblings_test;

pub use copier::Copier;
pub use error::CopyError;
pub use fetch::{COPY_RECORDS_MAX, Fetched};
pub use metrics::SiblingMetrics;
pub use offer::{LIST_TIMEOUT, Offer, offers};
pub use sibling::{DumpParts, ListPages, Sibling};

/// Maximum number of siblings of a server.
pub const SIBLINGS_MAX: usize = 16;
