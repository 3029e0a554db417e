use super::{ShardCount, ShardId};
use crate::types::WorkerId;

/// Why a shard map cannot replace the map in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The map is for another number of shards.
    #[error("the map has {map} shards, must have {expected}")]
    Count {
        /// Shards of the map.
        map: ShardCount,
        /// Shards of the map in use.
        expected: ShardCount,
    },
    /// The map is not newer than the one in use.
    #[error("version is {found}, must be above {present}, the one in use")]
    Stale {
        /// Version of the map.
        found: u64,
        /// Version of the map in use.
        present: u64,
    },
}

/// A request for a worker reached a shard that does not own the worker's bucket.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "worker_id {:?} is in bucket {bucket}, which belongs to shard {owner}, and this is shard {asked} \
     (map version {version}): ask shard {owner}", worker.as_str()
)]
pub struct WrongShard {
    /// The worker.
    pub worker: WorkerId,
    /// Bucket of the worker.
    pub bucket: u8,
    /// The shard that owns it.
    pub owner: ShardId,
    /// The shard that received the request.
    pub asked: ShardId,
    /// Version of the map that names the owner.
    pub version: u64,
}
