//! Restores a journal from the database. Pure.

use super::format::{
    IMAGE, INCARNATION, MANIFEST, all_holdings_bounds, all_meanings_bounds, batch_bounds,
    image_bounds, read_name_key, source_bounds, source_name,
};
use super::records::{
    FORMAT_VERSION, FORMAT_VERSION_CONSOLIDATED, HoldingRecord, ImageRecord, IncarnationRecord,
    ManifestRecord, SourceRecord, format_version, read_incarnation,
};
use crate::disk::{
    DiskConfig, NewIncarnation, PersistedHoldings, PersistedNames, PersistedSources,
};
use crate::journal::{Batch, Journal, JournalConfig, PersistedIncarnation};
use kvasir_proto::convert::{LocalDumpPart, PublishedBatch, WorkerAddress, decode_meaning};
use kvasir_proto::pb;
use kvasir_proto::types::CopyMode;
use kvasir_store::Bounds;
use prost::Message;

/// Accepts a key and its value, or returns why they are invalid.
pub(super) type Show<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), NewIncarnation> + 'a;

/// Reads values of the database.
pub(super) trait Origin {
    /// Why a value cannot be read.
    type Error;
    /// Reads one value.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Self::Error>;
    /// Passes all values of a range to `show`, in order, until one is refused.
    fn each(
        &self,
        bounds: Bounds,
        show: &mut Show<'_>,
    ) -> Result<Result<(), NewIncarnation>, Self::Error>;
}

/// Content of a folder.
pub(super) enum Found {
    /// The folder has no journal.
    Nothing,
    /// Another worker's journal.
    OtherWorker(WorkerAddress),
    /// The journal cannot be resumed.
    Unusable(NewIncarnation),
    /// The incarnation may continue.
    Incarnation(Box<FoundIncarnation>),
}

/// An incarnation that may continue.
pub(super) struct FoundIncarnation {
    pub(super) journal: Journal,
    pub(super) sources: PersistedSources,
    /// The current image; `None` before the first.
    pub(super) image: Option<ImageRecord>,
    /// Number of batches read, whether an image includes them or not.
    pub(super) batches: u64,
    /// Bytes of the values of the batches that are in no image.
    pub(super) log_bytes: u64,
}

fn damaged(what: &str) -> NewIncarnation {
    NewIncarnation::Damaged(what.to_owned())
}

/// Reads a journal. Returns why if it belongs to another worker, is missing, or cannot be resumed.
pub(super) fn read_journal<O: Origin>(
    origin: &O,
    disk: &DiskConfig,
    config: JournalConfig,
) -> Result<Found, O::Error> {
    let Some(manifest) = origin.get(MANIFEST)? else { return Ok(Found::Nothing) };
    if let Err(found) = check_manifest(&manifest, disk, config.copy_mode) {
        return Ok(found);
    }
    let incarnation = origin.get(INCARNATION)?;
    let image = origin.get(IMAGE)?;
    let (incarnation, image) = match read_heads(incarnation.as_deref(), image.as_deref()) {
        Ok(heads) => heads,
        Err(reason) => return Ok(Found::Unusable(reason)),
    };
    let journal = Journal::persisted(incarnation, config);
    let sources = PersistedSources::default();
    let mut found = FoundIncarnation { journal, sources, image, batches: 0, log_bytes: 0 };
    match found.fill(origin, disk)? {
        Ok(()) => Ok(Found::Incarnation(Box::new(found))),
        Err(reason) => Ok(Found::Unusable(reason)),
    }
}

/// Checks that a journal can be resumed: format, worker, block size, consolidation, copy mode and adapter names must be
/// unchanged.
fn check_manifest(value: &[u8], disk: &DiskConfig, copy_mode: CopyMode) -> Result<(), Found> {
    let unreadable = |_error| Found::Unusable(damaged("the manifest"));
    let manifest = ManifestRecord::decode(value).map_err(unreadable)?;
    if ![FORMAT_VERSION, FORMAT_VERSION_CONSOLIDATED].contains(&manifest.format_version) {
        return Err(Found::Unusable(NewIncarnation::Version(manifest.format_version)));
    }
    let Some(address) = manifest.address() else {
        return Err(Found::Unusable(damaged("the worker's name")));
    };
    if address != disk.address {
        return Err(Found::OtherWorker(address));
    }
    if manifest.block_size != disk.block_size {
        return Err(Found::Unusable(NewIncarnation::BlockSize(manifest.block_size)));
    }
    if manifest.format_version != format_version(disk) {
        return Err(Found::Unusable(NewIncarnation::Consolidation));
    }
    if manifest.is_counted != (copy_mode == CopyMode::Counted) {
        return Err(Found::Unusable(NewIncarnation::CopyMode));
    }
    if manifest.lora_names != disk.lora_names {
        return Err(Found::Unusable(NewIncarnation::LoraNames));
    }
    Ok(())
}

/// Reads the record of the incarnation, and the record of the image, if there is one.
fn read_heads(
    record: Option<&[u8]>,
    image: Option<&[u8]>,
) -> Result<(PersistedIncarnation, Option<ImageRecord>), NewIncarnation> {
    let record = record.ok_or_else(|| damaged("there is no incarnation"))?;
    let record = IncarnationRecord::decode(record).map_err(|_error| damaged("the incarnation"))?;
    let incarnation = read_incarnation(&record.incarnation);
    let incarnation = incarnation.ok_or_else(|| damaged("the incarnation"))?;
    let image = image.map(ImageRecord::decode).transpose();
    let image = image.map_err(|_error| damaged("the image's record"))?;
    let watermark = image.and_then(|image| image.watermark);
    Ok((PersistedIncarnation { incarnation, first: record.first, watermark }, image))
}

impl FoundIncarnation {
    /// Reads the journal: image, batches, holdings, meanings, and the positions of sources. Fails at the first
    /// damage.
    fn fill<O: Origin>(
        &mut self,
        origin: &O,
        disk: &DiskConfig,
    ) -> Result<Result<(), NewIncarnation>, O::Error> {
        if let Err(reason) = self.read_image(origin)? {
            return Ok(Err(reason));
        }
        if let Err(reason) = self.read_batches(origin, disk.block_size)? {
            return Ok(Err(reason));
        }
        if let Err(reason) = self.read_holdings(origin)? {
            return Ok(Err(reason));
        }
        if let Err(reason) = self.read_meanings(origin)? {
            return Ok(Err(reason));
        }
        origin.each(source_bounds(), &mut |key, value| {
            let name = source_name(key).ok_or_else(|| damaged("a source's name"))?;
            let record = SourceRecord::decode(value).map_err(|_error| damaged("a source"))?;
            let source = record.source(name).ok_or_else(|| damaged("a source"))?;
            self.sources.positions.push(source);
            Ok(())
        })
    }

    /// Reads the meanings of names, by source.
    fn read_meanings<O: Origin>(
        &mut self,
        origin: &O,
    ) -> Result<Result<(), NewIncarnation>, O::Error> {
        let all = &mut self.sources.names;
        origin.each(all_meanings_bounds(), &mut |key, value| {
            let unreadable = || damaged("what a name means");
            let (source, rank, name) = read_name_key(key).ok_or_else(unreadable)?;
            let meaning = decode_meaning(name, value).ok_or_else(unreadable)?;
            match all.last_mut() {
                // Keys are in order.
                Some(last) if last.source == source => last.names.push((rank, name, meaning)),
                _ => all.push(PersistedNames {
                    source: source.to_owned(),
                    names: vec![(rank, name, meaning)],
                }),
            }
            Ok(())
        })
    }

    /// Reads the names that each source holds, by source and rank.
    fn read_holdings<O: Origin>(
        &mut self,
        origin: &O,
    ) -> Result<Result<(), NewIncarnation>, O::Error> {
        let all = &mut self.sources.holdings;
        origin.each(all_holdings_bounds(), &mut |key, value| {
            let unreadable = || damaged("what a source holds");
            let (source, rank, name) = read_name_key(key).ok_or_else(unreadable)?;
            let record = HoldingRecord::decode(value).map_err(|_error| unreadable())?;
            let holding = record.holding(name).ok_or_else(unreadable)?;
            match all.last_mut() {
                // Keys are in order.
                Some(last) if (last.source.as_str(), last.rank) == (source, rank) => {
                    last.holdings.push(holding);
                }
                _ => all.push(PersistedHoldings {
                    source: source.to_owned(),
                    rank,
                    holdings: vec![holding],
                }),
            }
            Ok(())
        })
    }

    /// Reads the chunks of the image into the journal. Fails if a chunk is missing.
    fn read_image<O: Origin>(
        &mut self,
        origin: &O,
    ) -> Result<Result<(), NewIncarnation>, O::Error> {
        let Some(image) = self.image else { return Ok(Ok(())) };
        let mut chunks = 0;
        let mut bytes = 0;
        let journal = &mut self.journal;
        let read = origin.each(image_bounds(image.generation), &mut |_key, value| {
            chunks += 1;
            bytes += value.len() as u64;
            let unreadable = || damaged("a part of the image");
            let part = pb::LocalDumpResponse::decode(value).map_err(|_error| unreadable())?;
            match LocalDumpPart::try_from(part) {
                Ok(LocalDumpPart::Chunk { rank, records }) => {
                    if records.is_empty() {
                        journal.mark_incomplete(rank);
                    }
                    records.iter().for_each(|held| journal.bring_back(rank, held));
                    Ok(())
                }
                Ok(LocalDumpPart::End(_) | LocalDumpPart::WrongIncarnation { .. }) | Err(_) => {
                    Err(unreadable())
                }
            }
        })?;
        if read.is_ok() && (chunks, bytes) != (image.chunks, image.bytes) {
            return Ok(Err(damaged("parts of the image are missing")));
        }
        Ok(read)
    }

    /// Reads the batches into the journal. Fails if a batch is missing, also at the end.
    fn read_batches<O: Origin>(
        &mut self,
        origin: &O,
        block_size: u32,
    ) -> Result<Result<(), NewIncarnation>, O::Error> {
        let watermark = self.image.and_then(|image| image.watermark);
        let read = origin.each(batch_bounds(0, None), &mut |_key, value| {
            let unreadable = || damaged("a batch");
            let batch = pb::PublishBatch::decode(value).map_err(|_error| unreadable())?;
            let batch = PublishedBatch::read(batch, block_size).map_err(|_error| unreadable())?;
            let sequence = batch.sequence;
            let events = batch.events.into_boxed_slice();
            self.batches += 1;
            if watermark.is_none_or(|watermark| sequence > watermark) {
                self.log_bytes += value.len() as u64;
            }
            let batch = Batch::new(sequence, batch.rank, events);
            self.journal
                .replay(batch)
                .map_err(|missing| NewIncarnation::Damaged(format!("batch {missing} is missing")))
        })?;
        if read.is_ok() && self.journal.head() < watermark {
            return Ok(Err(damaged("the newest batches are missing")));
        }
        Ok(read)
    }
}
