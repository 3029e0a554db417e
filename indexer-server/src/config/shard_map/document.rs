//! A shard map as TOML:
//!
//! ```toml
//! version = 4
//! shards = 3
//! buckets = [
//!     { first = 0, last = 85, shard = 0 },
//!     { first = 86, last = 170, shard = 1 },
//!     { first = 171, last = 255, shard = 2 },
//! ]
//! moving = [
//!     { first = 16, last = 31, to_shard = 2 },
//! ]
//! ```

use super::entries::{Entries, Entry, MapTextError, line_at};
use kvasir_proto::shard::{BucketRange, ShardId, ShardMap};
use serde::Deserialize;
use std::fmt::Write;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    version: u64,
    shards: Spanned<u64>,
    buckets: Spanned<Vec<Spanned<Buckets>>>,
    #[serde(default)]
    moving: Vec<Spanned<Moving>>,
}

/// Buckets that a shard owns.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Buckets {
    first: u64,
    last: u64,
    shard: u64,
}

/// Buckets that are moving to a shard.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Moving {
    first: u64,
    last: u64,
    to_shard: u64,
}

/// Parses the entries of a shard map in TOML.
pub(super) fn parse(text: &str) -> Result<Entries, MapTextError> {
    let document: Document = toml::from_str(text).map_err(|error| refused(text, error))?;
    let line = |at: usize| line_at(text, at);
    let owned = |at: &Spanned<Buckets>| {
        let Buckets { first, last, shard } = *at.get_ref();
        Entry { line: line(at.span().start), first, last, shard }
    };
    let moving = |at: &Spanned<Moving>| {
        let Moving { first, last, to_shard: shard } = *at.get_ref();
        Entry { line: line(at.span().start), first, last, shard }
    };
    Ok(Entries {
        version: document.version,
        shards: (line(document.shards.span().start), *document.shards.get_ref()),
        buckets_line: line(document.buckets.span().start),
        buckets: document.buckets.get_ref().iter().map(owned).collect(),
        moving: document.moving.iter().map(moving).collect(),
    })
}

/// Builds the error of a shard map: the line, the problem and the required form.
fn refused(text: &str, mut error: toml::de::Error) -> MapTextError {
    let line = line_at(text, error.span().map_or(0, |span| span.start));
    // Without its input, the error shows the key in place of the line's text.
    error.set_input(None);
    let problem = error.to_string().trim_end().replace('\n', " ");
    let fix = "write version, shards and buckets = [{ first = 0, last = 255, shard = 0 }], and optionally \
               moving = [{ first = 16, last = 31, to_shard = 1 }]; all values are whole numbers";
    MapTextError::new(line, format!("{problem}: {fix}"))
}

/// Writes a shard map as TOML, with one line for each range of buckets.
#[must_use]
pub fn shard_map_toml(map: &ShardMap) -> String {
    let mut text = format!("version = {}\nshards = {}\n", map.version(), map.shards());
    write_ranges(&mut text, "buckets", "shard", map, ShardMap::owned);
    write_ranges(&mut text, "moving", "to_shard", map, ShardMap::taken);
    text
}

/// Appends the ranges of all shards to `text` in the order of buckets. Appends nothing if all shards lack ranges.
fn write_ranges(
    text: &mut String,
    key: &str,
    shard_key: &str,
    map: &ShardMap,
    ranges: impl Fn(&ShardMap, ShardId) -> Vec<BucketRange>,
) {
    let shards = 0..=map.shards().last();
    let mut all: Vec<_> = shards
        .flat_map(|shard| ranges(map, shard).into_iter().map(move |range| (range, shard)))
        .collect();
    if all.is_empty() {
        return;
    }
    all.sort_by_key(|(range, _)| range.first);
    // Writing to a String does not fail.
    let _infallible = writeln!(text, "{key} = [");
    for (BucketRange { first, last }, shard) in all {
        let _infallible =
            writeln!(text, "    {{ first = {first}, last = {last}, {shard_key} = {shard} }},");
    }
    text.push_str("]\n");
}
