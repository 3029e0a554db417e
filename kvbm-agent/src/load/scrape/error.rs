use crate::load::LoadError;
use kvasir_engine::scrape::{FetchError, ReadError};

/// Why reading an engine's metrics failed.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// The metrics cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// The metrics cannot be parsed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The metrics contradict each other, or the configuration.
    #[error("rank {rank}: {error}")]
    Load {
        /// Rank of the metrics.
        rank: u32,
        /// Underlying error.
        error: LoadError,
    },
}
