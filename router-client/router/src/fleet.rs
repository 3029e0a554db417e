//! Maintains a library router for each model, tenant and pool.

use kvasir_proto::convert::Role;
use kvasir_proto::types::{PartitionKey, WorkerId, WorkerKey};
use parking_lot::RwLock;
use router_client::ListedWorker;
use router_client::route::{BusyThresholds, ConfigError, RankLoad};
use router_client::router::{
    Filter, Index, Pools, PoolsConfig, Router, RouterConfig, RouterWorker,
};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Maximum partitions; the router ignores further ones.
pub const PARTITIONS_MAX: usize = 4_096;

/// The routers of all models and tenants.
#[derive(Debug)]
pub struct Fleet {
    /// Settings of all routers; each partition has its own block size.
    config: RouterConfig,
    pools: PoolsConfig,
    index: Index,
    partitions: RwLock<BTreeMap<PartitionKey, Partition>>,
    busy: RwLock<BusyThresholds>,
}

/// The routers of one model and tenant, cheap to clone.
///
/// A request goes to the prefill pool if it asks only for the role `prefill`, or as part of disaggregated serving.
#[derive(Debug, Clone)]
pub struct Partition {
    /// Tokens per block.
    pub block_size: NonZeroU32,
    /// The partition's workers.
    pub pools: Pools,
}

/// Known block counts of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankBlocks {
    /// Capacity in blocks, used if the worker's profile does not contain it.
    pub total: Option<u64>,
    /// Blocks in use, as the engine reports.
    pub active: Option<u64>,
}

/// All workers by partition and id.
pub type Listing = BTreeMap<PartitionKey, BTreeMap<WorkerId, ListedWorker>>;

// === impl Fleet ===

impl Fleet {
    /// A fleet without partitions.
    #[must_use]
    pub fn new(config: RouterConfig, pools: PoolsConfig, index: Index) -> Self {
        let busy = RwLock::new(config.select.busy);
        Self { config, pools, index, partitions: RwLock::default(), busy }
    }

    /// The routers of a model and tenant.
    #[must_use]
    pub fn partition(&self, key: &PartitionKey) -> Option<Partition> {
        self.partitions.read().get(key).cloned()
    }

    /// All partitions.
    #[must_use]
    pub fn partitions(&self) -> Vec<(PartitionKey, Partition)> {
        let partitions = self.partitions.read();
        partitions.iter().map(|(key, at)| (key.clone(), at.clone())).collect()
    }

    /// Up to 8 models of a tenant, for an error that lists the choices.
    #[must_use]
    pub fn models_of(&self, tenant: &str) -> Vec<String> {
        let partitions = self.partitions.read();
        let models = partitions.keys().filter(|key| key.tenant() == tenant);
        models.map(|key| key.model().to_owned()).take(8).collect()
    }

    /// Replaces the workers, with the block counts of each rank. Skips models without a block size, and models beyond
    /// [`PARTITIONS_MAX`].
    ///
    /// # Errors
    /// If the settings are invalid, which was already checked at the start.
    pub fn set_workers(
        &self,
        listing: &Listing,
        blocks: impl Fn(&PartitionKey, &WorkerKey) -> RankBlocks,
    ) -> Result<(), ConfigError> {
        // Lock order: `partitions`, then `busy`. `set_busy_thresholds` waits for `partitions`, too, so each new router
        // gets the current thresholds.
        let mut partitions = self.partitions.write();
        let gone: Vec<_> =
            partitions.keys().filter(|key| !listing.contains_key(*key)).cloned().collect();
        for key in gone {
            retire(partitions.remove(&key).as_ref());
        }
        let mut current = Vec::with_capacity(listing.len());
        for (key, workers) in listing {
            let sizes = workers.values().find_map(|at| NonZeroU32::new(at.block_size));
            let Some(block_size) = sizes else { continue };
            // The index allows one block size per partition; a new size means new workers.
            if partitions.get(key).is_some_and(|at| at.block_size != block_size) {
                retire(partitions.remove(key).as_ref());
            }
            if !partitions.contains_key(key) {
                if partitions.len() >= PARTITIONS_MAX {
                    tracing::warn!(%key, limit = PARTITIONS_MAX, "too many partitions: no routing");
                    continue;
                }
                partitions.insert(key.clone(), self.new_partition(block_size)?);
            }
            current.extend(partitions.get(key).cloned().map(|partition| (partition, key, workers)));
        }
        // Unlock the map before the routers change: requests of all models read it.
        drop(partitions);
        for (partition, key, workers) in current {
            partition.set_workers(workers, |rank| blocks(key, rank));
        }
        Ok(())
    }

    /// Current thresholds.
    #[must_use]
    pub fn busy_thresholds(&self) -> BusyThresholds {
        *self.busy.read()
    }

    /// Changes the thresholds of all routers.
    ///
    /// # Errors
    /// If a threshold is out of range; then the old thresholds stay.
    pub fn set_busy_thresholds(&self, busy: BusyThresholds) -> Result<(), ConfigError> {
        busy.check()?;
        // `set_workers` waits for the lock, so a partition that it adds afterwards gets the new thresholds.
        let partitions = self.partitions.write();
        *self.busy.write() = busy;
        for partition in partitions.values() {
            for router in partition.routers() {
                router.set_busy_thresholds(busy)?;
            }
        }
        Ok(())
    }

    /// Creates the routers of a partition, with its block size and the current thresholds.
    fn new_partition(&self, block_size: NonZeroU32) -> Result<Partition, ConfigError> {
        let mut config = self.config;
        config.active.block_size = block_size;
        config.select.busy = *self.busy.read();
        let pools = Pools::new(config, self.pools.clone(), self.index.clone())?;
        Ok(Partition { block_size, pools })
    }
}

/// Ends the routers of a removed partition: queued requests fail because there are no workers.
fn retire(partition: Option<&Partition>) {
    for router in partition.into_iter().flat_map(Partition::routers) {
        router.set_workers([]);
    }
}

// === impl Partition ===

impl Partition {
    /// Returns the router for requests with this filter: the prefill pool's for the role prefill alone, the pool of the
    /// pinned worker, else the main pool's.
    #[must_use]
    pub fn router_for(&self, filter: &Filter) -> &Router {
        let roles = &filter.roles;
        let asks_for_prefill = !roles.is_empty() && roles.iter().all(|role| *role == Role::Prefill);
        match &filter.pin {
            _ if asks_for_prefill => self.pool(true),
            Some(pin) => self.router_of(&pin.worker),
            None => self.pool(false),
        }
    }

    /// The router that has this worker: the prefill pool's if the worker is there, else the main pool's.
    #[must_use]
    pub fn router_of(&self, worker: &WorkerId) -> &Router {
        self.pool(self.pool(true).has_worker(worker))
    }

    /// Both routers.
    pub fn routers(&self) -> impl Iterator<Item = &Router> {
        [self.pool(false), self.pool(true)].into_iter()
    }

    /// Both routers, each with a flag that is true for the prefill pool.
    pub fn routers_by_pool(&self) -> impl Iterator<Item = (bool, &Router)> {
        [(false, self.pool(false)), (true, self.pool(true))].into_iter()
    }

    /// The router of one pool.
    #[must_use]
    pub const fn pool(&self, is_prefill: bool) -> &Router {
        if is_prefill { self.pools.prefill() } else { self.pools.main() }
    }

    /// The load of each rank, by worker and rank.
    #[must_use]
    pub fn loads(&self) -> Vec<(WorkerKey, RankLoad)> {
        let mut loads: Vec<_> = self.routers().flat_map(Router::loads).collect();
        loads.sort_by(|a, b| a.0.cmp(&b.0));
        loads
    }

    /// Updates the workers of a partition. The number of blocks in a worker's profile takes precedence over reported
    /// numbers.
    fn set_workers(
        &self,
        workers: &BTreeMap<WorkerId, ListedWorker>,
        blocks: impl Fn(&WorkerKey) -> RankBlocks,
    ) {
        let known = |mut worker: RouterWorker| {
            let RankBlocks { total, active } = blocks(&worker.key);
            // The worker's own profile has priority.
            worker.profile.total_kv_blocks = worker.profile.total_kv_blocks.or(total);
            RouterWorker { active_blocks: active, ..worker }
        };
        self.pools.set_workers(workers.values().flat_map(RouterWorker::of).map(known));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::convert::{ImageTokens, WorkerProfile};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;
    use std::time::Duration;

    fn listing(models: u32) -> Listing {
        let worker = WorkerId::new("w").expect("a name");
        let model = |number: u32| {
            let partition = PartitionKey::new(&number.to_string(), "").expect("a name");
            let listed = ListedWorker {
                partition: partition.clone(),
                worker: worker.clone(),
                block_size: 16,
                ranks: [0].into(),
                profile: WorkerProfile::default(),
                image_tokens: ImageTokens::Identifier,
                adapters: [].into(),
                agent: None,
                has_blocks: false,
                held_blocks: [].into(),
            };
            (partition, BTreeMap::from([(worker.clone(), listed)]))
        };
        (0..models).map(model).collect()
    }

    #[test]
    fn thresholds_change_while_models_come_and_go() {
        let config = RouterConfig::new(NonZeroU32::new(16).expect("not 0"));
        let fleet = Arc::new(Fleet::new(config, PoolsConfig::default(), Index::None));
        let (done, ended) = channel();
        let changing = Arc::clone(&fleet);
        let ending = done.clone();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let changes = thread::spawn(move || {
            for tokens in 1.. {
                if stopping.load(Ordering::Relaxed) {
                    break;
                }
                let busy =
                    BusyThresholds { active_prefill_tokens: Some(tokens), ..Default::default() };
                changing.set_busy_thresholds(busy).expect("a threshold");
            }
            drop(ending);
        });
        let listing_to = Arc::clone(&fleet);
        let lists = thread::spawn(move || {
            for round in 0..20_000 {
                let listing = listing(round % 8);
                listing_to.set_workers(&listing, |_, _| RankBlocks::default()).expect("settings");
            }
            stop.store(true, Ordering::Relaxed);
            drop(done);
        });
        // Both senders are dropped when both threads have finished; after a deadlock, never.
        let waited = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(waited, Err::<(), _>(RecvTimeoutError::Disconnected));
        changes.join().expect("no panic");
        lists.join().expect("no panic");
        for (_, partition) in fleet.partitions() {
            for router in partition.routers() {
                assert_eq!(router.busy_thresholds(), fleet.busy_thresholds());
            }
        }
    }
}
