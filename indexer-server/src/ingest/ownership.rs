use super::{Ingest, IngestError};
use kvasir_proto::{
    shard::{MapError, ShardMap, ShardPlace},
    types::WorkerId,
};
use std::{
    mem,
    sync::{Arc, PoisonError, RwLock},
};
use tokio::sync::watch;

/// Which shard this server is, and the map of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardConfig {
    /// The shard.
    pub place: ShardPlace,
    /// Who owns which buckets.
    pub map: ShardMap,
}

/// The workers that this server has: all of them, or those that the map leaves to its shard.
#[derive(Debug)]
pub(super) struct Ownership(Option<(ShardPlace, RwLock<ShardMap>)>);

impl Ownership {
    pub(super) fn new(config: Option<ShardConfig>) -> Self {
        Self(config.map(|ShardConfig { place, map }| (place, RwLock::new(map))))
    }

    fn check(&self, worker: &WorkerId) -> Result<(), IngestError> {
        let Some((place, map)) = &self.0 else { return Ok(()) };
        // Nothing panics while it holds this lock.
        Ok(map.read().unwrap_or_else(PoisonError::into_inner).check(*place, worker)?)
    }
}

impl Ingest {
    /// Whether a worker belongs to this server.
    ///
    /// # Errors
    /// If its bucket belongs to another shard; the error says to which.
    pub fn check_shard(&self, worker: &WorkerId) -> Result<(), IngestError> {
        self.ownership.check(worker)
    }

    /// Which shard this server is, and the map that holds; none if it is not sharded.
    #[must_use]
    pub fn shard(&self) -> Option<ShardConfig> {
        let (place, map) = self.ownership.0.as_ref()?;
        let map = map.read().unwrap_or_else(PoisonError::into_inner).clone();
        Some(ShardConfig { place: *place, map })
    }

    /// The buckets whose workers belong to this server; none if all do.
    #[must_use]
    pub fn buckets(&self) -> Option<Vec<u8>> {
        let shard = self.shard()?;
        let place = shard.place.shard();
        Some((0..=u8::MAX).filter(|bucket| shard.map.accepts(place, *bucket)).collect())
    }

    /// Signals each map that is adopted from now on.
    #[must_use]
    pub fn map_changes(&self) -> watch::Receiver<()> {
        self.map_changes.subscribe()
    }

    /// From now on a newer map holds: workers that it leaves to other shards are removed. Returns
    /// the map before; none if this server is not sharded.
    ///
    /// # Errors
    /// If the map is for another number of shards, or not newer; then nothing changes.
    pub async fn adopt(self: &Arc<Self>, map: ShardMap) -> Result<Option<ShardMap>, MapError> {
        let Some((_, held)) = &self.ownership.0 else { return Ok(None) };
        let before = {
            // Who registers after this is checked with the new map; who did before is in the list.
            let _control = self.control.lock().await;
            let mut held = held.write().unwrap_or_else(PoisonError::into_inner);
            map.check_after(&held)?;
            debug_assert!(map.version() > held.version(), "maps only get newer");
            mem::replace(&mut *held, map)
        };
        let mut strangers: Vec<_> = self.workers.iter().map(|entry| entry.key().clone()).collect();
        strangers.retain(|address| self.check_shard(&address.worker).is_err());
        for address in strangers {
            tracing::info!(worker = %address, "worker belongs to another shard now");
            if let Err(error) = self.remove(address).await {
                // It was removed already, or the server is stopping.
                tracing::info!(%error, "worker is not removed");
            }
        }
        self.map_changes.send_replace(());
        Ok(Some(before))
    }
}
