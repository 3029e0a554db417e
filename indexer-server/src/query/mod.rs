//! Queries: which worker holds how much of a prompt, what a worker holds, and the state of its sources.

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
