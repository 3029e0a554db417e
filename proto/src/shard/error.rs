use super::{ShardCount, ShardId};
use crate::types::WorkerId;

/// Why a map of shards was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// A line cannot be read.
    #[error(
        "line {line}: {text:?} is none of: version N, shards N, buckets A-B shard I, moving A-B shard I"
    )]
    Unreadable {
        /// Number of the line, from 1.
        line: usize,
        /// What it says, cut short.
        text: String,
    },
    /// A line names something that is not there.
    #[error("line {line}: {problem}")]
    Refused {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A line is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A bucket has no owner.
    #[error("bucket {0} has no shard: name one in a line such as \"buckets {0} shard 0\"")]
    Unowned(u8),
    /// The map is for another number of shards.
    #[error("the map has {map} shards, not the {expected} that there are")]
    Count {
        /// Shards of the map.
        map: ShardCount,
        /// Shards that there are.
        expected: ShardCount,
    },
    /// The map is not newer than the one that holds.
    #[error("version {found} is not above {present}, the one that holds: count it up")]
    Stale {
        /// Version of the map.
        found: u64,
        /// Version of the one that holds.
        present: u64,
    },
}

/// A worker was brought to a shard that does not own its bucket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "worker_id {:?} is in bucket {bucket}, which belongs to shard {owner}, and this is shard {asked} \
     (map version {version}): ask shard {owner}", worker.as_str()
)]
pub struct WrongShard {
    /// The worker.
    pub worker: WorkerId,
    /// Its bucket.
    pub bucket: u8,
    /// The shard that owns it.
    pub owner: ShardId,
    /// The shard that was asked.
    pub asked: ShardId,
    /// Version of the map that says so.
    pub version: u64,
}
