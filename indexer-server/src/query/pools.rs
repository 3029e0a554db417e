//! Blocks of a query in the pools of a partition. Searches all shards: a worker may be in another shard of the process
//! than the pools that it reads.

use crate::partitions::Partition;
use kvasir_index::{QueryKey, SharedBlocks};
use kvasir_proto::convert::{FindQuery, PoolState};
use kvasir_proto::types::{HolderKind, SourceStatus, WorkerId};
use std::time::Duration;

/// Inputs of a query beside the workers' indexes.
pub(super) struct Asked<'a> {
    /// Blocks in pools, if the query counts them.
    pub(super) shared: Option<&'a SharedBlocks>,
    pub(super) pools: Vec<PoolState>,
    /// Incompletely restored workers, and pools if the query counts them.
    pub(super) restoring: Vec<WorkerId>,
}

/// Collects the workers of the query that are still being restored and, if the query counts pools, the pools that have
/// its blocks. Returns `None` as soon as `is_wanted` is false.
pub(super) fn collect_inputs<'a>(
    partition: &Partition,
    query: &FindQuery,
    key: QueryKey<'_>,
    shared: &'a mut SharedBlocks,
    now: Duration,
    is_wanted: impl Fn() -> bool,
) -> Option<Asked<'a>> {
    let workers = query.workers.as_deref();
    let mut restoring = partition.restoring(HolderKind::Worker).among(workers);
    if !query.shared {
        return Some(Asked { shared: None, pools: Vec::new(), restoring });
    }
    let pools = find(partition, key, shared, now, is_wanted)?;
    restoring.extend(partition.restoring(HolderKind::Pool).among(None));
    restoring.sort_unstable();
    Some(Asked { shared: Some(shared), pools, restoring })
}

/// Finds the blocks of a query in all pools. Returns the pools with at least one of the blocks and at least one rank,
/// by id: routers trust the blocks of pools as far as the worst pool. Returns `None` as soon as `is_wanted` is false.
fn find(
    partition: &Partition,
    key: QueryKey<'_>,
    shared: &mut SharedBlocks,
    now: Duration,
    is_wanted: impl Fn() -> bool,
) -> Option<Vec<PoolState>> {
    if partition.pools() == 0 {
        shared.begin(0);
        return Some(Vec::new());
    }
    shared.begin(match key {
        QueryKey::Locals(locals) => locals.len(),
        QueryKey::Names(names) => names.len(),
    });
    for shard in partition.shards() {
        if !shard.read().add_shared(key, shared, &is_wanted) {
            return None;
        }
    }
    let held: Vec<_> = shared.pools().collect();
    let mut is_read = vec![false; held.len()];
    for shard in partition.shards() {
        let index = shard.read();
        is_read.iter_mut().zip(&held).for_each(|(at, (pool, _))| *at |= index.has_readers(pool));
    }
    let read = held.into_iter().zip(is_read).filter(|(_, is_read)| *is_read);
    let mut pools: Vec<_> =
        read.map(|((pool, held), _)| state(partition, pool, held, now)).collect();
    pools.sort_unstable_by(|a, b| a.pool.cmp(&b.pool));
    Some(pools)
}

/// Returns the state of a pool: the state of its worst rank, because a query treats a pool as a unit.
fn state(partition: &Partition, pool: &WorkerId, held_blocks: u32, now: Duration) -> PoolState {
    let index = partition.shard_of(pool).read();
    let ranks = index.worker(pool).into_iter().flat_map(|pool| pool.holders());
    let statuses: Vec<SourceStatus> = ranks.map(|rank| rank.status()).collect();
    let worst = statuses.iter().max_by_key(|status| (status.state, status.lag_batches()));
    let worst = worst.cloned().unwrap_or_default();
    PoolState {
        pool: pool.clone(),
        held_blocks,
        state: worst.state,
        connected: !statuses.is_empty() && statuses.iter().all(|status| status.connected),
        lag_batches: worst.lag_batches(),
        verified_age: worst.verified_at.map(|at| now.saturating_sub(at)),
    }
}
