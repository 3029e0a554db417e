//! Copies workers from a sibling: another replica of the same shard, which has blocks that engines may not be
//! able to replay any more.
//!
//! A copy is treated like a checkpoint: each source has its cursor, and
//! its feed resumes there and verifies it (the fingerprint with a bare engine, the incarnation with an
//! agent). A copy is used only when it is complete. [`Sibling`] hides the transport.

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

/// Most siblings that a server may be given.
pub const SIBLINGS_MAX: usize = 16;
