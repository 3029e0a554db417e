//! Exports a store as a byte stream, for import into another store.

use super::frames::Frames;
use super::{SnapshotStore, folder, position, read_directory};
use crate::snapshot::format::{KeyKind, export_bounds, generation_of};
use crate::snapshot::{EXPORT_CHUNK_BYTES_MAX, StoreError, StreamPosition};
use kvasir_store::options;
use rocksdb::DB;
use rocksdb::checkpoint::Checkpoint;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

/// A consistent export of a store, read in bounded chunks. Independent of the store: it reads a view beside the
/// database (hard links to the same files), which is removed on drop. Its calls and its drop block.
pub struct Export {
    /// `None` only during the drop.
    database: Option<DB>,
    view: PathBuf,
    /// Current generation of each worker.
    generations: BTreeMap<u32, u32>,
    frames: Frames,
    /// Key to resume from. `None` at the end.
    next: Option<Vec<u8>>,
    workers: usize,
    held_blocks: u64,
    position: Option<StreamPosition>,
    _under_way: Arc<()>,
}

impl SnapshotStore {
    /// Starts an export of all stored data, with the position in the broker's stream. Flushes the latest writes into
    /// tables.
    ///
    /// # Errors
    /// If another export of the store is alive, or the disk is full or fails.
    pub fn export(&mut self) -> Result<Export, StoreError> {
        if self.export.strong_count() > 0 {
            return Err(StoreError::Exporting { folder: self.folder.clone() });
        }
        self.ensure_writable()?;
        let view = folder::export(&self.folder)?;
        let under_way = Arc::new(());
        self.export = Arc::downgrade(&under_way);
        if let Some(database) = &self.database {
            let made = Checkpoint::new(database).and_then(|made| made.create_checkpoint(&view));
            made.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))?;
        }
        Export::open_view(view, under_way)
    }
}

impl Export {
    /// Opens a checkpoint of the database, which does not change while it is exported.
    fn open_view(view: PathBuf, under_way: Arc<()>) -> Result<Self, StoreError> {
        let database = DB::open_for_read_only(&options::database(), &view, false);
        let database = database.map_err(|error| StoreError::of_rocksdb(&view, &error))?;
        let directory = read_directory(&database, &view)?;
        let position = position::read_position(&database, &view)?;
        Ok(Self {
            database: Some(database),
            view,
            generations: directory.generations(),
            frames: Frames::new(),
            next: Some(export_bounds().0),
            workers: directory.len(),
            held_blocks: directory.held_blocks(),
            position,
            _under_way: under_way,
        })
    }

    /// Position of the broker's stream in the export.
    #[must_use]
    pub const fn position(&self) -> Option<StreamPosition> {
        self.position
    }

    /// Number of workers in the export.
    #[must_use]
    pub const fn workers(&self) -> usize {
        self.workers
    }

    /// Number of the workers' blocks, as counted by their writers.
    #[must_use]
    pub const fn held_blocks(&self) -> u64 {
        self.held_blocks
    }

    /// Returns the next chunk. Every chunk except the last has [`EXPORT_CHUNK_BYTES_MAX`] bytes. Returns `None` at the
    /// end.
    ///
    /// # Errors
    /// If the stored data is damaged, or the disk fails. The export is then unusable.
    pub fn next_chunk(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        while self.frames.waiting() < EXPORT_CHUNK_BYTES_MAX
            && let Some(from) = self.next.take()
        {
            self.next = self.read_chunk(from)?;
            if self.next.is_none() {
                self.frames.add_trailer();
            }
        }
        let chunk = self.frames.take_bytes(EXPORT_CHUNK_BYTES_MAX);
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    /// Reads about one chunk into `frames`, starting at the key `from`. Returns the key to resume from, or `None` at
    /// the end.
    fn read_chunk(&mut self, from: Vec<u8>) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(database) = &self.database else { return Ok(None) };
        let (_, behind) = export_bounds();
        let mut records = database.raw_iterator_opt(options::sweep((from, behind)));
        records.seek_to_first();
        while let Some((key, value)) = records.item() {
            if self.frames.waiting() >= EXPORT_CHUNK_BYTES_MAX {
                return Ok(Some(key.to_vec()));
            }
            if counts(&self.generations, key, &self.view)? && !self.frames.record(key, value) {
                let folder = self.view.clone();
                let reason = "a value is too long".to_owned();
                return Err(StoreError::Corrupt { folder, reason });
            }
            records.next();
        }
        records.status().map_err(|error| StoreError::of_rocksdb(&self.view, &error))?;
        Ok(None)
    }
}

/// Whether a key belongs to the export. Excludes marks and unfinished generations.
fn counts(generations: &BTreeMap<u32, u32>, key: &[u8], view: &Path) -> Result<bool, StoreError> {
    match KeyKind::of(key) {
        KeyKind::Worker | KeyKind::Registration | KeyKind::Position => Ok(true),
        KeyKind::Contents => {
            let of = generation_of(key).map_err(|error| StoreError::unreadable(view, &error))?;
            Ok(generations.get(&of.0) == Some(&of.1))
        }
        KeyKind::Other => Ok(false),
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        self.database = None;
        if let Err(error) = fs::remove_dir_all(&self.view) {
            tracing::warn!(%error, view = %self.view.display(), "the view of an export was not removed");
        }
    }
}

impl fmt::Debug for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Export")
            .field("view", &self.view)
            .field("workers", &self.workers)
            .finish_non_exhaustive()
    }
}
