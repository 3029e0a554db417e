//! Reads and writes the text of a shard map: TOML. Release 0.2 also reads the lines of earlier builds.

mod document;
mod entries;
mod lines;

pub use document::shard_map_toml;
pub use entries::MapTextError;

use kvasir_proto::shard::ShardMap;

/// A shard map that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadMap {
    /// The map.
    pub map: ShardMap,
    /// Warning for the log, if the text has the format of earlier builds.
    pub warning: Option<String>,
}

/// Parses a shard map in TOML, or in the line format of earlier builds with a warning.
pub(super) fn parse(text: &str) -> Result<ReadMap, MapTextError> {
    if !lines::has_lines(text) {
        return Ok(ReadMap { map: document::parse(text)?.build()?, warning: None });
    }
    let map = lines::parse(text)?.build()?;
    let warning = format!(
        "the shard map has the format of earlier builds, which release 0.3 will not read: when all servers run 0.2, \
         replace the map by this TOML:\n{}",
        shard_map_toml(&map)
    );
    Ok(ReadMap { map, warning: Some(warning) })
}

#[cfg(test)]
#[path = "shard_map_test.rs"]
mod tests;
