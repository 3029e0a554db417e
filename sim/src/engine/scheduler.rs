//! Schedules the requests of one engine over its block pool, one step at a time (continuous batching).
//!
//! A step has a budget of tokens. Running requests come first. A request in its prefill gets the rest of the budget. A
//! request in its decode gets the tokens up to its next block boundary; a real engine takes one step per token and
//! publishes the same events in more batches. Then waiting requests are admitted in order, as long as the free blocks
//! cover their full length in addition to the reservations of running requests.

use super::pool::{BlockId, BlockPool, CacheKey};
use super::wire::EngineEvent;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use xxhash_rust::xxh3::Xxh3;

/// Maximum number of requests that run concurrently.
pub const RUNNING_REQUESTS_MAX: usize = 256;
/// Maximum number of tokens that one step computes; vLLM's default for servers.
pub const STEP_TOKENS_MAX: usize = 8_192;
/// Maximum number of blocks that one step fills per group, which keeps a batch below every limit on events.
const STEP_BLOCKS_MAX: usize = 1_024;

/// The full-attention group, which the index tracks.
pub const MAIN_GROUP: u8 = 0;
/// The optional sliding-window group.
pub const WINDOW_GROUP: u8 = 1;

/// A request: the prompt, and the answer of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prompt {
    /// Tokens of the prompt, at least one.
    pub tokens: Vec<u32>,
    /// Tokens of the answer; the last one is never an input, so it fills no block.
    pub answer: Vec<u32>,
}

/// The result of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens found in the cache.
    pub hit_tokens: u64,
}

/// Result of one step.
#[derive(Debug, Default)]
pub struct Step {
    /// Events in order: one batch, unless empty.
    pub events: Vec<EngineEvent>,
    /// Requests that ended in this step.
    pub finished: Vec<(u64, Completion)>,
}

/// A request that does not fit into the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request needs {needed} blocks, the pool has {capacity}")]
pub struct TooLarge {
    /// Required blocks.
    pub needed: usize,
    /// Blocks in the pool.
    pub capacity: usize,
}

/// Sizes of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Tokens per block.
    pub block_size: usize,
    /// Physical blocks, shared by all groups.
    pub capacity_blocks: usize,
    /// Window of the second group in tokens; `None` for no second group.
    pub sliding_window: Option<usize>,
    /// Start of the chain of names. Engines with equal seeds give equal blocks equal names.
    pub name_seed: u64,
}

#[derive(Debug)]
struct Job {
    id: u64,
    /// Prompt, then the answer without its last token.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Names of all complete blocks of `tokens`.
    names: Vec<u64>,
    /// Number of tokens whose keys and values are in the pool.
    computed: usize,
    hit_tokens: usize,
    /// Blocks by group; `None` for blocks before the window.
    tables: Vec<Vec<Option<BlockId>>>,
    /// Number of reserved blocks that are not allocated yet, over all groups.
    reserved: usize,
}

/// The scheduler of one engine.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    pool: BlockPool,
    waiting: VecDeque<Job>,
    running: Vec<Job>,
    reserved: usize,
}

// === impl Scheduler ===

impl Scheduler {
    /// An engine with an empty pool.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            config,
            pool: BlockPool::new(config.capacity_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            reserved: 0,
        }
    }

    /// Queues a request. The step that completes it returns `id`.
    ///
    /// # Errors
    /// If the request does not fit into the pool.
    ///
    /// # Panics
    /// If the prompt has no tokens.
    pub fn submit(&mut self, id: u64, prompt: Prompt) -> Result<(), TooLarge> {
        assert!(!prompt.tokens.is_empty(), "a prompt needs a token");
        let prompt_len = prompt.tokens.len();
        let mut tokens = prompt.tokens;
        tokens.extend(&prompt.answer[..prompt.answer.len().saturating_sub(1)]);
        let groups = self.group_len();
        let needed = tokens.len().div_ceil(self.config.block_size) * groups;
        if needed > self.config.capacity_blocks {
            return Err(TooLarge { needed, capacity: self.config.capacity_blocks });
        }
        let names = block_names(&tokens, self.config.block_size, self.config.name_seed);
        let tables = vec![Vec::new(); groups];
        let job =
            Job { id, tokens, prompt_len, names, computed: 0, hit_tokens: 0, tables, reserved: 0 };
        self.waiting.push_back(job);
        Ok(())
    }

    /// True if no request is waiting or running.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Executes one step.
    pub fn step(&mut self) -> Step {
        let mut step = Step::default();
        let block_size = self.config.block_size;
        let mut budget = STEP_TOKENS_MAX.min(STEP_BLOCKS_MAX * block_size);
        let mut running = std::mem::take(&mut self.running);
        for job in &mut running {
            let wanted = if job.computed < job.prompt_len {
                job.prompt_len - job.computed
            } else {
                (block_size - job.computed % block_size).min(job.tokens.len() - job.computed)
            };
            let tokens = wanted.min(budget);
            budget -= tokens;
            self.compute(job, tokens, &mut step.events);
        }
        while budget > 0 && running.len() < RUNNING_REQUESTS_MAX {
            let Some(mut job) = self.admit() else { break };
            let tokens = (job.prompt_len - job.computed).min(budget);
            budget -= tokens;
            self.compute(&mut job, tokens, &mut step.events);
            running.push(job);
        }
        for job in running {
            if job.computed == job.tokens.len() {
                step.finished.push((job.id, self.finish(&job)));
            } else {
                self.running.push(job);
            }
        }
        step
    }

    /// Empties the prefix cache. Returns false, without effect, while any request runs.
    pub fn reset(&mut self) -> bool {
        self.running.is_empty() && self.pool.reset()
    }

    /// Cached names of one group, with their numbers of physical copies.
    #[must_use]
    pub fn contents(&self, group: u8) -> BTreeMap<u64, u32> {
        self.pool.contents(group)
    }

    /// Checks every invariant.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn validate(&self) {
        self.pool.validate();
        let reserved = self.running.iter().map(|job| job.reserved).sum::<usize>();
        assert_eq!(reserved, self.reserved, "reservations are miscounted");
        assert!(reserved <= self.pool.free_len(), "more blocks are reserved than free");
    }

    fn group_len(&self) -> usize {
        if self.config.sliding_window.is_some() { 2 } else { 1 }
    }

    /// Admits the first waiting request with its cached blocks, if there is room for it.
    fn admit(&mut self) -> Option<Job> {
        let job = self.waiting.front()?;
        let hit_blocks = self.hit_blocks(job);
        let tables = self.cached_tables(job, hit_blocks);
        let total_blocks = job.tokens.len().div_ceil(self.config.block_size);
        let needed = (total_blocks - hit_blocks) * tables.len();
        let cached = tables.iter().flatten().flatten();
        let taken = cached.clone().filter(|&&id| self.pool.is_free(id)).count();
        if self.pool.free_len() < self.reserved + taken + needed {
            return None;
        }
        for &id in cached {
            self.pool.acquire(id);
        }
        let mut job = self.waiting.pop_front()?;
        job.computed = hit_blocks * self.config.block_size;
        job.hit_tokens = job.computed;
        job.tables = tables;
        job.reserved = needed;
        self.reserved += needed;
        Some(job)
    }

    /// Number of leading blocks of the prompt that every group has cached. The last token is always computed, so a
    /// completely cached prompt computes its last block a second time.
    fn hit_blocks(&self, job: &Job) -> usize {
        let cached = |group, &name: &u64| self.pool.lookup(CacheKey { group, name }).is_some();
        let most = (job.prompt_len - 1) / self.config.block_size;
        let main = job.names.iter().take(most).take_while(|name| cached(MAIN_GROUP, name)).count();
        if self.config.sliding_window.is_none() {
            return main;
        }
        let fits = |&hit: &usize| {
            let first = self.window_start(hit * self.config.block_size);
            job.names[first..hit].iter().all(|name| cached(WINDOW_GROUP, name))
        };
        (0..=main).rev().find(fits).unwrap_or(0)
    }

    /// Blocks of the first `hit_blocks` names, by group.
    fn cached_tables(&self, job: &Job, hit_blocks: usize) -> Vec<Vec<Option<BlockId>>> {
        let window_start = self.window_start(hit_blocks * self.config.block_size);
        let block = |group: usize, index: usize, name: u64| {
            let inside = group == usize::from(MAIN_GROUP) || index >= window_start;
            let key = CacheKey { group: group as u8, name };
            if inside { self.pool.lookup(key) } else { None }
        };
        let names = || job.names.iter().take(hit_blocks).enumerate();
        let table = |group| names().map(|(index, &name)| block(group, index, name)).collect();
        (0..self.group_len()).map(table).collect()
    }

    /// First block of the window group that the token after `tokens` computed tokens still attends to.
    fn window_start(&self, tokens: usize) -> usize {
        let window = self.config.sliding_window.unwrap_or(usize::MAX);
        (tokens + 1).saturating_sub(window) / self.config.block_size
    }

    /// Computes the next `tokens` tokens of a request. Allocates blocks, which may evict others, and caches the blocks
    /// that are now complete.
    fn compute(&mut self, job: &mut Job, tokens: usize, events: &mut Vec<EngineEvent>) {
        let block_size = self.config.block_size;
        let start = job.computed / block_size;
        job.computed += tokens;
        let end = job.computed.div_ceil(block_size);
        let complete = job.computed / block_size;
        for group in 0..job.tables.len() {
            let window_start = match group as u8 {
                MAIN_GROUP => 0,
                _ => self.window_start(job.computed),
            };
            self.leave_window(&mut job.tables[group], window_start);
            for index in job.tables[group].len()..end {
                job.reserved -= 1;
                self.reserved -= 1;
                let block = (index >= window_start).then(|| self.take_block(events));
                job.tables[group].push(block);
            }
            self.cache_blocks(job, group, start..complete, events);
        }
    }

    /// Releases the blocks before the window, last block first.
    fn leave_window(&mut self, table: &mut [Option<BlockId>], window_start: usize) {
        let before = window_start.min(table.len());
        for slot in table[..before].iter_mut().rev() {
            if let Some(id) = slot.take() {
                self.pool.release(id);
            }
        }
    }

    fn take_block(&mut self, events: &mut Vec<EngineEvent>) -> BlockId {
        let (id, evicted) = self.pool.allocate().expect("blocks were reserved at admission");
        if let Some(key @ CacheKey { group, name }) = evicted {
            let remaining = self.pool.copies(key);
            events.push(EngineEvent::Removed { group, name, remaining });
        }
        id
    }

    /// Caches the blocks of `range` in one group and announces them. Blocks before the window are missing from the
    /// announcement, although its tokens span them.
    fn cache_blocks(
        &mut self,
        job: &Job,
        group: usize,
        range: std::ops::Range<usize>,
        events: &mut Vec<EngineEvent>,
    ) {
        let mut names = Vec::with_capacity(range.len());
        for index in range.clone() {
            if let Some(id) = job.tables[group][index] {
                let name = job.names[index];
                self.pool.cache(id, CacheKey { group: group as u8, name });
                names.push(name);
            }
        }
        if names.is_empty() {
            return;
        }
        let block_size = self.config.block_size;
        events.push(EngineEvent::Stored {
            group: group as u8,
            names,
            parent: range.start.checked_sub(1).map(|index| job.names[index]),
            tokens: job.tokens[range.start * block_size..range.end * block_size].to_vec(),
            salt: None,
        });
    }

    /// Releases a request's blocks, tail first, so that its prefix is evicted last.
    fn finish(&mut self, job: &Job) -> Completion {
        self.reserved -= job.reserved;
        for table in &job.tables {
            for &id in table.iter().rev().flatten() {
                self.pool.release(id);
            }
        }
        Completion { prompt_tokens: job.prompt_len as u64, hit_tokens: job.hit_tokens as u64 }
    }
}

/// Names of all complete blocks: a chain of 64-bit hashes over the previous name and the block's tokens. It
/// deliberately differs from the index's own hash scheme, so that tests cannot confuse the two.
#[must_use]
pub fn block_names(tokens: &[u32], block_size: usize, seed: u64) -> Vec<u64> {
    let mut parent = !seed;
    let blocks = tokens.chunks_exact(block_size);
    let names = blocks.map(|block| {
        let mut hasher = Xxh3::with_seed(seed);
        hasher.update(&parent.to_be_bytes());
        for token in block {
            hasher.update(&token.to_be_bytes());
        }
        parent = hasher.digest();
        parent
    });
    names.collect()
}

#[cfg(test)]
#[path = "scheduler_test.rs"]
mod scheduler_test;
