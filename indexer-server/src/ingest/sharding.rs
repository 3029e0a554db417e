//! What the shard of this server means for its workers.

use super::{Ingest, IngestError, ShardConfig};
use kvasir_proto::{
    shard::{MapError, ShardMap},
    types::WorkerId,
};
use std::sync::Arc;
use tokio::sync::watch;

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
        self.ownership.current()
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
        // A worker that registers after this is checked with the new map; one that did before is in the list.
        let control = self.control.lock().await;
        let replaced = self.ownership.replace(map)?;
        drop(control);
        let Some(before) = replaced else { return Ok(None) };
        let mut strangers: Vec<_> = self.workers.iter().map(|entry| entry.key().clone()).collect();
        strangers.retain(|address| self.check_address(address).is_err());
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
