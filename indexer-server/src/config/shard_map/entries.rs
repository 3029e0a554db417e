use kvasir_proto::hash::BUCKETS;
use kvasir_proto::shard::{ShardCount, ShardMap};
use std::fmt;

/// Why the text of a shard map is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct MapTextError {
    /// Number of the line, from 1.
    line: usize,
    /// Key, problem and fix.
    problem: String,
}

impl MapTextError {
    pub(super) fn new(line: usize, problem: impl Into<String>) -> Self {
        Self { line, problem: problem.into() }
    }
}

/// The line of a byte, from 1.
pub(super) fn line_at(text: &str, byte: usize) -> usize {
    let before = text.bytes().take(byte);
    before.filter(|byte| *byte == b'\n').count().saturating_add(1)
}

/// A range of buckets and a shard, as written.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) line: usize,
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) shard: u64,
}

impl Entry {
    fn refused(&self, key: &str, problem: impl fmt::Display) -> MapTextError {
        MapTextError::new(self.line, format!("{key}: {problem}"))
    }
}

/// A shard map as written. No value is validated.
pub(super) struct Entries {
    pub(super) version: u64,
    /// Line and value.
    pub(super) shards: (usize, u64),
    /// The line to name if a bucket has no shard.
    pub(super) buckets_line: usize,
    pub(super) buckets: Vec<Entry>,
    pub(super) moving: Vec<Entry>,
}

impl Entries {
    /// Validates the entries, and builds the shard map. Fails if a bucket lacks a shard or occurs twice.
    pub(super) fn build(&self) -> Result<ShardMap, MapTextError> {
        let (line, shards) = self.shards;
        let shards = ShardCount::new(saturated(shards))
            .map_err(|error| MapTextError::new(line, format!("shards: {error}")))?;
        let mut map = ShardMap::even(shards);
        for (bucket, owner) in (0..=u8::MAX).zip(by_bucket("buckets", &self.buckets)?) {
            let Some(owner) = owner else {
                let problem = format!("buckets: bucket {bucket} has no shard: assign it to one");
                return Err(MapTextError::new(self.buckets_line, problem));
            };
            map = map
                .moved(bucket, saturated(owner.shard))
                .map_err(|error| owner.refused("buckets", error))?;
        }
        for (bucket, taker) in (0..=u8::MAX).zip(by_bucket("moving", &self.moving)?) {
            if let Some(taker) = taker {
                map = map
                    .moving(bucket, saturated(taker.shard))
                    .map_err(|error| taker.refused("moving", error))?;
            }
        }
        Ok(map.with_version(self.version))
    }
}

/// Returns for each bucket the entry that contains it. Fails if a range is invalid or two entries overlap.
fn by_bucket(key: &str, entries: &[Entry]) -> Result<[Option<Entry>; BUCKETS], MapTextError> {
    let mut all: [Option<Entry>; BUCKETS] = [None; BUCKETS];
    for entry in entries {
        let Entry { first, last, .. } = *entry;
        if first > last {
            let problem = format!("first is {first}, must be at most last, which is {last}");
            return Err(entry.refused(key, problem));
        }
        let range = index(first)..=index(last);
        let Some(buckets) = all.get_mut(range) else {
            return Err(entry.refused(key, format!("last is {last}, must be 0 to {}", u8::MAX)));
        };
        for bucket in buckets {
            if let Some(other) = bucket.replace(*entry) {
                let problem = format!(
                    "buckets {first} to {last} overlap line {}: list each bucket once",
                    other.line
                );
                return Err(entry.refused(key, problem));
            }
        }
    }
    Ok(all)
}

/// The bucket, or `BUCKETS` if it does not exist.
fn index(bucket: u64) -> usize {
    usize::try_from(bucket).map_or(BUCKETS, |bucket| bucket.min(BUCKETS))
}

/// The number, at most `u32::MAX`, which no shard has.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
