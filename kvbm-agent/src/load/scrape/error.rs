use crate::load::LoadError;
use kvasir_engine::scrape::{FetchError, ReadError};

/// Why reading an engine's metrics failed.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// They cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// They cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// They contradict themselves, or the configuration.
    #[error("rank {rank}: {error}")]
    Load {
        /// Whose.
        rank: u32,
        /// Why.
        error: LoadError,
    },
}
