//! Imports an export into an empty store.

use super::directory::{Directory, Entry};
use super::frames::FrameReader;
use super::write::Group;
use super::{SnapshotStore, marks};
use crate::snapshot::format::{
    Content, ContentKey, FormatError, KeyKind, PositionRecord, WorkerRecord, decode_hole,
    decode_meaning, decode_name, decode_page, import_key, position_key, registration_of, worker_of,
    workers_bounds,
};
use crate::snapshot::{ImportError, StoreError, StreamPosition};
use kvasir_store::options;
use rocksdb::{DB, WriteBatch, WriteOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;

/// Statistics of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Number of workers.
    pub workers: usize,
    /// Number of the workers' blocks, as counted by their writers.
    pub held_blocks: u64,
    /// Position of the broker's stream in the import.
    pub position: Option<StreamPosition>,
}

/// State of an import.
#[derive(Default)]
struct Contents {
    directory: Directory,
    /// Generation of each worker. Complete once the first registration is read.
    generations: BTreeMap<u32, u32>,
    /// Workers whose registration was not read yet.
    unregistered: BTreeSet<u32>,
    position: Option<StreamPosition>,
    last_key: Vec<u8>,
}

impl SnapshotStore {
    /// Imports the [`export`](Self::export) of another store into an empty one. The import is atomic: after a failure
    /// or a crash, the store is empty as before. Memory is bounded, whatever the size of the export.
    ///
    /// The imported workers count as written by another process: each needs a complete image first.
    ///
    /// # Errors
    /// If the store is not empty, the export is damaged or of another version, or the disk fails.
    pub fn import(&mut self, reader: impl Read) -> Result<Imported, ImportError> {
        self.ensure_writable()?;
        if !self.is_empty() {
            return Err(ImportError::NotEmpty { folder: self.folder.clone() });
        }
        let imported = self.take_over(reader);
        if imported.is_err() && self.is_writable {
            self.undo_import()?;
        }
        let Contents { directory, position, .. } = imported?;
        self.directory = directory;
        self.position = position;
        self.is_inherited = true;
        let workers = self.directory.len();
        let held_blocks = self.directory.held_blocks();
        Ok(Imported { workers, held_blocks, position })
    }

    /// Writes an import into the empty store, under a mark that is removed with the last write. After a crash, the
    /// mark shows that the import is incomplete.
    fn take_over(&mut self, reader: impl Read) -> Result<Contents, ImportError> {
        let mut group = Group::default();
        group.put_record(&import_key(), &[]);
        self.write_group(&mut group, &options::synced())?;
        let mut frames = FrameReader::new(reader)?;
        let mut contents = Contents::default();
        while let Some((key, value)) = frames.next()? {
            contents.check(key, value)?;
            group.put_record(key, value);
            if group.is_larger_than(self.config.batch_bytes_max) {
                self.write_group(&mut group, &WriteOptions::default())?;
            }
        }
        contents.check_registrations()?;
        group.delete(&import_key());
        self.write_group(&mut group, &options::synced())?;
        Ok(contents)
    }

    /// Deletes an incomplete import. After a failure, the store is read-only until it is reopened.
    fn undo_import(&mut self) -> Result<(), StoreError> {
        let Some(database) = &self.database else { return Ok(()) };
        match undo(database, &self.folder, self.next_write) {
            Ok(next) => {
                self.next_write = next;
                Ok(())
            }
            Err(error) => {
                // Reopening the database undoes the import.
                self.is_writable = false;
                Err(error)
            }
        }
    }
}

impl Contents {
    /// Checks that a key and its value can follow the previous records of an import.
    fn check(&mut self, key: &[u8], value: &[u8]) -> Result<(), FormatError> {
        let wrong = |field| FormatError::Range { what: "export", field };
        if key <= self.last_key.as_slice() {
            return Err(wrong("order of keys"));
        }
        self.last_key.clear();
        self.last_key.extend(key);
        match KeyKind::of(key) {
            KeyKind::Worker => self.check_worker(worker_of(key)?, value),
            KeyKind::Registration => {
                if self.generations.is_empty() {
                    self.generations = self.directory.generations();
                }
                let is_known = self.unregistered.remove(&registration_of(key)?);
                is_known.then_some(()).ok_or_else(|| wrong("registration"))
            }
            KeyKind::Contents => {
                let key = ContentKey::decode(key)?;
                if self.generations.get(&key.worker) != Some(&key.generation) {
                    return Err(wrong("generation"));
                }
                match key.content {
                    Content::Page(page) => decode_page(page, value).map(drop),
                    Content::Name(name) => decode_name(name, value).map(drop),
                    Content::Hole(slot) => decode_hole(slot, value).map(drop),
                    Content::Meaning(_, name) => decode_meaning(name, value).map(drop),
                }
            }
            KeyKind::Position => {
                self.position = Some(PositionRecord::read(value)?);
                Ok(())
            }
            KeyKind::Other => Err(wrong("key")),
        }
    }

    /// Checks a worker of an import. Fails if the worker occurs twice.
    fn check_worker(&mut self, number: u32, value: &[u8]) -> Result<(), FormatError> {
        let record = WorkerRecord::read(value)?;
        let entry = Entry { number, head: record.head(), needs_whole: true };
        let address = record.into_worker(Vec::new())?.address;
        if self.directory.get(&address).is_some() {
            return Err(FormatError::Range { what: "export", field: "worker" });
        }
        self.directory.put_worker(address, entry);
        self.unregistered.insert(number);
        Ok(())
    }

    fn check_registrations(&self) -> Result<(), FormatError> {
        if self.unregistered.is_empty() {
            Ok(())
        } else {
            Err(FormatError::Range { what: "export", field: "registrations" })
        }
    }
}

/// Whether a process crashed during an import.
///
/// # Errors
/// If the database cannot be read.
pub(super) fn is_under_way(database: &DB, folder: &Path) -> Result<bool, StoreError> {
    let mark = database.get_pinned(import_key());
    mark.map(|mark| mark.is_some()).map_err(|error| StoreError::of_rocksdb(folder, &error))
}

/// Removes all data of an unfinished import. Returns the number of the next write. Deletes nothing if every import was
/// finished.
///
/// # Errors
/// If the disk is full or fails.
pub(super) fn undo(database: &DB, folder: &Path, next_write: u64) -> Result<u64, StoreError> {
    if !is_under_way(database, folder)? {
        return Ok(next_write);
    }
    let (first, behind) = workers_bounds();
    let mut batch = WriteBatch::default();
    batch.delete_range(first, behind);
    batch.delete(position_key());
    batch.delete(import_key());
    let written = marks::write(database, batch, next_write, &options::synced());
    written.map_err(|error| StoreError::of_rocksdb(folder, &error))
}
