//! Writes images and removals to the database.

use super::directory::Entry;
use super::{SnapshotStore, marks};
use crate::snapshot::StoreError;
use crate::snapshot::config::GROUP_BYTES;
use crate::snapshot::format::{
    Content, ContentKey, FormatError, WorkerHead, WorkerRecord, WorkerState, contents_bounds,
    encode_hole, encode_meaning, encode_name, encode_page, generation_bounds, registration_key,
    worker_key,
};
use kvasir_index::{RankImage, WorkerImage};
use kvasir_proto::convert::WorkerAddress;
use kvasir_store::{Bounds, options};
use prost::Message;
use rocksdb::{WriteBatch, WriteOptions};
use std::collections::BTreeMap;
use std::mem;

/// One change to store.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// An increment or a complete image of a worker.
    Store(WorkerState<'a>),
    /// The removal of a worker.
    Forget(&'a WorkerAddress),
}

impl Change<'_> {
    /// Returns the worker that is stored or removed.
    fn address(&self) -> WorkerAddress {
        match self {
            Self::Store(state) => WorkerAddress {
                partition: state.partition.clone(),
                worker: state.image.worker.clone(),
            },
            Self::Forget(address) => (*address).clone(),
        }
    }
}

/// A write that failed partially.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct Unwritten {
    /// Number of leading changes that are on disk. Pass the remaining changes again. This is safe (idempotent), even if
    /// some of them are already on disk.
    pub written: usize,
    /// Error of the first change that failed.
    pub error: StoreError,
}

/// Changes that are written together, and the entries to set after the write.
#[derive(Default)]
pub(super) struct Group {
    batch: WriteBatch,
    /// Bytes of keys and values in the batch.
    bytes: u64,
    /// Entries of the group's workers after the write. `None` for a removed worker.
    entries: BTreeMap<WorkerAddress, Option<Entry>>,
    /// Number of changes in this group and all previous groups.
    changes: usize,
}

impl Group {
    pub(super) fn put_record(&mut self, key: &[u8], value: &[u8]) {
        self.count(key.len() + value.len());
        self.batch.put(key, value);
    }

    pub(super) fn is_larger_than(&self, bytes: usize) -> bool {
        self.batch.size_in_bytes() >= bytes
    }

    pub(super) fn delete(&mut self, key: &[u8]) {
        self.count(key.len());
        self.batch.delete(key);
    }

    fn delete_range(&mut self, (first, behind): Bounds) {
        self.count(first.len() + behind.len());
        self.batch.delete_range(first, behind);
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
}

/// Location of a worker in the database.
#[derive(Clone, Copy)]
struct Place<'a> {
    address: &'a WorkerAddress,
    number: u32,
    generation: u32,
    whole: bool,
}

impl SnapshotStore {
    /// Stores changes, in order. The change of each worker is atomic. Several small changes are synced together.
    /// Changes counted as written are on disk.
    ///
    /// # Errors
    /// If the disk is full or fails, or a change cannot be stored. Every worker is then as it was before or after one
    /// of the changes.
    pub fn write(&mut self, changes: &[Change<'_>]) -> Result<(), Unwritten> {
        let mut written = 0;
        let outcome = self.write_all(changes, &mut written);
        outcome.map_err(|error| Unwritten { written, error })
    }

    /// Writes changes in groups, each in one write. A refused change keeps earlier changes; `written` counts the
    /// written ones.
    fn write_all(&mut self, changes: &[Change<'_>], written: &mut usize) -> Result<(), StoreError> {
        self.ensure_writable()?;
        let mut group = Group::default();
        for change in changes {
            let address = change.address();
            if group.entries.contains_key(&address) {
                self.commit(&mut group, written)?;
            }
            let staged = match change {
                Change::Store(state) => self.stage_image(state, &address, &mut group),
                Change::Forget(_address) => {
                    self.stage_removal(&address, &mut group);
                    Ok(())
                }
            };
            if let Err(error) = staged {
                // The change was refused before any part of it was staged, or the disk has failed.
                if self.is_writable {
                    self.commit(&mut group, written)?;
                }
                return Err(error);
            }
            group.changes += 1;
            if group.batch.size_in_bytes() >= GROUP_BYTES {
                self.commit(&mut group, written)?;
            }
        }
        self.commit(&mut group, written)
    }

    /// Adds an image to a group. An incremental image needs a complete predecessor; a complete image begins a new
    /// generation and deletes the old one.
    fn stage_image(
        &mut self,
        state: &WorkerState<'_>,
        address: &WorkerAddress,
        group: &mut Group,
    ) -> Result<(), StoreError> {
        let known = self.directory.get(address);
        let whole = state.image.whole;
        if !whole && known.is_none_or(|entry| entry.needs_whole) {
            return Err(StoreError::NeedsWhole { worker: address.clone() });
        }
        check(address, state.image)?;
        let number = known.map_or_else(|| self.directory.free_number(), |entry| entry.number);
        let before = known.map(|entry| entry.head);
        let generation = before.map_or(0, |head| head.generation.wrapping_add(u32::from(whole)));
        let images = before.map_or(0, |head| head.images) + 1;
        let place = Place { address, number, generation, whole };
        for rank in &state.image.ranks {
            self.stage_rank(place, rank, group)?;
        }
        if whole {
            group.put_record(&registration_key(number), state.registration);
            if let Some(head) = before {
                group.delete_range(generation_bounds(number, head.generation));
            }
        }
        let head = WorkerHead { generation, images, held_blocks: state.held_blocks };
        group.put_record(&worker_key(number), &WorkerRecord::of(state, head).encode_to_vec());
        let entry = Entry { number, head, needs_whole: false };
        group.entries.insert(address.clone(), Some(entry));
        Ok(())
    }

    /// Adds the entries of a rank to a group. Parts of a complete image may be written early, because its generation
    /// counts only once the worker's record names it.
    fn stage_rank(
        &mut self,
        place: Place<'_>,
        rank: &RankImage,
        group: &mut Group,
    ) -> Result<(), StoreError> {
        let mut bytes = Vec::new();
        for_each_entry(rank, |content, value| {
            let value = value.map_err(|error| invalid(place.address, error))?;
            let Place { number: worker, generation, .. } = place;
            ContentKey { worker, generation, rank: rank.rank, content }.encode(&mut bytes);
            match value {
                Some(value) => group.put_record(&bytes, value),
                // A new generation is still empty.
                None if place.whole => {}
                None => group.delete(&bytes),
            }
            if place.whole && group.batch.size_in_bytes() >= self.config.batch_bytes_max {
                self.spill(group)?;
            }
            Ok(())
        })
    }

    /// Adds the removal of a worker to a group.
    fn stage_removal(&self, address: &WorkerAddress, group: &mut Group) {
        if let Some(entry) = self.directory.get(address) {
            group.delete(&worker_key(entry.number));
            group.delete(&registration_key(entry.number));
            group.delete_range(contents_bounds(Some(entry.number)));
            group.entries.insert(address.clone(), None);
        }
    }

    /// Writes the staged part of a group: complete changes, and a part of an unfinished generation. It need not be
    /// synced before the rest of the group.
    fn spill(&mut self, group: &mut Group) -> Result<(), StoreError> {
        self.write_group(group, &WriteOptions::default())
    }

    /// Writes a group to disk with a sync, then updates the directory.
    fn commit(&mut self, group: &mut Group, written: &mut usize) -> Result<(), StoreError> {
        if !group.batch.is_empty() {
            self.write_group(group, &options::synced())?;
            marks::record_write(&self.folder, self.next_write);
        }
        for (address, entry) in mem::take(&mut group.entries) {
            match entry {
                Some(entry) => drop(self.directory.put_worker(address, entry)),
                None => self.directory.remove(&address),
            }
        }
        *written = group.changes;
        Ok(())
    }

    /// Writes a group of changes, in one write. After a failed write, the store refuses all further ones.
    pub(super) fn write_group(
        &mut self,
        group: &mut Group,
        options: &WriteOptions,
    ) -> Result<(), StoreError> {
        let batch = mem::take(&mut group.batch);
        self.encoded_bytes += mem::take(&mut group.bytes);
        let Some(database) = self.database.as_ref().filter(|_database| self.is_writable) else {
            let folder = self.folder.clone();
            let reason = "not open for writing".to_owned();
            return Err(StoreError::Disk { folder, reason });
        };
        match marks::write(database, batch, self.next_write, options) {
            Ok(next) => {
                self.next_write = next;
                Ok(())
            }
            Err(error) => {
                self.is_writable = false;
                Err(StoreError::of_rocksdb(&self.folder, &error))
            }
        }
    }
}

fn invalid(worker: &WorkerAddress, error: FormatError) -> StoreError {
    StoreError::Image { worker: worker.clone(), error }
}

/// Checks that an image can be encoded completely, so that a group never contains half of it. Encoding twice costs less
/// than keeping the result.
fn check(worker: &WorkerAddress, image: &WorkerImage) -> Result<(), StoreError> {
    for rank in &image.ranks {
        for_each_entry(rank, |_content, value| match value {
            Ok(_value) => Ok(()),
            Err(error) => Err(invalid(worker, error)),
        })?;
    }
    Ok(())
}

/// Calls `each` with each key of a rank's image and its value. The value `None` is a deletion.
fn for_each_entry(
    rank: &RankImage,
    mut each: impl FnMut(Content, Result<Option<&[u8]>, FormatError>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut value = Vec::new();
    for page in &rank.pages {
        value.clear();
        let content = Content::Page(page.page);
        if page.runs.is_empty() {
            each(content, Ok(None))?;
        } else {
            each(content, encode_page(page, &mut value).map(|()| Some(&*value)))?;
        }
    }
    for name in &rank.names {
        value.clear();
        let content = Content::Name(name.name);
        if name.copies.is_empty() {
            each(content, Ok(None))?;
        } else {
            each(content, encode_name(name, &mut value).map(|()| Some(&*value)))?;
        }
    }
    for hole in &rank.holes {
        value.clear();
        encode_hole(hole, &mut value);
        each(Content::Hole(hole.position.slot), Ok(Some(&value)))?;
    }
    for at in &rank.meanings {
        value.clear();
        let content = Content::Meaning(at.source, at.name);
        let encoded = at.meaning.map(|meaning| encode_meaning(at.name, &meaning, &mut value));
        each(content, Ok(encoded.map(|()| &*value)))?;
    }
    Ok(())
}
