//! Reads workers from the database.

use super::SnapshotStore;
use crate::snapshot::format::{
    Content, ContentKey, FormatError, WorkerRecord, decode_hole, decode_meaning, decode_name,
    decode_page, generation_bounds, registration_key, worker_key,
};
use crate::snapshot::{PIECE_BLOCKS_MAX, StoreError, StoredWorker};
use kvasir_index::{MeaningImage, RankImage};
use kvasir_proto::convert::WorkerAddress;
use kvasir_store::options;
use rocksdb::DBRawIterator;
use std::fmt;
use std::path::{Path, PathBuf};

/// A worker that is being read.
#[derive(Debug)]
pub struct Restored<'a> {
    /// The worker, without the contents of its ranks.
    pub worker: StoredWorker,
    /// Contents of the worker's ranks.
    pub pieces: Pieces<'a>,
}

/// Contents of a worker's ranks, in bounded pieces. Each piece has a part of one rank, with all other data of this
/// rank. Ends with the first error.
pub struct Pieces<'a> {
    contents: DBRawIterator<'a>,
    ranks: Vec<RankImage>,
    folder: PathBuf,
    has_failed: bool,
}

impl SnapshotStore {
    /// Reads a worker. Returns `None` if the store lacks the worker.
    ///
    /// # Errors
    /// If the worker is damaged, or the disk fails.
    pub fn read(&self, worker: &WorkerAddress) -> Result<Option<Restored<'_>>, StoreError> {
        let failed = |error: rocksdb::Error| StoreError::of_rocksdb(&self.folder, &error);
        let unreadable = |error: FormatError| StoreError::unreadable(&self.folder, &error);
        let known = self.directory.get(worker).zip(self.database.as_ref());
        let Some((entry, database)) = known else {
            return Ok(None);
        };
        let record = database.get(worker_key(entry.number)).map_err(failed)?;
        let registration = database.get(registration_key(entry.number)).map_err(failed)?;
        let Some((record, registration)) = record.zip(registration) else {
            return Err(missing(&self.folder, worker));
        };
        let record = WorkerRecord::read(&record).map_err(unreadable)?;
        let bounds = generation_bounds(entry.number, record.head().generation);
        let worker = record.into_worker(registration).map_err(unreadable)?;
        let mut contents = database.raw_iterator_opt(options::sweep(bounds));
        contents.seek_to_first();
        let ranks = worker.ranks.clone();
        let folder = self.folder.clone();
        let pieces = Pieces { contents, ranks, folder, has_failed: false };
        Ok(Some(Restored { worker, pieces }))
    }
}

fn missing(folder: &Path, worker: &WorkerAddress) -> StoreError {
    let reason = format!("the record of worker {worker} is missing");
    StoreError::Corrupt { folder: folder.to_owned(), reason }
}

impl Pieces<'_> {
    /// Reads the next piece of the worker's contents. Returns `None` at the end.
    fn read_piece(&mut self) -> Result<Option<RankImage>, StoreError> {
        let unreadable = |error: FormatError| StoreError::unreadable(&self.folder, &error);
        let mut piece: Option<RankImage> = None;
        let mut things = 0;
        while let Some((key, value)) = self.contents.item().filter(|_| things < PIECE_BLOCKS_MAX) {
            let ContentKey { rank, content, .. } = ContentKey::decode(key).map_err(unreadable)?;
            let known = self.ranks.binary_search_by_key(&rank, |at| at.rank);
            let known = known.ok().and_then(|at| self.ranks.get(at));
            // Only ranks in the worker's record exist.
            if let Some(known) = known {
                if piece.as_ref().is_some_and(|piece| piece.rank != rank) {
                    break;
                }
                let piece = piece.get_or_insert_with(|| known.clone());
                things += add(piece, content, value).map_err(unreadable)?;
            }
            self.contents.next();
        }
        if !self.contents.valid() {
            let status = self.contents.status();
            status.map_err(|error| StoreError::of_rocksdb(&self.folder, &error))?;
        }
        Ok(piece)
    }
}

impl Iterator for Pieces<'_> {
    type Item = Result<RankImage, StoreError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.has_failed {
            return None;
        }
        let piece = self.read_piece();
        self.has_failed = piece.is_err();
        piece.transpose()
    }
}

impl fmt::Debug for Pieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces")
            .field("folder", &self.folder)
            .field("has_failed", &self.has_failed)
            .finish_non_exhaustive()
    }
}

/// Adds a key and its value to a piece. Returns the number of added blocks, names, holes or meanings.
fn add(piece: &mut RankImage, content: Content, value: &[u8]) -> Result<usize, FormatError> {
    match content {
        Content::Page(page) => {
            let page = decode_page(page, value)?;
            let blocks = page.runs.iter().map(|run| run.blocks.len()).sum();
            piece.pages.push(page);
            return Ok(blocks);
        }
        Content::Name(name) => piece.names.push(decode_name(name, value)?),
        Content::Hole(slot) => piece.holes.push(decode_hole(slot, value)?),
        Content::Meaning(source, name) => {
            let meaning = Some(decode_meaning(name, value)?);
            piece.meanings.push(MeaningImage { source, name, meaning });
        }
    }
    Ok(1)
}
