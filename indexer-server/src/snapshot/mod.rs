//! Checkpoints on disk: each worker's blocks and the cursors of its sources, which survive a restart.
//!
//! - `format`: keys and values in the store. Pure; validates everything that it reads.
//! - [`SnapshotStore`]: these keys and values in RocksDB. Its calls block, so it needs its own thread.
//!
//! - [`Checkpointer`]: the task that writes changes; [`Restorer`]: restores workers at start.
//!
//! A worker is stored as images that its index creates ([`kvasir_index::WorkerImage`]): complete images and, between
//! them, increments. Each image becomes visible atomically with the cursors of its sources. Therefore a crash at any
//! instant leaves the worker as it was before or after an image. Slot numbers of the index are opaque here. They are
//! valid only within one generation: from one complete image to the next.

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
