//! Keys and values in the database, and which changes belong together. Pure.

use super::records::{HoldingRecord, ImageRecord, IncarnationRecord, ManifestRecord, SourceRecord};
use crate::consolidate::HoldingChange;
use crate::disk::{HoldingsChange, NamesChange, PersistedSource};
use crate::journal::Batch;
use kvasir_proto::convert::{LocalDumpPart, encode_meaning, publish_batch};
use kvasir_proto::pb;
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, Incarnation};
use kvasir_store::Bounds;
use prost::Message;

pub(super) const MANIFEST: &[u8] = b"m";
pub(super) const INCARNATION: &[u8] = b"l";
pub(super) const IMAGE: &[u8] = b"i";
const BATCH: u8 = b'b';
const CHUNK: u8 = b'c';
const HOLDING: u8 = b'h';
const MEANING: u8 = b'n';
const SOURCE: u8 = b's';

/// Collects changes for one atomic write.
pub(super) trait Target {
    /// Sets a value.
    fn put(&mut self, key: &[u8], value: &[u8]);
    /// Removes a value.
    fn remove(&mut self, key: &[u8]);
    /// Removes all values of a range.
    fn remove_range(&mut self, bounds: Bounds);
}

pub(super) fn batch_key(sequence: u64) -> [u8; 9] {
    let mut key = [BATCH; 9];
    let (_, number) = key.split_at_mut(1);
    number.copy_from_slice(&sequence.to_be_bytes());
    key
}

/// Keys of the batches from `first` to before `behind`; without `behind`, to the last batch.
pub(super) fn batch_bounds(first: u64, behind: Option<u64>) -> Bounds {
    let end = behind.map_or_else(|| vec![BATCH + 1], |behind| batch_key(behind).to_vec());
    (batch_key(first).to_vec(), end)
}

pub(super) fn chunk_key(generation: u32, number: u32) -> [u8; 9] {
    let mut key = [CHUNK; 9];
    let (_, numbers) = key.split_at_mut(1);
    let both = u64::from(generation) << 32 | u64::from(number);
    numbers.copy_from_slice(&both.to_be_bytes());
    key
}

/// Keys of one image.
pub(super) fn image_bounds(generation: u32) -> Bounds {
    let behind = match generation.checked_add(1) {
        Some(next) => chunk_key(next, 0).to_vec(),
        None => vec![CHUNK + 1],
    };
    (chunk_key(generation, 0).to_vec(), behind)
}

pub(super) fn source_key(name: &str) -> Vec<u8> {
    [&[SOURCE], name.as_bytes()].concat()
}

pub(super) fn source_bounds() -> Bounds {
    (vec![SOURCE], vec![SOURCE + 1])
}

pub(super) fn source_name(key: &[u8]) -> Option<String> {
    let (_, name) = key.split_first()?;
    String::from_utf8(name.to_vec()).ok()
}

/// Prefix of one kind of keys of a source. The length of the name comes first, so that the key ranges of two sources
/// never overlap.
fn source_prefix(kind: u8, source: &str) -> Vec<u8> {
    // The contract bounds names: see `limits::NAME_BYTES_MAX`.
    let length = u32::try_from(source.len()).unwrap_or(u32::MAX);
    let parts: [&[u8]; 3] = [&[kind], &length.to_be_bytes(), source.as_bytes()];
    parts.concat()
}

/// Prefix of the keys of a source's holdings at a rank.
fn holdings_key(source: &str, rank: DpRank) -> Vec<u8> {
    [&source_prefix(HOLDING, source)[..], &rank.to_be_bytes()].concat()
}

/// Keys of the meanings of a source's names.
fn meanings_bounds(source: &str) -> Bounds {
    let first = source_prefix(MEANING, source);
    // Behind the last rank and name.
    let behind = [&first[..], &[u8::MAX; size_of::<(DpRank, BlockName)>() + 1]].concat();
    (first, behind)
}

/// Keys of the meanings of all sources' names.
pub(super) fn all_meanings_bounds() -> Bounds {
    (vec![MEANING], vec![MEANING + 1])
}

/// Keys of a source's holdings at a rank.
pub(super) fn holdings_bounds(source: &str, rank: DpRank) -> Bounds {
    let first = holdings_key(source, rank);
    // Behind the last name.
    let behind = [&first[..], &[u8::MAX; size_of::<BlockName>() + 1]].concat();
    (first, behind)
}

/// Keys of all holdings.
pub(super) fn all_holdings_bounds() -> Bounds {
    (vec![HOLDING], vec![HOLDING + 1])
}

/// Returns the source, rank and block name of the key of a holding or a meaning, or `None` if the key is invalid.
pub(super) fn read_name_key(key: &[u8]) -> Option<(&str, DpRank, BlockName)> {
    let (_, rest) = key.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (source, rest) = rest.split_at_checked(length)?;
    let (rank, name) = rest.split_first_chunk()?;
    let source = str::from_utf8(source).ok()?;
    Some((source, u32::from_be_bytes(*rank), BlockName(u64::from_be_bytes(name.try_into().ok()?))))
}

/// Writes the owner and settings of the folder.
pub(super) fn put_manifest(manifest: &ManifestRecord, target: &mut impl Target) {
    target.put(MANIFEST, &manifest.encode_to_vec());
}

/// Begins an incarnation, and removes everything of the previous one.
pub(super) fn begin_incarnation(incarnation: Incarnation, first: u64, target: &mut impl Target) {
    target.remove_range(batch_bounds(0, None));
    target.remove_range((vec![CHUNK], vec![CHUNK + 1]));
    target.remove_range(source_bounds());
    target.remove_range(all_holdings_bounds());
    target.remove_range(all_meanings_bounds());
    target.remove(IMAGE);
    target.put(INCARNATION, &IncarnationRecord::new(incarnation, first).encode_to_vec());
}

/// Writes a batch; `scratch` is reused. Returns the bytes of its value.
pub(super) fn put_batch(batch: &Batch, scratch: &mut Vec<u8>, target: &mut impl Target) -> usize {
    scratch.clear();
    let message = publish_batch(batch.sequence(), batch.rank(), batch.events());
    // Cannot fail: a vector grows as needed.
    let _room = message.encode(scratch);
    target.put(&batch_key(batch.sequence()), scratch);
    scratch.len()
}

/// Writes the position of a source.
pub(super) fn put_source(
    source: &PersistedSource,
    scratch: &mut Vec<u8>,
    target: &mut impl Target,
) {
    scratch.clear();
    let _room = SourceRecord::from(source).encode(scratch);
    target.put(&source_key(&source.name), scratch);
}

/// Removes the meanings of a source's names.
pub(super) fn remove_meanings(source: &str, target: &mut impl Target) {
    target.remove_range(meanings_bounds(source));
}

/// Writes new meanings of a source's names.
pub(super) fn put_meanings(
    NamesChange { source, changes }: &NamesChange<'_>,
    target: &mut impl Target,
) {
    let mut key = source_prefix(MEANING, source);
    let length = key.len();
    for change in *changes {
        key.truncate(length);
        key.extend(change.rank.to_be_bytes());
        key.extend(change.name.0.to_be_bytes());
        match &change.meaning {
            Some(meaning) => target.put(&key, &encode_meaning(change.name, meaning)),
            None => target.remove(&key),
        }
    }
}

/// Writes changes of a source's holdings.
pub(super) fn put_holdings(
    HoldingsChange { source, rank, changes }: &HoldingsChange<'_>,
    scratch: &mut Vec<u8>,
    target: &mut impl Target,
) {
    let mut key = holdings_key(source, *rank);
    let length = key.len();
    for change in *changes {
        key.truncate(length);
        match change {
            HoldingChange::Cleared => target.remove_range(holdings_bounds(source, *rank)),
            HoldingChange::Held(holding) => {
                key.extend(holding.name.0.to_be_bytes());
                scratch.clear();
                let _room = HoldingRecord::from(holding).encode(scratch);
                target.put(&key, scratch);
            }
            HoldingChange::Gone(name) => {
                key.extend(name.0.to_be_bytes());
                target.remove(&key);
            }
        }
    }
}

/// Value of one chunk of an image. A chunk without records marks that blocks of the rank were refused.
pub(super) fn chunk_value(rank: DpRank, records: Vec<HeldBlock>) -> Vec<u8> {
    pb::LocalDumpResponse::from(LocalDumpPart::Chunk { rank, records }).encode_to_vec()
}

/// Makes a complete image with all its chunks current, in place of the previous image. Removes batches before
/// `retain_from`, which are no longer needed.
pub(super) fn put_image(
    image: ImageRecord,
    before: Option<u32>,
    retain_from: u64,
    target: &mut impl Target,
) {
    target.put(IMAGE, &image.encode_to_vec());
    if let Some(before) = before {
        target.remove_range(image_bounds(before));
    }
    if retain_from > 0 {
        target.remove_range(batch_bounds(0, Some(retain_from)));
    }
}
