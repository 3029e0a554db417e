//! How far the broker's stream is in the store.

use super::{Change, SnapshotStore, write::Group};
use crate::snapshot::{
    StoreError, StreamPosition,
    format::{PositionRecord, position_key},
};
use kvasir_store::options;
use prost::Message;
use rocksdb::DB;
use std::path::Path;

impl SnapshotStore {
    /// How far the broker's stream is in what is stored, if one was ever consumed.
    #[must_use]
    pub const fn stream_position(&self) -> Option<StreamPosition> {
        self.position
    }

    /// Stores how far the broker's stream is in what was written before; on disk when it returns.
    ///
    /// It never outlives what was written before it: it is a write like those of images, behind them
    /// in the one log, which is used up to its first damage only; and in the row of marks, so that a
    /// database that has it and lacks an earlier write is refused as damaged. That all messages up to
    /// it are in what was written before is for the caller to know.
    ///
    /// # Errors
    /// If the disk is full or fails, or the store takes no writes since one failed: what was to be
    /// written before is missing then, so this does not reopen it. The position is unchanged.
    pub fn set_stream_position(&mut self, position: StreamPosition) -> Result<(), StoreError> {
        let mut group = Group::default();
        group.put(&position_key(), &PositionRecord::from(position).encode_to_vec());
        self.put(&mut group, &options::synced())?;
        self.position = Some(position);
        Ok(())
    }
}

impl SnapshotStore {
    /// Whether nothing is in it: no worker, and no position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.is_empty() && self.position.is_none()
    }

    /// Forgets the position, and all workers.
    ///
    /// # Errors
    /// If the disk is full or fails; some of it may be forgotten then.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        self.ensure_writable()?;
        // First, for it must not outlive what it covers.
        let mut group = Group::default();
        group.delete(&position_key());
        self.put(&mut group, &options::synced())?;
        self.position = None;
        let workers: Vec<_> = self.workers().cloned().collect();
        let changes: Vec<_> = workers.iter().map(Change::Forget).collect();
        self.write(&changes).map_err(|unwritten| unwritten.error)
    }
}

/// The position; none if there is none.
pub(super) fn read(database: &DB, folder: &Path) -> Result<Option<StreamPosition>, StoreError> {
    let value = database.get_pinned(position_key());
    let value = value.map_err(|error| StoreError::of_rocksdb(folder, &error))?;
    let position = value.map(|value| PositionRecord::read(&value)).transpose();
    position.map_err(|error| StoreError::unreadable(folder, &error))
}
