//! Position of the broker's stream in the store.

use super::write::Group;
use super::{Change, SnapshotStore};
use crate::snapshot::format::{PositionRecord, position_key};
use crate::snapshot::{StoreError, StreamPosition};
use kvasir_store::options;
use prost::Message;
use rocksdb::DB;
use std::path::Path;

impl SnapshotStore {
    /// Position of the broker's stream in the stored data. `None` if no stream was ever consumed.
    #[must_use]
    pub const fn stream_position(&self) -> Option<StreamPosition> {
        self.position
    }

    /// Stores the position of the broker's stream in the data written before. On disk when it returns.
    ///
    /// The position never outlives earlier data. It is a write in the same log, after the images, and the log is valid
    /// only up to its first damage. It also has a mark: a database with the position but without an earlier write is
    /// refused as damaged. The caller must ensure that the earlier data covers all messages up to the position.
    ///
    /// # Errors
    /// If the disk is full or fails, or the store is not writable since an earlier failure. Earlier data is missing
    /// then, so this call does not reopen the store. The position stays unchanged.
    pub fn set_stream_position(&mut self, position: StreamPosition) -> Result<(), StoreError> {
        let mut group = Group::default();
        group.put_record(&position_key(), &PositionRecord::from(position).encode_to_vec());
        self.write_group(&mut group, &options::synced())?;
        self.position = Some(position);
        Ok(())
    }
}

impl SnapshotStore {
    /// Whether the store has neither workers nor a position.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.directory.is_empty() && self.position.is_none()
    }

    /// Deletes the stream position and all workers.
    ///
    /// # Errors
    /// If the disk is full or fails. Some of the data may be deleted then.
    pub fn clear(&mut self) -> Result<(), StoreError> {
        self.ensure_writable()?;
        // Delete the position first: it must not outlive the data that it covers.
        let mut group = Group::default();
        group.delete(&position_key());
        self.write_group(&mut group, &options::synced())?;
        self.position = None;
        let workers: Vec<_> = self.workers().cloned().collect();
        let changes: Vec<_> = workers.iter().map(Change::Forget).collect();
        self.write(&changes).map_err(|unwritten| unwritten.error)
    }
}

/// Reads the stream position. Returns `None` if the store lacks it.
pub(super) fn read_position(
    database: &DB,
    folder: &Path,
) -> Result<Option<StreamPosition>, StoreError> {
    let value = database.get_pinned(position_key());
    let value = value.map_err(|error| StoreError::of_rocksdb(folder, &error))?;
    let position = value.map(|value| PositionRecord::read(&value)).transpose();
    position.map_err(|error| StoreError::unreadable(folder, &error))
}
