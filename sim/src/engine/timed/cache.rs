//! The caches of one engine: its block pool with reservations, and the lower tiers (pure).

use super::event::CacheChange;
use super::job::{Job, Terms};
use super::model::{EngineOptions, Nanos};
use super::run::{Run, Waiting};
use super::states::States;
use super::tiers::{Chain, Fetch, Tiers};
use crate::engine::pool::{BlockId, BlockPool, CacheKey};
use crate::engine::scheduler::MAIN_GROUP;
use kvasir_proto::types::Tier;
use std::collections::BTreeMap;
use std::ops::Deref;

/// Cached blocks and requirements of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Number of leading blocks that are used from device memory.
    pub(crate) hit_blocks: usize,
    /// Number of leading blocks in device memory. With state layers, the engine may compute some of these blocks again.
    common_blocks: usize,
    /// Following blocks that are fetched from lower tiers.
    pub(crate) fetch: Fetch,
    /// Number of blocks required besides the cached ones.
    needed: usize,
    /// Number of blocks that are no longer free after admission.
    pub(crate) taken: usize,
}

/// Block pool, reservations and lower tiers of one engine.
#[derive(Debug)]
pub(super) struct Cache {
    block_size: usize,
    pool: BlockPool,
    tiers: Tiers,
    states: States,
    reserved: usize,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self {
            block_size: options.block_size,
            pool: BlockPool::new(options.capacity_blocks),
            tiers: Tiers::new(options.host_blocks, options.disk_blocks),
            states: States::new(options.state_slots),
            reserved: 0,
        }
    }

    /// Checks the pool and the number of reserved blocks.
    pub(super) fn validate(&self, reserved: usize) {
        self.pool.validate();
        assert_eq!(reserved, self.reserved, "reservations are miscounted");
        assert!(reserved <= self.pool.free_len(), "more blocks are reserved than free");
    }

    pub(super) fn used_blocks(&self) -> usize {
        self.pool.capacity() - self.pool.free_len()
    }

    pub(super) fn contents(&self) -> BTreeMap<u64, u32> {
        self.pool.contents(MAIN_GROUP)
    }

    pub(super) fn lookup(&self, name: u64) -> Option<BlockId> {
        self.pool.lookup(CacheKey { group: MAIN_GROUP, name })
    }

    /// Whether any tier has the block.
    pub(super) fn keeps(&self, name: u64) -> bool {
        self.lookup(name).is_some() || self.tiers.leading(&[name]).total() > 0
    }

    /// Number of blocks that the next request may take.
    pub(super) fn room(&self) -> usize {
        self.pool.free_len() - self.reserved
    }

    /// Empties all tiers. Returns false, without effect, while blocks are in use.
    pub(super) fn reset(&mut self) -> bool {
        let is_done = self.pool.reset();
        if is_done {
            self.tiers.clear();
            self.states.clear();
        }
        is_done
    }

    /// What a request would find cached now, and what it would need.
    pub(super) fn fit(&self, job: &Job, terms: &Terms) -> Fit {
        // The last token is always computed.
        let most = (job.prompt_tokens - 1) / self.block_size;
        let total = terms.total_tokens(job).div_ceil(self.block_size);
        let held = job.names.iter().take(most).map_while(|&name| self.lookup(name));
        let common_blocks = held.clone().count();
        let common = job.names.get(..common_blocks).unwrap_or_default();
        let hit_blocks = self.states.resumable(common);
        let free_hits = held.take(hit_blocks).filter(|&id| self.pool.is_free(id)).count();
        let needed = total - hit_blocks;
        let rest = job.names.get(hit_blocks..most.min(job.names.len())).unwrap_or_default();
        let fetch = match terms.transfer {
            Some(_) => Fetch::default(),
            None if hit_blocks < common_blocks => Fetch::default(),
            None => self.tiers.leading(rest),
        };
        Fit { hit_blocks, common_blocks, fetch, needed, taken: needed + free_hits }
    }

    /// Takes the cached blocks of a request, and reserves the others.
    pub(super) fn admit<J: Deref<Target = Job>>(
        &mut self,
        waiting: Waiting<J>,
        fit: &Fit,
        now: Nanos,
    ) -> Run<J> {
        let Waiting { id, job, terms } = waiting;
        let names = job.names.iter().take(fit.hit_blocks);
        let blocks: Vec<_> = names.filter_map(|&name| self.lookup(name)).collect();
        blocks.iter().for_each(|&block| self.pool.acquire(block));
        self.reserved += fit.needed;
        let resumed = fit.hit_blocks.checked_sub(1).and_then(|at| job.names.get(at));
        resumed.into_iter().for_each(|&name| self.states.touch(name));
        Run {
            id,
            total: terms.total_tokens(&job),
            job,
            terms,
            is_cancelled: false,
            begun: now,
            computed: fit.hit_blocks * self.block_size,
            out: 0,
            hit_tokens: (fit.hit_blocks + fit.fetch.total()) * self.block_size,
            block_size: self.block_size,
            blocks,
            reserved: fit.needed,
            taken: fit.taken,
            common_blocks: fit.common_blocks,
        }
    }

    /// Releases a request's blocks and reservations.
    pub(super) fn drop_run<J>(&mut self, run: &Run<J>) {
        self.reserved -= run.reserved;
        self.release(&run.blocks);
    }

    /// Releases blocks, tail first, so that prefixes are evicted last.
    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        blocks.iter().rev().for_each(|&block| self.pool.release(block));
    }

    /// Marks the blocks of a request as used in the lower tiers. A model with state layers keeps the states at the end
    /// of the request, and where it parts from other requests.
    pub(super) fn touch<J: Deref<Target = Job>>(
        &mut self,
        run: &Run<J>,
        changes: &mut Vec<CacheChange>,
    ) {
        let complete = run.job.names.len().min(run.computed / self.block_size);
        self.tiers.touch(run.job.names.get(..complete).unwrap_or_default());
        for end in [run.common_blocks.min(complete), complete] {
            let Some(&name) = end.checked_sub(1).and_then(|at| run.job.names.get(at)) else {
                continue;
            };
            let (is_new, replaced) = self.states.keep_state(name);
            changes.extend(replaced.map(|name| CacheChange::StateRemoved { name }));
            changes.extend(is_new.then_some(CacheChange::StateStored { name }));
        }
    }

    /// Allocates missing blocks for the first `tokens` tokens of a request, which may evict others.
    pub(super) fn allocate<J>(
        &mut self,
        run: &mut Run<J>,
        tokens: usize,
        changes: &mut Vec<CacheChange>,
    ) {
        for _ in run.blocks.len()..tokens.div_ceil(self.block_size) {
            let (id, evicted) = self.pool.allocate().expect("blocks were reserved at admission");
            (run.reserved, self.reserved) = (run.reserved - 1, self.reserved - 1);
            run.blocks.push(id);
            if let Some(key) = evicted {
                let tier = Tier::Device;
                let remaining = self.pool.copies(key);
                changes.push(CacheChange::Removed { tier, name: key.name, remaining });
            }
        }
    }

    /// Stores the keys and values of the next `tokens` tokens of a request in its blocks. Blocks that become complete
    /// are cached, and written to the lower tiers.
    pub(super) fn fill<J: Deref<Target = Job>>(
        &mut self,
        run: &mut Run<J>,
        tokens: usize,
        changes: &mut Vec<CacheChange>,
    ) {
        let first = run.computed / self.block_size;
        run.computed += tokens;
        let complete = run.computed / self.block_size;
        let filled = run.blocks.iter().zip(&run.job.names).take(complete).skip(first);
        let mut names = Vec::with_capacity(complete - first);
        for (&id, &name) in filled {
            self.pool.cache(id, CacheKey { group: MAIN_GROUP, name });
            names.push(name);
        }
        if names.is_empty() {
            return;
        }
        let parent = first.checked_sub(1).and_then(|at| run.job.names.get(at)).copied();
        let id = run.id;
        let tier = Tier::Device;
        changes.push(CacheChange::Stored { tier, id, first, names: names.clone(), parent });
        self.tiers.store(Chain { id, first, names: &names, parent }, changes);
    }
}
