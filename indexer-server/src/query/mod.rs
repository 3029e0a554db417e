//! Queries: prefix matches of a prompt per worker, dumps of a worker's blocks, and the state of its sources.

mod ahead;
mod describe;
mod error;
mod find;
mod metrics;
mod pools;
mod size;
mod speculative;

pub use describe::{RankView, SourceView, WorkerDescription, describe};
pub use error::QueryError;
pub use find::Finder;
pub use metrics::QueryMetrics;
