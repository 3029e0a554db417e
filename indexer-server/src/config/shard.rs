use super::{ConfigError, Options, broker::map_is_by_broker};
use crate::ingest::ShardConfig;
use kvasir_proto::{limits::SHARD_MAP_BYTES_MAX, shard::ShardMap};
use std::{fs::File, io::Read, path::Path};

const FIELD: &str = "shard-map";

/// The shard of this server, as configured.
pub(super) fn shard(options: &Options) -> Result<Option<ShardConfig>, ConfigError> {
    let Some(place) = options.shard else {
        if options.shard_map.is_some() {
            return Err(ConfigError::invalid(FIELD, "needs shard beside it, such as 0/3"));
        }
        return Ok(None);
    };
    let mut map = ShardMap::even(place.shards());
    if let Some(path) = options.shard_map.as_ref().filter(|_| !map_is_by_broker(options)) {
        let given = read_shard_map(path)?;
        given.check_after(&map).map_err(|error| refused(path, &error.to_string()))?;
        map = given;
    }
    Ok(Some(ShardConfig { place, map }))
}

/// Reads a map of shards.
///
/// # Errors
/// If the file cannot be read, is too large or malformed. The error shows the location.
pub fn read_shard_map(path: &Path) -> Result<ShardMap, ConfigError> {
    let mut text = String::new();
    let read = File::open(path)
        .and_then(|file| file.take(SHARD_MAP_BYTES_MAX as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| refused(path, &error.to_string()))?;
    if text.len() > SHARD_MAP_BYTES_MAX {
        let why = format!("has more than {SHARD_MAP_BYTES_MAX} bytes, the limit");
        return Err(refused(path, &why));
    }
    text.parse::<ShardMap>().map_err(|error| refused(path, &error.to_string()))
}

/// Parses a map of shards received from NATS.
///
/// # Errors
/// If the map is too large or malformed. The error shows the location.
pub fn parse_shard_map(text: &[u8]) -> Result<ShardMap, ConfigError> {
    let refused = |why: &str| ConfigError::invalid(FIELD, why);
    if text.len() > SHARD_MAP_BYTES_MAX {
        return Err(refused(&format!("has more than {SHARD_MAP_BYTES_MAX} bytes, the limit")));
    }
    let text = str::from_utf8(text).map_err(|error| refused(&error.to_string()))?;
    text.parse::<ShardMap>().map_err(|error| refused(&error.to_string()))
}

fn refused(path: &Path, why: &str) -> ConfigError {
    ConfigError::invalid(FIELD, format!("{}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_process::config::defaults;
    use std::fs;

    fn check(place: Option<&str>, map: Option<&str>) -> Result<Option<ShardConfig>, String> {
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
        shard(&options).map_err(text)
    }

    #[test]
    fn a_shard_has_a_place_and_a_map() {
        assert_eq!(check(None, None), Ok(None));
        let even = check(Some("1/3"), None).expect("valid").expect("a shard");
        assert_eq!((even.place.to_string(), even.map.version()), ("1/3".to_owned(), 0));
        let map = "version 2\nshards 2\nbuckets 0-255 shard 0\n";
        let given = check(Some("1/2"), Some(map)).expect("valid").expect("a shard");
        assert_eq!((given.map.version(), given.map.owner(255)), (2, 0));

        let refused = |place, map: &str, expected: &str| {
            assert_eq!(check(place, Some(map)).expect_err(map), expected);
        };
        refused(None, map, "shard-map: needs shard beside it, such as 0/3");
        let other = "shard-map: FILE: the map has 2 shards, must have 3";
        refused(Some("0/3"), map, other);
        refused(Some("0/2"), "version 1", "shard-map: FILE: shards is missing");
        let stale = map.replace("version 2", "version 0");
        let expected = "shard-map: FILE: version is 0, must be above 0, the one in use";
        refused(Some("0/2"), &stale, expected);
        let long = " ".repeat(SHARD_MAP_BYTES_MAX + 1);
        refused(Some("0/2"), &long, "shard-map: FILE: has more than 65536 bytes, the limit");
    }
}
