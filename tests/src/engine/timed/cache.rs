//! The caches of one engine: its pool of blocks with what is reserved there, and the tiers below it (pure).

use super::event::CacheChange;
use super::job::{Job, Terms};
use super::model::{EngineOptions, Nanos};
use super::run::{Run, Waiting};
use super::tiers::{Chain, Fetch, Tiers};
use crate::engine::pool::{BlockId, BlockPool, CacheKey};
use crate::engine::scheduler::MAIN_GROUP;
use kvasir_proto::types::Tier;
use std::collections::BTreeMap;
use std::ops::Deref;

/// What a request finds, and asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Leading blocks that are cached in device memory.
    pub(crate) hit_blocks: usize,
    /// Blocks after these that are fetched from the tiers below.
    pub(crate) fetch: Fetch,
    /// Blocks that it needs beside the cached ones.
    needed: usize,
    /// Blocks that are not free any more once it is admitted.
    pub(crate) taken: usize,
}

/// The caches.
#[derive(Debug)]
pub(super) struct Cache {
    block_size: usize,
    pool: BlockPool,
    tiers: Tiers,
    reserved: usize,
}

// === impl Cache ===

impl Cache {
    pub(super) fn new(options: &EngineOptions) -> Self {
        Self {
            block_size: options.block_size,
            pool: BlockPool::new(options.capacity_blocks),
            tiers: Tiers::new(options.host_blocks, options.disk_blocks),
            reserved: 0,
        }
    }

    /// Checks the pool, and that so many blocks are reserved.
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

    /// Whether any tier has a block.
    pub(super) fn keeps(&self, name: u64) -> bool {
        self.lookup(name).is_some() || self.tiers.leading(&[name]).total() > 0
    }

    /// Blocks that the next request may take.
    pub(super) fn room(&self) -> usize {
        self.pool.free_len() - self.reserved
    }

    /// Empties all tiers. Returns false, and does nothing, while blocks are in use.
    pub(super) fn reset(&mut self) -> bool {
        let is_done = self.pool.reset();
        if is_done {
            self.tiers.clear();
        }
        is_done
    }

    /// What a request finds now.
    pub(super) fn fit(&self, job: &Job, terms: &Terms) -> Fit {
        // The last token is always computed.
        let most = (job.prompt_tokens - 1) / self.block_size;
        let total = terms.total_tokens(job).div_ceil(self.block_size);
        let mut hit_blocks = 0;
        let mut free_hits = 0;
        for &name in job.names.iter().take(most) {
            let Some(id) = self.lookup(name) else { break };
            hit_blocks += 1;
            free_hits += usize::from(self.pool.is_free(id));
        }
        let needed = total - hit_blocks;
        let rest = job.names.get(hit_blocks..most.min(job.names.len())).unwrap_or_default();
        let fetch = match terms.transfer {
            Some(_) => Fetch::default(),
            None => self.tiers.leading(rest),
        };
        Fit { hit_blocks, fetch, needed, taken: needed + free_hits }
    }

    /// Takes the blocks that a request finds cached, and reserves the others.
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
        }
    }

    /// Releases the blocks of a request, and what it has reserved.
    pub(super) fn drop_run<J>(&mut self, run: &Run<J>) {
        self.reserved -= run.reserved;
        self.release(&run.blocks);
    }

    /// Releases blocks, tail first, so that a prefix is evicted last.
    pub(super) fn release(&mut self, blocks: &[BlockId]) {
        blocks.iter().rev().for_each(|&block| self.pool.release(block));
    }

    /// Notes for the tiers below that a request has used its blocks.
    pub(super) fn touch<J: Deref<Target = Job>>(&mut self, run: &Run<J>) {
        let complete = run.job.names.len().min(run.computed / self.block_size);
        self.tiers.touch(run.job.names.get(..complete).unwrap_or_default());
    }

    /// Takes blocks for the first `tokens` tokens of a request, as far as it has none. That may evict others.
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

    /// Puts the keys and values of the next `tokens` tokens of a request into its blocks. Blocks that become complete are
    /// cached, and written to the tiers below.
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
