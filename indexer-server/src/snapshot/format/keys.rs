//! Keys of the database: big-endian numbers, so that related keys are adjacent.

use super::reader::{FormatError, Reader};
use kvasir_index::{Slot, SourceId};
use kvasir_proto::types::{BlockName, DpRank};
use kvasir_store::Bounds;

// First byte of a key: kind of the record.
const MANIFEST: u8 = 0;
const WORKER: u8 = 1;
const REGISTRATION: u8 = 2;
const CONTENTS: u8 = 3;
const WRITE: u8 = 4;
const POSITION: u8 = 5;
const IMPORT: u8 = 6;

// Kind of a rank's content, within a contents key.
const PAGE: u8 = 0;
const NAME: u8 = 1;
const HOLE: u8 = 2;
const MEANING: u8 = 3;

/// Suffix above all suffixes of a key after its first two numbers.
const BEHIND: [u8; 20] = [u8::MAX; 20];

/// One item of a rank's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) enum Content {
    /// A page of slots, by its number.
    Page(u32),
    /// A name that is stored in full.
    Name(BlockName),
    /// A slot without a block.
    Hole(Slot),
    /// The meaning of a source's block name besides its tokens.
    Meaning(SourceId, BlockName),
}

/// Key of one item of a rank's contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) struct ContentKey {
    /// Number of the worker.
    pub(in crate::snapshot) worker: u32,
    /// Generation of the worker's images.
    pub(in crate::snapshot) generation: u32,
    /// The data-parallel rank.
    pub(in crate::snapshot) rank: DpRank,
    /// The item.
    pub(in crate::snapshot) content: Content,
}

impl ContentKey {
    /// Replaces the contents of `key` by the encoded key.
    pub(in crate::snapshot) fn encode(&self, key: &mut Vec<u8>) {
        key.clear();
        push_generation(key, self.worker, self.generation);
        key.extend(self.rank.to_be_bytes());
        match self.content {
            Content::Page(page) => {
                key.push(PAGE);
                key.extend(page.to_be_bytes());
            }
            Content::Name(name) => {
                key.push(NAME);
                key.extend(name.0.to_be_bytes());
            }
            Content::Hole(slot) => {
                key.push(HOLE);
                key.extend(slot.to_be_bytes());
            }
            Content::Meaning(source, name) => {
                key.push(MEANING);
                key.extend(source.0.to_be_bytes());
                key.extend(name.0.to_be_bytes());
            }
        }
    }

    /// Decodes the key of a worker's contents.
    ///
    /// # Errors
    /// If it is not a contents key.
    pub(in crate::snapshot) fn decode(key: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new("key", key);
        if reader.byte()? != CONTENTS {
            return Err(reader.range("kind"));
        }
        let worker = reader.array().map(u32::from_be_bytes)?;
        let generation = reader.array().map(u32::from_be_bytes)?;
        let rank = reader.array().map(u32::from_be_bytes)?;
        let content = match reader.byte()? {
            PAGE => Content::Page(reader.array().map(u32::from_be_bytes)?),
            NAME => Content::Name(BlockName(reader.array().map(u64::from_be_bytes)?)),
            HOLE => Content::Hole(reader.array().map(u32::from_be_bytes)?),
            MEANING => {
                let source = reader.array().map(u32::from_be_bytes)?;
                let name = reader.array().map(u64::from_be_bytes)?;
                Content::Meaning(SourceId(source), BlockName(name))
            }
            _ => return Err(reader.range("content")),
        };
        reader.check_end()?;
        Ok(Self { worker, generation, rank, content })
    }
}

/// Appends the prefix of all contents keys of one worker and generation.
fn push_generation(key: &mut Vec<u8>, worker: u32, generation: u32) {
    key.push(CONTENTS);
    key.extend(worker.to_be_bytes());
    key.extend(generation.to_be_bytes());
}

/// Worker and generation of a contents key.
///
/// # Errors
/// If it is not a contents key.
pub(in crate::snapshot) fn generation_of(key: &[u8]) -> Result<(u32, u32), FormatError> {
    ContentKey::decode(key).map(|key| (key.worker, key.generation))
}

/// Key of the manifest.
pub(in crate::snapshot) const fn manifest_key() -> [u8; 1] {
    [MANIFEST]
}

/// Key of the position in the broker's stream.
pub(in crate::snapshot) const fn position_key() -> [u8; 1] {
    [POSITION]
}

/// Key that exists during an import. While it exists, all other keys are invalid.
pub(in crate::snapshot) const fn import_key() -> [u8; 1] {
    [IMPORT]
}

/// Builds a key from its kind and the worker's number.
fn numbered(kind: u8, worker: u32) -> [u8; 5] {
    let [a, b, c, d] = worker.to_be_bytes();
    [kind, a, b, c, d]
}

/// Key of a worker's record.
pub(in crate::snapshot) fn worker_key(worker: u32) -> [u8; 5] {
    numbered(WORKER, worker)
}

/// Worker number in the key of a record.
///
/// # Errors
/// If it is not the key of a record.
pub(in crate::snapshot) fn worker_of(key: &[u8]) -> Result<u32, FormatError> {
    number_of(WORKER, key)
}

/// Worker number in the key of a registration.
///
/// # Errors
/// If it is not the key of a registration.
pub(in crate::snapshot) fn registration_of(key: &[u8]) -> Result<u32, FormatError> {
    number_of(REGISTRATION, key)
}

/// Reads the worker's number from a key. Fails if the key is of another kind.
fn number_of(kind: u8, key: &[u8]) -> Result<u32, FormatError> {
    let mut reader = Reader::new("key", key);
    if reader.byte()? != kind {
        return Err(reader.range("kind"));
    }
    let worker = reader.array().map(u32::from_be_bytes)?;
    reader.check_end()?;
    Ok(worker)
}

/// Key of a worker's registration.
pub(in crate::snapshot) fn registration_key(worker: u32) -> [u8; 5] {
    numbered(REGISTRATION, worker)
}

/// Key of the mark of write `number`.
pub(in crate::snapshot) fn write_key(number: u64) -> Vec<u8> {
    [&[WRITE][..], &number.to_be_bytes()].concat()
}

/// Returns the write number in the key of a mark.
///
/// # Errors
/// If it is not the key of a mark.
pub(in crate::snapshot) fn write_of(key: &[u8]) -> Result<u64, FormatError> {
    let mut reader = Reader::new("key", key);
    if reader.byte()? != WRITE {
        return Err(reader.range("kind"));
    }
    let number = reader.array().map(u64::from_be_bytes)?;
    reader.check_end()?;
    Ok(number)
}

/// Key range of all marks of writes.
pub(in crate::snapshot) fn write_bounds() -> Bounds {
    (vec![WRITE], vec![WRITE + 1])
}

/// Key range of all records of workers.
pub(in crate::snapshot) fn worker_bounds() -> Bounds {
    (vec![WORKER], vec![REGISTRATION])
}

/// Key range of all worker data: records, registrations and contents.
pub(in crate::snapshot) fn workers_bounds() -> Bounds {
    (vec![WORKER], vec![CONTENTS + 1])
}

/// Key range of an export: all worker data, and the position. The exporter skips other keys within the range.
pub(in crate::snapshot) fn export_bounds() -> Bounds {
    (vec![WORKER], vec![POSITION + 1])
}

/// Kind of a key, as far as exports include it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) enum KeyKind {
    /// The record of a worker.
    Worker,
    /// The registration of a worker.
    Registration,
    /// An item of a rank's contents.
    Contents,
    /// The position in the broker's stream.
    Position,
    /// A key that is not exported.
    Other,
}

impl KeyKind {
    /// Returns the kind of a key, by its first byte. Keys that exports leave out are [`Other`](Self::Other).
    pub(in crate::snapshot) const fn of(key: &[u8]) -> Self {
        match key.first() {
            Some(&WORKER) => Self::Worker,
            Some(&REGISTRATION) => Self::Registration,
            Some(&CONTENTS) => Self::Contents,
            Some(&POSITION) if key.len() == 1 => Self::Position,
            Some(_) | None => Self::Other,
        }
    }
}

/// Key range of one worker's contents in one generation.
pub(in crate::snapshot) fn generation_bounds(worker: u32, generation: u32) -> Bounds {
    let mut first = Vec::new();
    push_generation(&mut first, worker, generation);
    let behind = [first.as_slice(), &BEHIND].concat();
    (first, behind)
}

/// Key range of one worker's contents in all generations. `None`: contents of all workers.
pub(in crate::snapshot) fn contents_bounds(worker: Option<u32>) -> Bounds {
    let mut first = vec![CONTENTS];
    if let Some(worker) = worker {
        first.extend(worker.to_be_bytes());
    }
    let behind = [first.as_slice(), &BEHIND].concat();
    (first, behind)
}
