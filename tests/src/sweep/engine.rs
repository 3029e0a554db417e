//! A mock engine with time: requests and times in, timed events out. No clock, no tokens, no I/O.
//!
//! It does what [`Scheduler`](crate::engine::scheduler::Scheduler) does, by the same rules of admission, over the same
//! [`BlockPool`]; but a request in its answer gets one token a step, and a step takes time. Blocks are allocated, evicted
//! and cached when a step begins, and announced at that moment, as vLLM's scheduler does; first tokens are out and
//! requests end when a step ends.
//!
//! With host memory or a disk, whatever is complete is written there too, and fetched from there when device memory lost
//! it: its time is added to the step that begins with it.
//!
//! While all running requests decode inside their blocks, nothing is to be decided: such steps are taken at once. A
//! request that comes meanwhile cuts that short at the end of the step that is under way.

use super::job::Job;
use super::model::{EngineOptions, Nanos, StepLoad};
use super::tiers::{Fetch, Tiers, push_removed};
use crate::engine::pool::{BlockId, BlockPool, CacheKey};
use crate::engine::scheduler::MAIN_GROUP;
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, StoredBlock, Tier};
use std::collections::VecDeque;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed {
    /// When.
    pub at: Nanos,
    /// What.
    pub event: Event,
}

/// What happens in an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Its cache changed.
    Cache(Vec<KvEvent>),
    /// The first token of a request is out.
    FirstToken {
        /// The request.
        id: usize,
        /// When the first step with it began.
        begun: Nanos,
    },
    /// A request has ended.
    Finished {
        /// The request.
        id: usize,
        /// Tokens of its prompt that were found in the cache.
        hit_tokens: usize,
    },
}

/// What an engine does of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All.
    Whole,
    /// It computes the prompt; its first token is its last.
    Prefill,
    /// It gets the prompt's keys and values, computes the last token of it again, and answers.
    Decode,
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting<'a> {
    id: usize,
    pub(super) job: &'a Job,
    pub(super) part: Part,
}

/// A request that runs.
#[derive(Debug)]
pub(super) struct Run<'a> {
    id: usize,
    pub(super) job: &'a Job,
    /// Tokens that are computed in all.
    pub(super) total: usize,
    begun: Nanos,
    /// Tokens whose keys and values are in the pool once the step under way ends.
    pub(super) computed: usize,
    hit_tokens: usize,
    blocks: Vec<BlockId>,
    /// Blocks reserved and not allocated yet.
    reserved: usize,
    /// Blocks that it took from the free ones, reserved ones included.
    pub(super) taken: usize,
    has_first_token: bool,
}

/// What a request finds, and asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fit {
    /// Leading blocks that are cached.
    pub(super) hit_blocks: usize,
    /// Blocks after these that are fetched from other tiers.
    pub(super) fetch: Fetch,
    /// Blocks that it needs beside these.
    needed: usize,
    /// Blocks that are not free any more once it is admitted.
    pub(super) taken: usize,
}

/// Equal steps under way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    begin: Nanos,
    first: StepLoad,
    steps: u64,
}

/// The engine.
#[derive(Debug)]
pub struct Engine<'a> {
    pub(super) options: EngineOptions,
    pool: BlockPool,
    tiers: Tiers,
    pub(super) waiting: VecDeque<Waiting<'a>>,
    pub(super) running: Vec<Run<'a>>,
    reserved: usize,
    flight: Option<Flight>,
    computed_tokens: u64,
    is_stepping: bool,
}

// === impl Engine ===

impl<'a> Engine<'a> {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            pool: BlockPool::new(options.capacity_blocks),
            tiers: Tiers::new(options.host_blocks, options.disk_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            reserved: 0,
            flight: None,
            computed_tokens: 0,
            is_stepping: false,
        }
    }

    /// The same engine, taking each step by itself: slower, and else the same.
    #[cfg(test)]
    pub(super) fn stepping(self) -> Self {
        Self { is_stepping: true, ..self }
    }

    /// Checks the pool and the reservations.
    #[cfg(test)]
    pub(super) fn validate(&self) {
        self.pool.validate();
        let reserved: usize = self.running.iter().map(|run| run.reserved).sum();
        assert_eq!(reserved, self.reserved, "reservations are miscounted");
        assert!(reserved <= self.pool.free_len(), "more blocks are reserved than free");
    }

    /// Whether it can ever hold a request.
    #[must_use]
    pub fn can_hold(&self, job: &Job) -> bool {
        job.total_tokens().div_ceil(self.options.block_size) <= self.options.capacity_blocks
    }

    /// Tokens computed so far: of prompts without hits, and of answers.
    #[must_use]
    pub fn computed_tokens(&self) -> u64 {
        self.computed_tokens
    }

    /// Requests that wait or run.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// How long after `now` the step ends that is under way; 0 while the engine is idle. All that happens up to `now` must
    /// be done.
    #[must_use]
    pub fn residual(&self, now: Nanos) -> Nanos {
        self.step_end(now).map_or(0, |end| end.saturating_sub(now))
    }

    /// Whether it holds a block in device memory.
    #[must_use]
    pub fn holds(&self, name: u64) -> bool {
        self.pool.lookup(CacheKey { group: MAIN_GROUP, name }).is_some()
    }

    /// Queues a request that it [can hold](Self::can_hold). All that happens up to `now` must be done.
    pub fn submit(
        &mut self,
        id: usize,
        (job, part): (&'a Job, Part),
        now: Nanos,
        out: &mut Vec<Timed>,
    ) {
        debug_assert!(self.can_hold(job), "the pool never has room for it");
        self.waiting.push_back(Waiting { id, job, part });
        let steps = self.steps_begun(now);
        match &mut self.flight {
            Some(flight) => flight.steps = steps,
            None => self.begin(now, out),
        }
    }

    /// Does all that happens up to `now`, which is included.
    pub fn run_until(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        while let Some(flight) = self.flight {
            let end = self.end(&flight, flight.steps);
            if end > now {
                return;
            }
            self.complete(&flight, end, out);
            self.begin(end, out);
        }
    }

    /// When the step ends that is under way at `now`; none while the engine is idle.
    pub(super) fn step_end(&self, now: Nanos) -> Option<Nanos> {
        self.flight.map(|flight| self.end(&flight, self.steps_begun(now)))
    }

    /// Steps under way that have begun by `now`.
    pub(super) fn steps_begun(&self, now: Nanos) -> u64 {
        let Some(flight) = self.flight else { return 0 };
        let is_under_way = |steps: &u64| self.end(&flight, *steps) > now;
        (1..flight.steps).find(is_under_way).unwrap_or(flight.steps)
    }

    /// Blocks that the next request may take.
    pub(super) fn room(&self) -> usize {
        self.pool.free_len() - self.reserved
    }

    fn end(&self, flight: &Flight, steps: u64) -> Nanos {
        flight.begin + self.options.model.steps_nanos(&flight.first, steps)
    }

    /// Begins a step, if there is something to do.
    fn begin(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        let (mut load, mut events) = (StepLoad::default(), Vec::new());
        let mut budget = self.options.step_tokens_max;
        let mut running = std::mem::take(&mut self.running);
        for run in &mut running {
            self.schedule(run, &mut budget, &mut load, &mut events);
        }
        while budget > 0 && running.len() < self.options.running_max {
            let Some(mut run) = self.admit(now, &mut load, &mut events) else { break };
            self.schedule(&mut run, &mut budget, &mut load, &mut events);
            running.push(run);
        }
        let fetched = load.host_tokens + load.disk_tokens;
        let is_quiet = load.prefill_tokens + fetched == 0 && !self.is_stepping;
        let further = running.iter().map(|run| run.quiet_steps(self.options.block_size)).min();
        let steps = 1 + if is_quiet { further.unwrap_or(0) } else { 0 } as u64;
        self.flight = (!running.is_empty()).then_some(Flight { begin: now, first: load, steps });
        self.running = running;
        if !events.is_empty() {
            out.push(Timed { at: now, event: Event::Cache(events) });
        }
    }

    /// Gives a request its share of the step.
    fn schedule(
        &mut self,
        run: &mut Run<'a>,
        budget: &mut usize,
        load: &mut StepLoad,
        events: &mut Vec<KvEvent>,
    ) {
        let is_prefill = run.computed < run.job.prompt_tokens;
        let wanted = if is_prefill { run.job.prompt_tokens - run.computed } else { 1 };
        let tokens = wanted.min(*budget);
        if tokens == 0 {
            return;
        }
        *budget -= tokens;
        load.context_tokens += run.computed as u64;
        if is_prefill {
            load.prefill_tokens += tokens as u64;
        } else {
            load.decode_sequences += 1;
        }
        self.compute(run, tokens, events);
    }

    /// Ends the steps under way.
    fn complete(&mut self, flight: &Flight, end: Nanos, out: &mut Vec<Timed>) {
        let further = flight.steps - 1;
        let StepLoad { prefill_tokens, decode_sequences, .. } = flight.first;
        self.computed_tokens += prefill_tokens + decode_sequences * flight.steps;
        for mut run in std::mem::take(&mut self.running) {
            run.computed += further as usize;
            if !run.has_first_token && run.computed >= run.job.prompt_tokens {
                run.has_first_token = true;
                let event = Event::FirstToken { id: run.id, begun: run.begun };
                out.push(Timed { at: end, event });
            }
            if run.computed < run.total {
                self.running.push(run);
                continue;
            }
            // Tail first, so that its prefix is evicted last.
            run.blocks.iter().rev().for_each(|&id| self.pool.release(id));
            let complete = run.job.names.len().min(run.computed / self.options.block_size);
            self.tiers.touch(run.job.names.get(..complete).unwrap_or_default());
            let event = Event::Finished { id: run.id, hit_tokens: run.hit_tokens };
            out.push(Timed { at: end, event });
        }
    }

    /// What a request finds now.
    pub(super) fn fit(&self, job: &Job, part: Part) -> Fit {
        // The last token is always computed.
        let most = (job.prompt_tokens - 1) / self.options.block_size;
        let total = part.total_tokens(job).div_ceil(self.options.block_size);
        let (mut hit_blocks, mut free_hits) = (0, 0);
        for &name in job.names.iter().take(most) {
            let Some(id) = self.pool.lookup(CacheKey { group: MAIN_GROUP, name }) else { break };
            hit_blocks += 1;
            free_hits += usize::from(self.pool.is_free(id));
        }
        let needed = total - hit_blocks;
        let rest = job.names.get(hit_blocks..most.min(job.names.len())).unwrap_or_default();
        let fetch = match part {
            Part::Whole | Part::Prefill => self.tiers.leading(rest),
            Part::Decode => Fetch::default(),
        };
        Fit { hit_blocks, fetch, needed, taken: needed + free_hits }
    }

    /// Admits the first waiting request, with the blocks it finds cached, if there is room for it.
    fn admit(
        &mut self,
        now: Nanos,
        load: &mut StepLoad,
        events: &mut Vec<KvEvent>,
    ) -> Option<Run<'a>> {
        let Waiting { job, part, .. } = *self.waiting.front()?;
        let Fit { hit_blocks, fetch, needed, taken } = self.fit(job, part);
        if self.room() < taken {
            return None;
        }
        let Waiting { id, .. } = self.waiting.pop_front()?;
        let names = job.names.iter().take(hit_blocks);
        let blocks: Vec<_> = names
            .filter_map(|&name| self.pool.lookup(CacheKey { group: MAIN_GROUP, name }))
            .collect();
        blocks.iter().for_each(|&block| self.pool.acquire(block));
        self.reserved += needed;
        let block_size = self.options.block_size;
        let mut run = Run {
            id,
            job,
            total: part.total_tokens(job),
            begun: now,
            computed: hit_blocks * block_size,
            hit_tokens: (hit_blocks + fetch.total()) * block_size,
            blocks,
            reserved: needed,
            taken,
            has_first_token: false,
        };
        load.host_tokens += (fetch.host * block_size) as u64;
        load.disk_tokens += (fetch.disk * block_size) as u64;
        // What comes from elsewhere is there without being computed.
        let present = part.present_tokens(job, run.hit_tokens);
        if present > run.computed {
            let tokens = present - run.computed;
            self.compute(&mut run, tokens, events);
        }
        Some(run)
    }

    /// Takes blocks for the next tokens of a request, which may evict others, and caches those that become complete.
    fn compute(&mut self, run: &mut Run<'a>, tokens: usize, events: &mut Vec<KvEvent>) {
        let block_size = self.options.block_size;
        let start = run.computed / block_size;
        run.computed += tokens;
        for _ in run.blocks.len()..run.computed.div_ceil(block_size) {
            let (id, evicted) = self.pool.allocate().expect("blocks were reserved at admission");
            (run.reserved, self.reserved) = (run.reserved - 1, self.reserved - 1);
            run.blocks.push(id);
            if let Some(key) = evicted {
                push_removed(events, Tier::Device, BlockName(key.name));
            }
        }
        let complete = start..run.computed / block_size;
        let filled = run.blocks.iter().zip(&run.job.names).take(complete.end).skip(start);
        let mut stored = Vec::with_capacity(complete.len());
        for (&id, &name) in filled {
            self.pool.cache(id, CacheKey { group: MAIN_GROUP, name });
            stored.push(StoredBlock { name: BlockName(name), local: LocalHash(name) });
        }
        if !stored.is_empty() {
            let parent = start.checked_sub(1).and_then(|at| run.job.names.get(at));
            let parent = parent.map(|&name| BlockName(name));
            let lower = stored.clone();
            events.push(KvEvent::Stored { parent, tier: Tier::Device, blocks: stored });
            self.tiers.store(parent, &lower, events);
        }
    }
}

// === impl Run ===

impl Run<'_> {
    /// Further steps after the one under way in which it takes no block, completes none and does not end before the
    /// last.
    fn quiet_steps(&self, block_size: usize) -> usize {
        let inside = self.computed % block_size;
        let to_boundary = if inside == 0 { 0 } else { block_size - 1 - inside };
        to_boundary.min(self.total - self.computed)
    }
}

// === impl Part ===

impl Part {
    /// Tokens that the engine has in its pool once the request ends.
    pub(super) fn total_tokens(self, job: &Job) -> usize {
        match self {
            Self::Whole | Self::Decode => job.total_tokens(),
            Self::Prefill => job.prompt_tokens,
        }
    }

    /// Tokens that need not be computed, of which so many are cached.
    pub(super) fn present_tokens(self, job: &Job, cached: usize) -> usize {
        match self {
            Self::Whole | Self::Prefill => cached,
            Self::Decode => job.prompt_tokens - 1,
        }
    }
}

#[cfg(test)]
#[path = "engine_test.rs"]
mod engine_test;
