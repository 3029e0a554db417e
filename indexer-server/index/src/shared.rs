//! Counts a prompt's blocks in the pools of a partition.

use crate::index::Index;
use crate::sets::HolderIndex;
use crate::walk::QueryKey;
use kvasir_proto::limits::POOLS_MAX;
use kvasir_proto::types::{LocalHash, WorkerId};

/// For each block of a query, the pools that have it, in any tier; reused between queries. The pools may be
/// in other indexes than the workers that read them.
#[derive(Debug, Default)]
pub struct SharedBlocks {
    /// Pools with their number of matched blocks; at most [`POOLS_MAX`].
    pools: Vec<(WorkerId, u32)>,
    /// Bitmap of pools, for each block.
    held: Vec<u64>,
}

impl SharedBlocks {
    /// Starts a query of `blocks` blocks: resets the result so that no block is found yet.
    pub fn begin(&mut self, blocks: usize) {
        self.pools.clear();
        self.held.clear();
        self.held.resize(blocks, 0);
    }

    /// Pools with blocks of the query, and their number.
    pub fn pools(&self) -> impl Iterator<Item = (&WorkerId, u32)> {
        self.pools.iter().filter(|(_, blocks)| *blocks > 0).map(|(pool, blocks)| (pool, *blocks))
    }

    /// Whether the pools have no block of the query.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools().next().is_none()
    }

    /// All pools, in order of their bits.
    pub(crate) fn numbered(&self) -> impl Iterator<Item = &WorkerId> {
        self.pools.iter().map(|(pool, _)| pool)
    }

    /// Bitmaps of the pools for the blocks from `from` to `end`.
    pub(crate) fn held(&self, from: u32, end: u32) -> &[u64] {
        self.held.get(from as usize..end as usize).unwrap_or_default()
    }

    /// Number of blocks of the query.
    pub(crate) const fn blocks(&self) -> usize {
        self.held.len()
    }

    /// Marks blocks as available in a pool.
    fn add(&mut self, pool: usize, from: u32, end: u32) {
        let held = self.held.get_mut(from as usize..end as usize).unwrap_or_default();
        let bit = 1 << pool;
        let new = held.iter_mut().map(|mask| {
            let is_new = *mask & bit == 0;
            *mask |= bit;
            u32::from(is_new)
        });
        let new = new.sum::<u32>();
        if let Some((_, blocks)) = self.pools.get_mut(pool) {
            *blocks += new;
        }
    }
}

impl Index {
    /// Adds the query's blocks in the pools of this index. Stops when `is_wanted` returns `false`; it is
    /// checked before each rank of a pool, only for queries by name. Returns whether all pools were added.
    pub fn add_shared(
        &self,
        key: QueryKey<'_>,
        shared: &mut SharedBlocks,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let mut ranks: Vec<(usize, HolderIndex)> = Vec::new();
        for pool in self.roles.pools().filter_map(|id| self.workers.get_key_value(id)) {
            // The registry does not allow more.
            if shared.pools.len() >= POOLS_MAX {
                break;
            }
            ranks.extend(pool.1.ranks.iter().map(|&(_, holder)| (shared.pools.len(), holder)));
            shared.pools.push((pool.0.clone(), 0));
        }
        match key {
            QueryKey::Locals(locals) => {
                self.add_along(locals, &ranks, shared);
                true
            }
            QueryKey::Names(names) => ranks.iter().all(|&(pool, holder)| {
                let is_wanted = is_wanted();
                for (at, &name) in (0..).zip(names).filter(|_| is_wanted) {
                    if !self.tiers_of(holder, name).is_empty() {
                        shared.add(pool, at, at + 1);
                    }
                }
                is_wanted
            }),
        }
    }

    /// Marks the blocks of a prompt that each of the pools' ranks holds.
    fn add_along(
        &self,
        locals: &[LocalHash],
        ranks: &[(usize, HolderIndex)],
        shared: &mut SharedBlocks,
    ) {
        if ranks.is_empty() {
            return;
        }
        self.walk_locals(locals, |sets, _, from, end| {
            let holds = |holder| sets.iter().any(|&set| self.trie.sets.contains(set, holder));
            for &(pool, _) in ranks.iter().filter(|(_, holder)| holds(*holder)) {
                shared.add(pool, from, end);
            }
            true
        });
    }
}
