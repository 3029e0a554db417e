use super::broker::map_is_by_broker;
use super::shard_map::{self, ReadMap};
use super::{ConfigError, Options};
use crate::ingest::ShardConfig;
use kvasir_proto::limits::SHARD_MAP_BYTES_MAX;
use kvasir_proto::shard::ShardMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

const FIELD: &str = "shard-map";

/// The source of the map of shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MapSource {
    /// A file, read at start and at SIGHUP.
    File {
        /// The file.
        path: PathBuf,
        /// Warning for the log about the file's format.
        warning: Option<String>,
    },
    /// NATS' key-value store, watched for changes.
    Broker,
}

/// The shard of this server and the source of its map, as configured.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Sharding {
    pub(super) shard: Option<ShardConfig>,
    pub(super) source: Option<MapSource>,
}

/// Reads the options `shard` and `shard-map`: this server's shard, the first map, and the source of later maps. Empty
/// if `shard` is unset.
pub(super) fn sharding(options: &Options) -> Result<Sharding, ConfigError> {
    let Some(place) = options.shard else {
        if options.shard_map.is_some() {
            return Err(ConfigError::invalid(FIELD, "needs shard beside it, such as 0/3"));
        }
        return Ok(Sharding::default());
    };
    let even = ShardMap::even(place.shards());
    let (map, source) = match &options.shard_map {
        None => (even, None),
        Some(_) if map_is_by_broker(options) => (even, Some(MapSource::Broker)),
        Some(path) => {
            let ReadMap { map, warning } = read_shard_map(path)?;
            map.check_after(&even).map_err(|error| refused(path, &error.to_string()))?;
            (map, Some(MapSource::File { path: path.clone(), warning }))
        }
    };
    Ok(Sharding { shard: Some(ShardConfig { place, map }), source })
}

/// Reads a map of shards.
///
/// # Errors
/// If the file cannot be read, is too large or malformed. The error shows the location.
pub fn read_shard_map(path: &Path) -> Result<ReadMap, ConfigError> {
    let mut text = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SHARD_MAP_BYTES_MAX as u64 + 1).read_to_end(&mut text))
        .map_err(|error| refused(path, &error.to_string()))?;
    parse(&text).map_err(|problem| refused(path, &problem))
}

/// Parses a map of shards received from NATS.
///
/// # Errors
/// If the map is too large or malformed. The error shows the location.
pub fn parse_shard_map(text: &[u8]) -> Result<ReadMap, ConfigError> {
    parse(text).map_err(|problem| ConfigError::invalid(FIELD, problem))
}

fn parse(text: &[u8]) -> Result<ReadMap, String> {
    if text.len() > SHARD_MAP_BYTES_MAX {
        return Err(format!("has more than {SHARD_MAP_BYTES_MAX} bytes, the limit"));
    }
    let text = str::from_utf8(text).map_err(|error| error.to_string())?;
    shard_map::parse(text).map_err(|error| error.to_string())
}

fn refused(path: &Path, why: &str) -> ConfigError {
    ConfigError::invalid(FIELD, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_process::config::defaults;
    use std::fs;

    fn check(place: Option<&str>, map: Option<&str>) -> Result<Sharding, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("map");
        if let Some(map) = map {
            fs::write(&path, map).expect("a file");
        }
        let options = Options {
            shard: place.map(|place| place.parse().expect("a place")),
            shard_map: map.map(|_| path.clone()),
            ..defaults::<Options>().expect("sound defaults")
        };
        let text = |error: ConfigError| error.to_string().replace(&*path.to_string_lossy(), "FILE");
        sharding(&options).map_err(text)
    }

    #[test]
    fn a_shard_has_a_place_and_a_map() {
        assert_eq!(check(None, None), Ok(Sharding::default()));
        let even = check(Some("1/3"), None).expect("valid");
        assert_eq!(even.source, None);
        let even = even.shard.expect("a shard");
        assert_eq!((even.place.to_string(), even.map.version()), ("1/3".to_owned(), 0));
        let map = "version = 2\nshards = 2\nbuckets = [{ first = 0, last = 255, shard = 0 }]\n";
        let old = "version 2\nshards 2\nbuckets 0-255 shard 0\n";
        for (text, is_warned) in [(map, false), (old, true)] {
            let given = check(Some("1/2"), Some(text)).expect("valid");
            let Some(MapSource::File { warning, .. }) = given.source else { panic!("{text}") };
            assert_eq!(warning.is_some(), is_warned, "{text}");
            let given = given.shard.expect("a shard");
            assert_eq!((given.map.version(), given.map.owner(255)), (2, 0), "{text}");
        }

        let refused = |place, map: &str, expected: &str| {
            assert_eq!(check(place, Some(map)).expect_err(map), expected);
        };
        refused(None, map, "shard-map: needs shard beside it, such as 0/3");
        let other = "shard-map: FILE: the map has 2 shards, must have 3";
        refused(Some("0/3"), map, other);
        let expected = "shard-map: FILE: line 1: shards is missing: add a line with it";
        refused(Some("0/2"), "version 1", expected);
        let stale = map.replace("version = 2", "version = 0");
        let expected = "shard-map: FILE: version is 0, must be above 0, the one in use";
        refused(Some("0/2"), &stale, expected);
        let long = " ".repeat(SHARD_MAP_BYTES_MAX + 1);
        refused(Some("0/2"), &long, "shard-map: FILE: has more than 65536 bytes, the limit");
    }
}
