use super::{
    Budget, IndexConfig, Restoring, Shard,
    budget::SHARD_BYTES,
    layer::{Layer, SpeculativeSize},
};
use dashmap::DashMap;
use kvasir_index::{Limits, PlacedMatch, PlacedScratch, Stats};
use kvasir_process::shares::{Exhausted, SharedLimit, TakenShare};
use kvasir_proto::{
    code::ErrorCode,
    hash::bucket,
    limits::PARTITIONS_MAX,
    types::{HolderKind, LocalHash, PartitionKey, WorkerId},
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// One (model, tenant) with its index, in shards: each has the workers of some buckets, all that
/// concerns a worker is in one shard, and shards share nothing.
pub struct Partition {
    key: PartitionKey,
    block_size: u32,
    /// At least one.
    shards: Box<[Arc<Shard>]>,
    speculative: Layer,
    restoring: Restoring,
    /// The same of pools.
    restoring_pools: Restoring,
    /// Workers and pools that are registered, whether or not anything feeds them.
    registered: AtomicU64,
    /// Those of them that are pools.
    pools: AtomicU64,
    /// Counts among the partitions that there may be.
    _counted: TakenShare,
}

impl Partition {
    fn new(key: PartitionKey, block_size: u32, server: &Partitions, counted: TakenShare) -> Self {
        let shard = |number| Arc::new(Shard::new(number, server.limits, &server.budget));
        let shards = (0..server.config.shards.get()).map(shard);
        Self {
            key,
            block_size,
            shards: shards.collect(),
            speculative: Layer::default(),
            restoring: Restoring::default(),
            restoring_pools: Restoring::default(),
            registered: AtomicU64::new(0),
            pools: AtomicU64::new(0),
            _counted: counted,
        }
    }

    /// Its name.
    #[must_use]
    pub const fn key(&self) -> &PartitionKey {
        &self.key
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// All shards, by number: their workers together are the partition's.
    #[must_use]
    pub fn shards(&self) -> &[Arc<Shard>] {
        &self.shards
    }

    /// Number of registered workers and pools.
    #[must_use]
    pub fn registered(&self) -> u64 {
        self.registered.load(Ordering::Acquire)
    }

    /// Number of registered pools.
    #[must_use]
    pub fn pools(&self) -> u64 {
        self.pools.load(Ordering::Acquire)
    }

    /// A worker or a pool is registered.
    pub fn note_registered(&self, kind: HolderKind) {
        self.registered.fetch_add(1, Ordering::AcqRel);
        if kind == HolderKind::Pool {
            self.pools.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A worker or a pool is not registered any more.
    ///
    /// # Panics
    /// If more were removed than registered.
    pub fn note_removed(&self, kind: HolderKind) {
        let before = self.registered.fetch_sub(1, Ordering::AcqRel);
        assert!(before > 0, "more workers were removed than registered");
        if kind == HolderKind::Pool {
            let before = self.pools.fetch_sub(1, Ordering::AcqRel);
            assert!(before > 0, "more pools were removed than registered");
        }
    }

    /// Batches that wait for an earlier one, over all sources.
    #[must_use]
    pub fn buffered_batches(&self) -> u64 {
        let of_shard = |shard: &Arc<Shard>| {
            let index = shard.read();
            let sources = index.workers().flat_map(|worker| worker.sources());
            sources.map(|(_, _, status)| status.buffered_batches).sum::<u64>()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// Ranks in the index, as of the last change of each shard.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.shards.iter().map(|shard| shard.ranks()).sum()
    }

    /// The shard of a worker, whether or not the worker is registered.
    #[must_use]
    #[expect(clippy::indexing_slicing, reason = "a remainder is below its divisor")]
    pub fn shard_of(&self, worker: &WorkerId) -> &Arc<Shard> {
        &self.shards[usize::from(bucket(worker)) % self.shards.len()]
    }

    /// Workers, or pools, that are still being restored.
    #[must_use]
    pub const fn restoring(&self, kind: HolderKind) -> &Restoring {
        match kind {
            HolderKind::Worker => &self.restoring,
            HolderKind::Pool => &self.restoring_pools,
        }
    }

    pub(super) const fn speculative(&self) -> &Layer {
        &self.speculative
    }

    /// Ranks that placements announced leading blocks of a prompt for, and how many, at `now` since
    /// the origin.
    pub fn find_speculative<'a>(
        &self,
        locals: &[LocalHash],
        now: Duration,
        scratch: &'a mut PlacedScratch,
    ) -> &'a [PlacedMatch] {
        self.speculative.find(locals, now, scratch)
    }

    /// How much is speculative.
    #[must_use]
    pub fn speculative_size(&self) -> SpeculativeSize {
        self.speculative.size()
    }

    /// (pool, block) pairs that are held and placed.
    #[must_use]
    pub fn pool_pairs(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().pool_pairs()).sum()
    }

    /// Sizes of all shards together. A block that workers of several shards hold counts in each.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let all = self.shards.iter().map(|shard| shard.read().stats());
        all.reduce(sum).unwrap_or_default()
    }
}

const fn sum(a: Stats, b: Stats) -> Stats {
    Stats {
        blocks: a.blocks + b.blocks,
        pairs: a.pairs + b.pairs,
        parked: a.parked + b.parked,
        workers: a.workers + b.workers,
        ranks: a.ranks + b.ranks,
        sources: a.sources + b.sources,
        segments: a.segments + b.segments,
        holder_sets: a.holder_sets + b.holder_sets,
        bytes: a.bytes + b.bytes,
        shed_blocks: a.shed_blocks + b.shed_blocks,
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({}, {})", self.key, self.block_size)
    }
}

/// Why a partition cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Its workers have blocks of another size.
    #[error(
        "block_size is {requested}, but the workers of model {:?}, tenant {:?} have {present}: \
         all workers of a partition must agree",
        key.model(), key.tenant()
    )]
    BlockSize {
        /// The partition.
        key: PartitionKey,
        /// Its block size, in tokens.
        present: u32,
        /// The one requested.
        requested: u32,
    },
    /// The byte budget has no room for another one.
    #[error(
        "no room for another partition: what cannot be shed takes half of --max-index-bytes. Raise that, or remove \
         workers"
    )]
    NoRoom,
    /// There are too many.
    #[error("the server has {PARTITIONS_MAX} partitions, the limit")]
    TooMany,
    /// Its tenant has too many.
    #[error(
        "tenant {tenant:?} has {max} models, its share of the limit: remove workers of others first, or raise \
         --tenant-share"
    )]
    TooManyOfTenant {
        /// The tenant.
        tenant: Box<str>,
        /// So many it may have.
        max: usize,
    },
}

impl PartitionError {
    /// Code to report it with.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::BlockSize { .. } => ErrorCode::FailedPrecondition,
            Self::TooMany | Self::TooManyOfTenant { .. } | Self::NoRoom => {
                ErrorCode::ResourceExhausted
            }
        }
    }
}

/// All partitions of this server.
#[derive(Debug)]
pub struct Partitions {
    map: DashMap<PartitionKey, Arc<Partition>>,
    config: IndexConfig,
    limits: Limits,
    budget: Arc<Budget>,
    counted: SharedLimit,
}

impl Partitions {
    /// None yet.
    #[must_use]
    pub fn new(config: IndexConfig, limits: Limits) -> Self {
        let budget = Arc::new(Budget::new(config.bytes_max, config.fixed_bytes_max));
        let counted = SharedLimit::new(PARTITIONS_MAX, config.tenant_share);
        Self { map: DashMap::new(), config, limits, budget, counted }
    }

    /// Their configuration.
    #[must_use]
    pub const fn config(&self) -> IndexConfig {
        self.config
    }

    /// Bytes of all of them together.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The shard that uses most bytes, of those that have something to shed.
    pub(super) fn largest(&self) -> Option<Arc<Shard>> {
        let size_of = |shard: &Shard| shard.bytes().in_use();
        let largest = |partition: &Partition| {
            let shards = partition.shards.iter().filter(|shard| shard.is_sheddable());
            shards.max_by_key(|shard| size_of(shard)).map(Arc::clone)
        };
        let of_each = self.map.iter().filter_map(|entry| largest(&entry));
        of_each.max_by_key(|shard| size_of(shard))
    }

    /// One partition.
    #[must_use]
    pub fn get(&self, key: &PartitionKey) -> Option<Arc<Partition>> {
        self.map.get(key).map(|entry| Arc::clone(&entry))
    }

    /// One partition, created if it is missing.
    ///
    /// # Errors
    /// If it exists with another block size, there are too many, or the byte budget has no room for it.
    pub fn get_or_create(
        &self,
        key: &PartitionKey,
        block_size: u32,
    ) -> Result<Arc<Partition>, PartitionError> {
        let bytes = self.config.shards.get() * SHARD_BYTES;
        let has_room = self.budget.room().is_none_or(|room| room >= bytes);
        let entry = match self.map.entry(key.clone()) {
            dashmap::Entry::Occupied(entry) => Arc::clone(entry.get()),
            dashmap::Entry::Vacant(_) if !has_room => return Err(PartitionError::NoRoom),
            dashmap::Entry::Vacant(entry) => {
                let counted = self.counted.take(key.tenant(), 1);
                let counted = counted.map_err(|lacks| too_many(key, lacks))?;
                let partition = Partition::new(key.clone(), block_size, self, counted);
                Arc::clone(&entry.insert(Arc::new(partition)))
            }
        };
        if entry.block_size != block_size {
            return Err(PartitionError::BlockSize {
                key: key.clone(),
                present: entry.block_size,
                requested: block_size,
            });
        }
        Ok(entry)
    }

    /// Forgets a partition, with all it holds.
    pub fn remove(&self, key: &PartitionKey) {
        self.map.remove(key);
    }

    /// All partitions, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Partition>> {
        let mut list: Vec<_> = self.map.iter().map(|entry| Arc::clone(&entry)).collect();
        list.sort_by(|a, b| a.key.cmp(&b.key));
        list
    }
}

fn too_many(key: &PartitionKey, lacks: Exhausted) -> PartitionError {
    let tenant = key.tenant().into();
    let max = lacks.max;
    if lacks.is_share {
        PartitionError::TooManyOfTenant { tenant, max }
    } else {
        PartitionError::TooMany
    }
}
