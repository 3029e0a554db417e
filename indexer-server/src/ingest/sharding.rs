//! Sharding: which workers belong to this server, and the adoption of new maps of shards.

use super::{Ingest, IngestError, ShardConfig};
use kvasir_proto::shard::{MapError, ShardMap};
use kvasir_proto::types::WorkerId;
use std::sync::Arc;
use tokio::sync::watch;

impl Ingest {
    /// Checks that a worker belongs to this server.
    ///
    /// # Errors
    /// If the worker's bucket belongs to another shard. The error names that shard.
    pub fn check_shard(&self, worker: &WorkerId) -> Result<(), IngestError> {
        self.ownership.check(worker)
    }

    /// Shard of this server, and the current map. `None` if the server is not sharded.
    #[must_use]
    pub fn shard(&self) -> Option<ShardConfig> {
        self.ownership.current()
    }

    /// Buckets whose workers belong to this server. `None` for all buckets.
    #[must_use]
    pub fn buckets(&self) -> Option<Vec<u8>> {
        let shard = self.shard()?;
        let place = shard.place.shard();
        Some((0..=u8::MAX).filter(|bucket| shard.map.accepts(place, *bucket)).collect())
    }

    /// Notifies of each map that is adopted from now on.
    #[must_use]
    pub fn map_changes(&self) -> watch::Receiver<()> {
        self.map_changes.subscribe()
    }

    /// Replaces the map by a newer one, and removes the workers that now belong to other shards. Returns the previous
    /// map, or `None` if sharding is off.
    ///
    /// # Errors
    /// If the map is for another number of shards, or not newer. Then the present map stays.
    pub async fn adopt(self: &Arc<Self>, map: ShardMap) -> Result<Option<ShardMap>, MapError> {
        // A worker that registers after this is checked with the new map. Workers registered before are in the list.
        let control = self.control.lock().await;
        let replaced = self.ownership.replace(map)?;
        drop(control);
        let Some(before) = replaced else { return Ok(None) };
        let mut strangers: Vec<_> = self.workers.iter().map(|entry| entry.key().clone()).collect();
        strangers.retain(|address| self.check_address(address).is_err());
        for address in strangers {
            tracing::info!(worker = %address, "worker belongs to another shard now");
            if let Err(error) = self.remove(address).await {
                // The worker was already removed, or the server is stopping.
                tracing::info!(%error, "the worker of another shard was not removed");
            }
        }
        self.map_changes.send_replace(());
        Ok(Some(before))
    }
}
