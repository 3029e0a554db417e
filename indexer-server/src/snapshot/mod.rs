//! The state that survives a restart: each worker's blocks and the cursors of its sources, on disk.
//!
//! - `format`: what is stored, as keys and values. Pure; whatever is read is checked.
//! - [`SnapshotStore`]: those keys and values in RocksDB. Its calls block: it belongs on a thread
//!   of its own.
//!
//! - [`Checkpointer`]: the task that writes changes; [`Restorer`]: restores workers at start.
//!
//! A worker is stored as images that its index makes ([`kvasir_index::WorkerImage`]): whole ones
//! and, between them, what changed. Each becomes visible at once with the cursors of its sources,
//! so that a stop at any instant leaves the worker as it was before an image or after it. Nothing
//! here knows the index's slots but as numbers, which mean something within one generation only:
//! from a whole image to the next.

mod checkpoint;
mod config;
mod error;
mod format;
mod store;

pub use checkpoint::{
    CheckpointConfig, CheckpointError, CheckpointFigures, CheckpointMetrics, Checkpointer,
    Checkpoints, Positions, Registry, Report, RestoreError, Restorer, Roster, SharedStore,
};
pub use config::{
    BATCH_BYTES_MAX, EXPORT_CHUNK_BYTES_MAX, PIECE_BLOCKS_MAX, SET_ASIDE_MAX, SnapshotConfig,
};
pub use error::{ImportError, StoreError};
pub use format::{FORMAT_VERSION, FormatError, StoredWorker, StreamPosition, WorkerState};
pub use store::{
    Change, Export, Figures, Imported, Opened, Pieces, Restored, SetAside, SnapshotStore, Unwritten,
};
