//! Writes an image as a separate SST file, which the database ingests once it is complete. Therefore an image uses
//! little memory, and delays no write.

use super::database::{Disk, database_options};
use super::folder;
use super::format::{Target, chunk_key, chunk_value, image_bounds, put_image};
use super::records::ImageRecord;
use crate::disk::DiskError;
use crate::journal::{DumpCut, DumpStep, Journal};
use kvasir_proto::types::{DpRank, HeldBlock, Incarnation};
use rocksdb::{IngestExternalFileOptions, Options, SstFileWriter, WriteBatch};
use std::mem;

/// Maximum records in one chunk of an image.
const CHUNK_RECORDS: usize = 1_024;

/// An image in progress. If dropped before it is [complete](CompleteImage), it never counts.
struct ImageWriter<'a> {
    disk: &'a Disk,
    table: SstFileWriter<'a>,
    rank: DpRank,
    /// Records not written yet: at most a chunk, and one addition.
    records: Vec<HeldBlock>,
    image: ImageRecord,
    /// Bytes of batches that were in no image when this one began.
    log_bytes: u64,
}

/// An image whose chunks are all in the database. It does not count yet.
#[derive(Debug)]
pub struct CompleteImage {
    incarnation: Incarnation,
    image: ImageRecord,
    /// Bytes of batches that the image includes, at least.
    log_bytes: u64,
}

impl<'a> ImageWriter<'a> {
    /// Starts an image of the next generation, in a separate table file. Removes the remains of an unfinished image.
    fn start(disk: &'a Disk, options: &'a Options) -> Result<Self, DiskError> {
        folder::remove_image(&disk.folder)?;
        let (before, log_bytes) = disk.with_state(|state| {
            (state.image.map(|image| image.generation), state.status.log_bytes)
        });
        let generation = before.map_or(0, |before| before.wrapping_add(1));
        // Removes the chunks of an unfinished image.
        let mut changes = WriteBatch::default();
        Target::remove_range(&mut changes, image_bounds(generation));
        disk.database.write(changes).map_err(|error| disk.failed(&error))?;
        let table = SstFileWriter::create(options);
        table.open(folder::image(&disk.folder)).map_err(|error| disk.failed(&error))?;
        let image = ImageRecord { generation, ..ImageRecord::default() };
        Ok(Self { disk, table, rank: 0, records: Vec::new(), image, log_bytes })
    }

    /// Adds records. For each name, the last record counts.
    fn add(&mut self, rank: DpRank, records: Vec<HeldBlock>) -> Result<(), DiskError> {
        if rank != self.rank {
            self.flush(1)?;
            self.rank = rank;
        }
        self.records.extend(records);
        self.flush(CHUNK_RECORDS)
    }

    /// Writes chunks while there are at least `records_min` records.
    fn flush(&mut self, records_min: usize) -> Result<(), DiskError> {
        while self.records.len() >= records_min {
            let rest = self.records.split_off(CHUNK_RECORDS.min(self.records.len()));
            let records = mem::replace(&mut self.records, rest);
            self.put_chunk(self.rank, records)?;
        }
        Ok(())
    }

    fn put_chunk(&mut self, rank: DpRank, records: Vec<HeldBlock>) -> Result<(), DiskError> {
        let value = chunk_value(rank, records);
        let key = chunk_key(self.image.generation, self.image.chunks);
        self.table.put(key, &value).map_err(|error| self.disk.failed(&error))?;
        self.image.chunks = self.image.chunks.saturating_add(1);
        self.image.bytes += value.len() as u64;
        Ok(())
    }

    /// Adds the final records of a dump, and moves the image into the database.
    fn complete(mut self, cut: DumpCut) -> Result<CompleteImage, DiskError> {
        for (rank, records) in cut.records {
            self.add(rank, records)?;
        }
        self.flush(1)?;
        for rank in cut.incomplete {
            self.put_chunk(rank, Vec::new())?;
        }
        self.image.watermark = cut.watermark;
        if self.image.chunks > 0 {
            self.table.finish().map_err(|error| self.disk.failed(&error))?;
            let mut options = IngestExternalFileOptions::default();
            options.set_move_files(true);
            let files = vec![folder::image(&self.disk.folder)];
            let taken = self.disk.database.ingest_external_file_opts(&options, files);
            taken.map_err(|error| self.disk.failed(&error))?;
        }
        folder::remove_image(&self.disk.folder)?;
        let image = self.image;
        let log_bytes = self.log_bytes;
        Ok(CompleteImage { incarnation: cut.incarnation, image, log_bytes })
    }
}

impl Disk {
    /// Writes an image from the steps of a dump. The image is used only after [`count`](Self::count).
    ///
    /// # Errors
    /// If the disk or a step fails.
    pub fn write_image<E: From<DiskError>>(
        &self,
        mut step: impl FnMut() -> Result<DumpStep, E>,
    ) -> Result<CompleteImage, E> {
        let options = database_options();
        let mut writer = ImageWriter::start(self, &options)?;
        loop {
            match step()? {
                DumpStep::Records { rank, records } => writer.add(rank, records)?,
                DumpStep::Cut(cut) => {
                    // Ends this dump, so that the next one may begin.
                    drop(step);
                    return Ok(writer.complete(cut)?);
                }
            }
        }
    }

    /// Makes an image current. Removes earlier batches, except the batches that memory retains for indexes. Returns
    /// immediately if the disk was given up, or another incarnation has begun.
    pub fn count(&self, complete: &CompleteImage, journal: &Journal) {
        if self.is_given_up() || journal.incarnation() != complete.incarnation {
            return;
        }
        let retain_from = journal.oldest().unwrap_or(0);
        let image = complete.image;
        let after = image.watermark.map_or(0, |watermark| watermark.saturating_add(1));
        let mut changes = WriteBatch::default();
        let counted = self.with_state(|state| {
            let before = state.image.map(|image| image.generation);
            put_image(image, before, retain_from.min(after), &mut changes);
            self.database.write(changes)?;
            state.image = Some(image);
            state.status.images += 1;
            state.status.image_bytes = image.bytes;
            state.status.log_bytes = state.status.log_bytes.saturating_sub(complete.log_bytes);
            Ok(())
        });
        if let Err(error) = counted {
            self.give_up(&self.failed(&error).to_string());
        }
    }

    /// Stops writing after a failed image: without images, batches would never be removed.
    pub fn image_failed(&self, error: &DiskError) {
        self.give_up(&error.to_string());
    }

    fn failed(&self, error: &rocksdb::Error) -> DiskError {
        DiskError::of_rocksdb(&self.folder, error)
    }
}
