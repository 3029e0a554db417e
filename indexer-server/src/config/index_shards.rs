use super::ConfigError;
use crate::partitions::SHARDS_MAX;
use serde::{Serialize, Serializer};
use std::fmt;
use std::num::{NonZeroUsize, ParseIntError};
use std::str::FromStr;

const FIELD: &str = "index-shards";
const AUTO: &str = "auto";
/// Minimum bytes per shard: a worker and a few tables of each kind need some 200 KiB.
pub(super) const SHARD_BYTES_MIN: usize = 1 << 20;
/// Cores per shard with `auto`: each query visits all shards, and one writer keeps up with the events of many engines.
const CORES_A_SHARD: usize = 8;
/// Maximum number of shards with `auto`.
const AUTO_MAX: usize = 4;

/// Number of index shards in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexShards {
    /// Derived from the number of cores.
    Auto,
    /// A fixed number.
    Count(usize),
}

impl IndexShards {
    /// Returns the number of index shards on a machine with `cores` cores. `auto` also keeps each shard at
    /// [`SHARD_BYTES_MIN`] or more of `bytes_max`.
    ///
    /// # Errors
    /// If a fixed number is not 1 to [`SHARDS_MAX`].
    pub(super) fn count(
        self,
        cores: usize,
        bytes_max: Option<usize>,
    ) -> Result<NonZeroUsize, ConfigError> {
        let count = match self {
            Self::Auto => {
                let room = bytes_max.map_or(usize::MAX, |bytes| bytes / SHARD_BYTES_MIN);
                (cores / CORES_A_SHARD).min(room).clamp(1, AUTO_MAX)
            }
            Self::Count(count) => count,
        };
        let counted = NonZeroUsize::new(count).filter(|count| count.get() <= SHARDS_MAX);
        counted.ok_or_else(|| {
            ConfigError::invalid(FIELD, format!("is {count}, must be 1 to {SHARDS_MAX}, or auto"))
        })
    }
}

impl fmt::Display for IndexShards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Count(count) => count.fmt(f),
        }
    }
}

impl FromStr for IndexShards {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == AUTO {
            return Ok(Self::Auto);
        }
        let count = text.parse().map_err(|error: ParseIntError| {
            format!("{text:?} is neither a number ({error}) nor {AUTO}")
        })?;
        Ok(Self::Count(count))
    }
}

impl Serialize for IndexShards {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_follow_the_cores_and_the_byte_limit() {
        let auto = |cores, bytes_max| {
            IndexShards::Auto.count(cores, bytes_max).map(NonZeroUsize::get).expect("a number")
        };
        let counts = [1, 2, 8, 15, 16, 31, 32, 192].map(|cores| auto(cores, None));
        assert_eq!(counts, [1, 1, 1, 1, 2, 3, 4, 4]);
        assert_eq!([0, 1 << 20, 2 << 20, 8 << 20].map(|bytes| auto(64, Some(bytes))), [1, 1, 2, 4]);
    }
}
