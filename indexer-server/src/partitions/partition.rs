use super::budget::SHARD_BYTES;
use super::layer::{Layer, SpeculativeSize};
use super::{Budget, IndexConfig, Restoring, Shard};
use dashmap::DashMap;
use kvasir_index::{Limits, PlacedMatch, PlacedScratch, Stats};
use kvasir_process::shares::{Exhausted, SharedLimit, TakenShare};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::hash::bucket;
use kvasir_proto::limits::PARTITIONS_MAX;
use kvasir_proto::types::{HolderKind, LocalHash, PartitionKey, WorkerId};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The index of one (model, tenant), in shards. Each shard has the workers of some buckets, with all data of these
/// workers. Shards have no common data.
pub struct Partition {
    key: PartitionKey,
    block_size: u32,
    /// At least one shard.
    shards: Box<[Arc<Shard>]>,
    speculative: Layer,
    restoring: Restoring,
    /// Pools that are still being restored.
    restoring_pools: Restoring,
    /// Registered workers and pools, with or without sources.
    registered: AtomicU64,
    /// Registered pools.
    pools: AtomicU64,
    /// This partition's share of the limit on partitions, released on drop.
    _counted: TakenShare,
}

impl Partition {
    /// Creates a partition whose shards are empty.
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

    /// Model and tenant of the partition.
    #[must_use]
    pub const fn key(&self) -> &PartitionKey {
        &self.key
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// All shards, by number. Together their workers are the workers of the partition.
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

    /// Counts a newly registered worker or pool.
    pub fn note_registered(&self, kind: HolderKind) {
        self.registered.fetch_add(1, Ordering::AcqRel);
        if kind == HolderKind::Pool {
            self.pools.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Counts a removed worker or pool.
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

    /// Batches that wait for an earlier batch, over all sources.
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

    /// Ranks with several KV-cache groups, as of the last change of each shard.
    #[must_use]
    pub fn grouped_ranks(&self) -> usize {
        self.shards.iter().map(|shard| shard.grouped_ranks()).sum()
    }

    /// The shard of a worker, even if the worker is not registered.
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

    /// Ranks with speculative blocks of a prompt, and the number of leading blocks, at `now` (since the origin).
    pub fn find_speculative<'a>(
        &self,
        locals: &[LocalHash],
        now: Duration,
        scratch: &'a mut PlacedScratch,
    ) -> &'a [PlacedMatch] {
        self.speculative.find(locals, now, scratch)
    }

    /// Number of speculative blocks and their bytes.
    #[must_use]
    pub fn speculative_size(&self) -> SpeculativeSize {
        self.speculative.size()
    }

    /// Number of (pool, block) pairs: blocks that pools hold and that have a known position.
    #[must_use]
    pub fn pool_pairs(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().pool_pairs()).sum()
    }

    /// Sizes of all shards together. A block counts once in each shard that has a holder of it.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let all = self.shards.iter().map(|shard| shard.read().stats());
        all.reduce(sum).unwrap_or_default()
    }
}

/// Adds the figures of two shards.
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

/// Why a partition cannot be created or used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// The partition's workers have another block size.
    #[error(
        "block_size is {requested}, but the workers of model {:?}, tenant {:?} have {present}: \
         all workers of a partition must agree",
        key.model(), key.tenant()
    )]
    BlockSize {
        /// The partition.
        key: PartitionKey,
        /// Block size of the partition, in tokens.
        present: u32,
        /// The requested block size, in tokens.
        requested: u32,
    },
    /// The byte budget has no room for another partition.
    #[error(
        "no room for another partition: what cannot be shed takes half of --max-index-bytes. Raise that, or remove \
         workers"
    )]
    NoRoom,
    /// The server's limit on partitions is reached.
    #[error("the server has {PARTITIONS_MAX} partitions, the limit")]
    TooMany,
    /// The tenant's share of the limit on partitions is used up.
    #[error(
        "tenant {tenant:?} has {max} models, its share of the limit: remove workers of others first, or raise \
         --tenant-share"
    )]
    TooManyOfTenant {
        /// The tenant.
        tenant: Box<str>,
        /// Maximum number of partitions of this tenant.
        max: usize,
    },
}

impl PartitionError {
    /// Error code for the response.
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
    /// Creates an empty set of partitions.
    #[must_use]
    pub fn new(config: IndexConfig, limits: Limits) -> Self {
        let budget = Arc::new(Budget::new(config.bytes_max, config.fixed_bytes_max));
        let counted = SharedLimit::new(PARTITIONS_MAX, config.tenant_share);
        Self { map: DashMap::new(), config, limits, budget, counted }
    }

    /// Configuration of the index.
    #[must_use]
    pub const fn config(&self) -> IndexConfig {
        self.config
    }

    /// Byte budget of all partitions together.
    #[must_use]
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the shard that uses most bytes among all shards with blocks to evict. Returns `None` if every shard
    /// lacks blocks to evict.
    pub(super) fn largest(&self) -> Option<Arc<Shard>> {
        let size_of = |shard: &Shard| shard.bytes().in_use();
        let largest = |partition: &Partition| {
            let shards = partition.shards.iter().filter(|shard| shard.is_sheddable());
            shards.max_by_key(|shard| size_of(shard)).map(Arc::clone)
        };
        let of_each = self.map.iter().filter_map(|entry| largest(&entry));
        of_each.max_by_key(|shard| size_of(shard))
    }

    /// Returns a partition, if it exists.
    #[must_use]
    pub fn get(&self, key: &PartitionKey) -> Option<Arc<Partition>> {
        self.map.get(key).map(|entry| Arc::clone(&entry))
    }

    /// Returns a partition, created if it is missing.
    ///
    /// # Errors
    /// If it exists with another block size, there are too many partitions, or the byte budget has no room for it.
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

    /// Removes a partition, with all its blocks.
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

/// Converts an exhausted limit on partitions to an error: the tenant's share, or the limit of all tenants.
fn too_many(key: &PartitionKey, lacks: Exhausted) -> PartitionError {
    let tenant = key.tenant().into();
    let max = lacks.max;
    if lacks.is_share {
        PartitionError::TooManyOfTenant { tenant, max }
    } else {
        PartitionError::TooMany
    }
}
