//! The way back: what the store has of a worker, into the index.

use super::{Store, StoreError, StoredWorker};
use crate::index::{IndexedSource, Origin, Partition, Writer, WriterGone};
use kvasir_index::{IndexError, Restore, SourceStatus};
use kvasir_proto::types::CopyMode;
use std::sync::Arc;
use tokio::task::spawn_blocking;

/// Puts workers back into the index.
#[derive(Debug, Clone)]
pub struct Restorer {
    store: Arc<Store>,
    writer: Writer,
}

/// A worker that is back.
#[derive(Debug)]
pub struct RestoredWorker {
    /// Its sources.
    pub sources: Vec<RestoredSource>,
    /// Blocks that it holds.
    pub blocks: u64,
}

/// A source that is back.
#[derive(Debug)]
pub struct RestoredSource {
    /// Its name.
    pub name: String,
    /// How second announcements are read.
    pub copy_mode: CopyMode,
    /// The source.
    pub source: IndexedSource,
    /// Where it stood: catching up, or worse.
    pub status: SourceStatus,
}

/// Why a worker is not back.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// What is on disk cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index refuses it.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}
