//! Keys: numbers in big-endian order, so that what belongs together lies together.

use super::reader::{FormatError, Reader};
use kvasir_index::{Slot, SourceId};
use kvasir_proto::types::{BlockName, DpRank};
use kvasir_store::Bounds;

// First byte of a key: what it leads to.
const MANIFEST: u8 = 0;
const WORKER: u8 = 1;
const REGISTRATION: u8 = 2;
const CONTENTS: u8 = 3;
const WRITE: u8 = 4;
const POSITION: u8 = 5;
const IMPORT: u8 = 6;

// What a key of a rank's contents leads to.
const PAGE: u8 = 0;
const NAME: u8 = 1;
const HOLE: u8 = 2;
const MEANING: u8 = 3;

/// More than any key has behind its first two numbers.
const BEHIND: [u8; 20] = [u8::MAX; 20];

/// One thing that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) enum Content {
    /// A page of slots, by its number.
    Page(u32),
    /// A name that is spelled out.
    Name(BlockName),
    /// A slot that it does not hold.
    Hole(Slot),
    /// A name of a source that means something besides its tokens.
    Meaning(SourceId, BlockName),
}

/// Key of one thing that a rank holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) struct ContentKey {
    /// Number of the worker.
    pub(in crate::snapshot) worker: u32,
    /// Its generation.
    pub(in crate::snapshot) generation: u32,
    /// The rank.
    pub(in crate::snapshot) rank: DpRank,
    /// What it is.
    pub(in crate::snapshot) content: Content,
}

impl ContentKey {
    /// Writes the key in place of what `key` has.
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

    /// Reads a key.
    ///
    /// # Errors
    /// If it is not one of a rank's contents.
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
        reader.end()?;
        Ok(Self { worker, generation, rank, content })
    }
}

fn push_generation(key: &mut Vec<u8>, worker: u32, generation: u32) {
    key.push(CONTENTS);
    key.extend(worker.to_be_bytes());
    key.extend(generation.to_be_bytes());
}

/// Worker and generation of any key of contents, however it goes on.
///
/// # Errors
/// If it is no key of contents.
pub(in crate::snapshot) fn generation_of(key: &[u8]) -> Result<(u32, u32), FormatError> {
    ContentKey::decode(key).map(|key| (key.worker, key.generation))
}

/// Where the manifest is.
pub(in crate::snapshot) const fn manifest_key() -> [u8; 1] {
    [MANIFEST]
}

/// Where the position in the broker's stream is.
pub(in crate::snapshot) const fn position_key() -> [u8; 1] {
    [POSITION]
}

/// What is there while an import is under way: nothing else counts then.
pub(in crate::snapshot) const fn import_key() -> [u8; 1] {
    [IMPORT]
}

fn numbered(kind: u8, worker: u32) -> [u8; 5] {
    let [a, b, c, d] = worker.to_be_bytes();
    [kind, a, b, c, d]
}

/// Where the record of a worker is.
pub(in crate::snapshot) fn worker_key(worker: u32) -> [u8; 5] {
    numbered(WORKER, worker)
}

/// Number of the worker that a record is of.
///
/// # Errors
/// If it is no key of a record.
pub(in crate::snapshot) fn worker_of(key: &[u8]) -> Result<u32, FormatError> {
    number_of(WORKER, key)
}

/// Number of the worker that a registration is of.
///
/// # Errors
/// If it is no key of a registration.
pub(in crate::snapshot) fn registration_of(key: &[u8]) -> Result<u32, FormatError> {
    number_of(REGISTRATION, key)
}

fn number_of(kind: u8, key: &[u8]) -> Result<u32, FormatError> {
    let mut reader = Reader::new("key", key);
    if reader.byte()? != kind {
        return Err(reader.range("kind"));
    }
    let worker = reader.array().map(u32::from_be_bytes)?;
    reader.end()?;
    Ok(worker)
}

/// Where the registration of a worker is.
pub(in crate::snapshot) fn registration_key(worker: u32) -> [u8; 5] {
    numbered(REGISTRATION, worker)
}

/// Where a write of that number leaves its mark.
pub(in crate::snapshot) fn write_key(number: u64) -> Vec<u8> {
    [&[WRITE][..], &number.to_be_bytes()].concat()
}

/// Number of the write that a mark is of.
///
/// # Errors
/// If it is no key of a mark.
pub(in crate::snapshot) fn write_of(key: &[u8]) -> Result<u64, FormatError> {
    let mut reader = Reader::new("key", key);
    if reader.byte()? != WRITE {
        return Err(reader.range("kind"));
    }
    let number = reader.array().map(u64::from_be_bytes)?;
    reader.end()?;
    Ok(number)
}

/// All marks of writes.
pub(in crate::snapshot) fn write_bounds() -> Bounds {
    (vec![WRITE], vec![WRITE + 1])
}

/// All records of workers.
pub(in crate::snapshot) fn worker_bounds() -> Bounds {
    (vec![WORKER], vec![REGISTRATION])
}

/// All of workers: records, registrations and contents.
pub(in crate::snapshot) fn workers_bounds() -> Bounds {
    (vec![WORKER], vec![CONTENTS + 1])
}

/// What an export has: all of workers, and the position; within, what is not of it is skipped.
pub(in crate::snapshot) fn export_bounds() -> Bounds {
    (vec![WORKER], vec![POSITION + 1])
}

/// What a key leads to, as far as exports have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::snapshot) enum KeyKind {
    /// The record of a worker.
    Worker,
    /// The registration of a worker.
    Registration,
    /// What a rank holds.
    Contents,
    /// The position in the broker's stream.
    Position,
    /// Something that is not exported.
    Other,
}

impl KeyKind {
    /// The kind of any key.
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

/// The contents of one worker in one generation.
pub(in crate::snapshot) fn generation_bounds(worker: u32, generation: u32) -> Bounds {
    let mut first = Vec::new();
    push_generation(&mut first, worker, generation);
    let behind = [first.as_slice(), &BEHIND].concat();
    (first, behind)
}

/// The contents of one worker in all generations; of all workers if it is none.
pub(in crate::snapshot) fn contents_bounds(worker: Option<u32>) -> Bounds {
    let mut first = vec![CONTENTS];
    if let Some(worker) = worker {
        first.extend(worker.to_be_bytes());
    }
    let behind = [first.as_slice(), &BEHIND].concat();
    (first, behind)
}
