use super::IngestError;
use kvasir_proto::shard::{MapError, ShardMap, ShardPlace};
use kvasir_proto::types::WorkerId;
use std::mem;
use std::sync::{PoisonError, RwLock};

/// Shard of this server, and the map of all shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardConfig {
    /// The shard.
    pub place: ShardPlace,
    /// Owner of each bucket.
    pub map: ShardMap,
}

/// Decides which workers belong to this server: all workers, or the workers that the map assigns to its shard.
#[derive(Debug)]
pub(super) struct Ownership(Option<(ShardPlace, RwLock<ShardMap>)>);

impl Ownership {
    pub(super) fn new(config: Option<ShardConfig>) -> Self {
        Self(config.map(|ShardConfig { place, map }| (place, RwLock::new(map))))
    }

    pub(super) fn check(&self, worker: &WorkerId) -> Result<(), IngestError> {
        let Some((place, map)) = &self.0 else { return Ok(()) };
        // Critical sections of this lock never panic.
        Ok(map.read().unwrap_or_else(PoisonError::into_inner).check(*place, worker)?)
    }

    pub(super) fn current(&self) -> Option<ShardConfig> {
        let (place, map) = self.0.as_ref()?;
        let map = map.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(ShardConfig { place: *place, map })
    }

    /// Replaces the map by a newer one. Returns the previous map; `None` if the server is not sharded.
    pub(super) fn replace(&self, map: ShardMap) -> Result<Option<ShardMap>, MapError> {
        let Some((_, held)) = &self.0 else { return Ok(None) };
        let mut held = held.write().unwrap_or_else(PoisonError::into_inner);
        map.check_after(&held)?;
        debug_assert!(map.version() > held.version(), "maps only get newer");
        Ok(Some(mem::replace(&mut *held, map)))
    }
}
