//! The format before release 0.2: one entry per line; `#` starts a comment. Release 0.3 removes it.
//!
//! ```text
//! version 4
//! shards 2
//! buckets 0-85 shard 0
//! buckets 86-255 shard 1
//! moving 16-31 shard 1
//! ```

use super::entries::{Entries, Entry, MapTextError};

/// Whether a text has this format: its first line is a key and a number, without the `=` of TOML.
pub(super) fn has_lines(text: &str) -> bool {
    words(text).next().is_some_and(|(_, words)| match *words {
        ["version" | "shards" | "buckets" | "moving", value, ..] => {
            value.starts_with(|at: char| at.is_ascii_digit())
        }
        _ => false,
    })
}

/// The words of each line that is not empty, with the number of the line.
fn words(text: &str) -> impl Iterator<Item = (usize, Vec<&str>)> {
    let lines = (1..).zip(text.lines()).map(|(line, text)| {
        let fact = text.split('#').next().unwrap_or_default();
        (line, fact.split_whitespace().take(5).collect::<Vec<_>>())
    });
    lines.filter(|(_, words)| !words.is_empty())
}

/// Parses the entries of a shard map in the line format of earlier builds.
pub(super) fn parse(text: &str) -> Result<Entries, MapTextError> {
    let mut version = None;
    let mut shards = None;
    let mut buckets = Vec::new();
    let mut moving = Vec::new();
    for (line, words) in words(text) {
        let is_first = match *words {
            ["version", value] => version.replace(number(line, value)?).is_none(),
            ["shards", value] => shards.replace((line, number(line, value)?)).is_none(),
            ["buckets", range, "shard", shard] => {
                buckets.push(entry(line, range, shard)?);
                true
            }
            ["moving", range, "shard", shard] => {
                moving.push(entry(line, range, shard)?);
                true
            }
            _ => return Err(refused(line)),
        };
        if !is_first {
            let key = words.first().copied().unwrap_or_default();
            return Err(MapTextError::new(line, format!("{key} is given twice: remove one")));
        }
    }
    let missing = |key| MapTextError::new(1, format!("{key} is missing: add a line with it"));
    Ok(Entries {
        version: version.ok_or_else(|| missing("version"))?,
        shards: shards.ok_or_else(|| missing("shards"))?,
        buckets_line: buckets.last().map_or(1, |entry: &Entry| entry.line),
        buckets,
        moving,
    })
}

fn entry(line: usize, range: &str, shard: &str) -> Result<Entry, MapTextError> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let [first, last] = [number(line, first)?, number(line, last)?];
    Ok(Entry { line, first, last, shard: number(line, shard)? })
}

fn number(line: usize, text: &str) -> Result<u64, MapTextError> {
    text.parse().map_err(|_not_a_number| refused(line))
}

fn refused(line: usize) -> MapTextError {
    let problem = "write one of: version N, shards N, buckets A-B shard I, moving A-B shard I";
    MapTextError::new(line, problem)
}
