//! Opens a file and recovers its blocks. Reads only header and table.

use super::error::DiskError;
use super::file::{self, Way, io_error};
use super::format::{
    Entry, Geometry, Header, NoHeader, PAGE_BYTES, RECORD_BYTES, Record, VERSION, record_offset,
};
use super::medium::{Medium, write_all};
use super::{DiskConfig, DiskStorage, Opened};
use crate::block::Sealed;
use crate::error::TransferError;
use kvasir_memory::Claims;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A block found in the file. Its data is verified when it is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovered {
    /// The block's slot.
    pub slot: u32,
    /// Identity, size and checksum.
    pub block: Sealed,
}

/// The decoded table.
struct Table {
    blocks: Vec<(u32, Record)>,
    /// Slots with damaged records.
    damaged: Vec<u32>,
    superseded: Vec<u32>,
}

/// Opens or creates the file and its table, and reads the blocks in it. A new file gets its header last, so a file
/// without a header is incomplete.
pub(super) fn open_storage(
    config: &DiskConfig,
    file_id: u64,
    through: impl Fn(File) -> Box<dyn Medium>,
) -> Result<Opened, DiskError> {
    let path = &*config.path;
    let DiskConfig { block_bytes, slots, .. } = *config;
    let geometry = Geometry::new(block_bytes, slots);
    let geometry = geometry.ok_or(DiskError::Geometry { block_bytes, slots })?;
    let file = file::open_locked(path)?;
    let found = read_header(&file, path)?;
    let is_new = found.is_none();
    let header = match found {
        Some(found) => check(found, config)?,
        None => header(config, file_id),
    };
    let is_preallocated = file::reserve(&file, path, geometry.file_bytes)?;
    let table_file = file::open_table(path, record_offset(slots), is_new)?;
    if is_new {
        // Write the header last: a file without a header is incomplete.
        file.write_all_at(&header.encode(), 0)
            .map_err(io_error(path, "cannot write its header"))?;
    }
    let table = read_table(&table_file, path, &geometry, header.file_id)?;
    let (direct, way) = match config.direct {
        true => file::direct(path)?,
        false => (None, Way::Buffered { reason: "it was not wanted".to_owned() }),
    };
    if let Way::Buffered { reason } = &way {
        tracing::warn!(path = %path.display(), reason, "the disk tier uses the page cache");
    }
    let data = match direct {
        Some(direct) => direct,
        None => file.try_clone().map_err(io_error(path, "cannot open it twice"))?,
    };
    let next_write =
        table.blocks.last().map_or(1, |(_, record)| record.write_number.saturating_add(1));
    let storage = DiskStorage {
        geometry,
        file_id: header.file_id,
        table: through(table_file),
        data: through(data),
        _lock: file,
        way,
        is_preallocated,
        claims: Claims::new(slots),
        recorded: (0..slots).map(|_| AtomicBool::new(false)).collect(),
        next_write: AtomicU64::new(next_write),
        buffers: Mutex::default(),
    };
    clean_table(storage, &table, path)
}

/// Erases damaged and superseded records, and returns the storage with the blocks of all other records.
fn clean_table(storage: DiskStorage, table: &Table, path: &Path) -> Result<Opened, DiskError> {
    let counted = |slots: &[u32]| u32::try_from(slots.len()).unwrap_or(u32::MAX);
    for slot in table.damaged.iter().chain(&table.superseded) {
        let offset = record_offset(*slot);
        let erased = write_all(&*storage.table, &[0; RECORD_BYTES], offset);
        let failed = |error: TransferError| io::Error::other(error.to_string());
        erased.map_err(failed).map_err(io_error(path, "cannot erase a record"))?;
    }
    for (slot, _) in &table.blocks {
        if let Some(recorded) = storage.is_recorded(*slot) {
            recorded.store(true, Ordering::Release);
        }
    }
    let blocks = table.blocks.iter();
    Ok(Opened {
        blocks: blocks
            .map(|(slot, record)| Recovered { slot: *slot, block: record.block })
            .collect(),
        damaged_records: counted(&table.damaged),
        superseded_records: counted(&table.superseded),
        storage,
    })
}

/// Builds the header of a file with this configuration.
fn header(config: &DiskConfig, file_id: u64) -> Header {
    Header {
        block_bytes: u64::try_from(config.block_bytes).unwrap_or(u64::MAX),
        slots: config.slots,
        fingerprint: config.fingerprint,
        file_id,
        description: config.description.clone(),
    }
}

/// Reads the file's header. Returns `None` if the file is new or incomplete, and fails if another program or version
/// wrote it.
fn read_header(file: &File, path: &Path) -> Result<Option<Header>, DiskError> {
    let size = file.metadata().map_err(io_error(path, "cannot see its size"))?.len();
    let mut page = vec![0; PAGE_BYTES.min(usize::try_from(size).unwrap_or(PAGE_BYTES))];
    file.read_exact_at(&mut page, 0).map_err(io_error(path, "cannot read its header"))?;
    let path = path.to_path_buf();
    match Header::decode(&page) {
        Ok(header) => Ok(Some(header)),
        Err(NoHeader::Empty) => Ok(None),
        Err(NoHeader::Foreign) => Err(DiskError::Foreign { path }),
        Err(NoHeader::Version(found)) => Err(DiskError::Version { path, found, ours: VERSION }),
        Err(NoHeader::Damaged) => Err(DiskError::Damaged { path }),
    }
}

/// Refuses a file whose blocks have a different size, number or fingerprint.
fn check(found: Header, config: &DiskConfig) -> Result<Header, DiskError> {
    let ours = header(config, found.file_id);
    let is_ours = (found.block_bytes, found.slots, found.fingerprint)
        == (ours.block_bytes, ours.slots, ours.fingerprint);
    if is_ours {
        return Ok(found);
    }
    let words = |header: &Header| {
        let Header { block_bytes, slots, fingerprint, description, .. } = header;
        format!("{description}: {slots} blocks of {block_bytes} bytes, fingerprint {fingerprint}")
    };
    let path = config.path.clone();
    Err(DiskError::Layout { path, found: words(&found), ours: words(&ours) })
}

/// Reads the records of all slots. If two records have the same block, the record with the higher write number counts;
/// the other one is superseded.
fn read_table(
    file: &File,
    path: &Path,
    geometry: &Geometry,
    file_id: u64,
) -> Result<Table, DiskError> {
    let bytes = record_offset(geometry.slots);
    let mut records = vec![0; usize::try_from(bytes).unwrap_or_default()];
    let read = file.read_exact_at(&mut records, 0);
    read.map_err(io_error(path, "cannot read its table"))?;
    let mut table = Table { blocks: Vec::new(), damaged: Vec::new(), superseded: Vec::new() };
    let mut newest: HashMap<u64, (u32, Record)> = HashMap::new();
    for (slot, record) in (0..geometry.slots).zip(records.chunks_exact(RECORD_BYTES)) {
        match Entry::decode(record, file_id, slot, geometry.block_bytes) {
            Entry::Empty => {}
            Entry::Damaged => table.damaged.push(slot),
            Entry::Block(record) => {
                let name = record.block.identity.sequence_hash;
                match newest.get(&name) {
                    Some((_, known)) if known.write_number > record.write_number => {
                        table.superseded.push(slot);
                    }
                    Some((known, _)) => {
                        table.superseded.push(*known);
                        newest.insert(name, (slot, record));
                    }
                    None => drop(newest.insert(name, (slot, record))),
                }
            }
        }
    }
    table.blocks = newest.into_values().collect();
    table.blocks.sort_unstable_by_key(|(slot, record)| (record.write_number, *slot));
    Ok(table)
}
