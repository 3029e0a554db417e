//! A mock engine with time: requests and times in, timed events out. No clock, no tokens, no I/O.
//!
//! It does what [`Scheduler`](crate::engine::scheduler::Scheduler) does, by the same rules of admission, over the same
//! [`BlockPool`]; but a request in its answer gets one token a step, and a step takes time. Blocks are allocated, evicted
//! and cached when a step begins, and announced at that moment, as vLLM's scheduler does; first tokens are out and
//! requests end when a step ends.
//!
//! A request whose prompt another engine has computed gets its blocks when it is admitted, and they are cached, and
//! announced, at the first step that begins after the transfer. It computes the last token of its prompt itself. Blocks
//! that another engine will fetch stay in use after the request's end, until they are released.
//!
//! While all running requests decode inside their blocks, nothing is to be decided: such steps are taken at once. A
//! request that comes meanwhile cuts that short at the end of the step that is under way.

use super::event::{CacheChange, Event, Timed};
use super::job::{Job, Terms};
use super::model::{EngineOptions, Nanos, StepLoad};
use crate::engine::pool::{BlockId, BlockPool, CacheKey};
use crate::engine::scheduler::MAIN_GROUP;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

/// A request that waits.
#[derive(Debug)]
pub(crate) struct Waiting<J> {
    id: usize,
    pub(crate) job: J,
    terms: Terms,
}

/// A request that runs.
#[derive(Debug)]
pub(crate) struct Run<J> {
    id: usize,
    pub(crate) job: J,
    is_held: bool,
    is_cancelled: bool,
    /// Tokens whose keys and values are in the pool once the step under way ends.
    pub(crate) computed: usize,
    /// Tokens of its answer that are out.
    out: usize,
    hit_tokens: usize,
    blocks: Vec<BlockId>,
    /// Blocks reserved and not allocated yet.
    reserved: usize,
    /// Blocks that it took from the free ones, reserved ones included.
    pub(crate) taken: usize,
}

/// A request whose keys and values are on their way from another engine.
#[derive(Debug)]
struct Receiving<J> {
    /// When they are here.
    at: Nanos,
    run: Run<J>,
}

/// What a request finds, and asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fit {
    /// Leading blocks that are cached.
    pub(crate) hit_blocks: usize,
    /// Blocks that it needs beside these.
    needed: usize,
    /// Blocks that are not free any more once it is admitted.
    pub(crate) taken: usize,
}

/// Equal steps under way.
#[derive(Debug, Clone, Copy)]
struct Flight {
    begin: Nanos,
    first: StepLoad,
    steps: u64,
}

/// The engine. `J` is how it refers to a [`Job`].
#[derive(Debug)]
pub struct Engine<J> {
    pub(crate) options: EngineOptions,
    pool: BlockPool,
    pub(crate) waiting: VecDeque<Waiting<J>>,
    pub(crate) running: Vec<Run<J>>,
    receiving: Vec<Receiving<J>>,
    /// Blocks of ended requests that other engines will fetch.
    held: BTreeMap<usize, Vec<BlockId>>,
    reserved: usize,
    flight: Option<Flight>,
    computed_tokens: u64,
    is_stepping: bool,
}

// === impl Engine ===

impl<J: Deref<Target = Job>> Engine<J> {
    /// An idle engine with an empty cache.
    #[must_use]
    pub fn new(options: EngineOptions) -> Self {
        Self {
            options,
            pool: BlockPool::new(options.capacity_blocks),
            waiting: VecDeque::new(),
            running: Vec::new(),
            receiving: Vec::new(),
            held: BTreeMap::new(),
            reserved: 0,
            flight: None,
            computed_tokens: 0,
            is_stepping: false,
        }
    }

    /// The same engine, taking each step by itself: slower, and else the same.
    #[must_use]
    pub fn stepping(self) -> Self {
        Self { is_stepping: true, ..self }
    }

    /// Checks the pool and the reservations.
    ///
    /// # Panics
    /// If one of them is not right.
    pub fn validate(&self) {
        self.pool.validate();
        let receiving = self.receiving.iter().map(|at| &at.run);
        let reserved: usize = self.running.iter().chain(receiving).map(|run| run.reserved).sum();
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
        self.waiting() + self.running()
    }

    /// Requests that wait for room or for a transfer, as vLLM counts them.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.receiving.len()
    }

    /// Requests that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Blocks in use: of requests, and held ones.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        self.pool.capacity() - self.pool.free_len()
    }

    /// What it holds: names with their number of physical copies.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<u64, u32> {
        self.pool.contents(MAIN_GROUP)
    }

    /// Running requests with the tokens of their answers that were out when the last step ended.
    pub fn progress(&self) -> impl Iterator<Item = (usize, usize)> {
        self.running.iter().map(|run| (run.id, run.out))
    }

    /// Whether it holds a block.
    #[must_use]
    pub fn holds(&self, name: u64) -> bool {
        self.pool.lookup(CacheKey { group: MAIN_GROUP, name }).is_some()
    }

    /// Queues a request that it [can hold](Self::can_hold). All that happens up to `now` must be done.
    pub fn submit(&mut self, id: usize, job: J, now: Nanos, out: &mut Vec<Timed>) {
        self.submit_with(id, job, Terms::default(), now, out);
    }

    /// As [`submit`](Self::submit), with terms. Ids must differ from those of all requests that are held.
    pub fn submit_with(
        &mut self,
        id: usize,
        job: J,
        terms: Terms,
        now: Nanos,
        out: &mut Vec<Timed>,
    ) {
        debug_assert!(self.can_hold(&job), "the pool never has room for it");
        self.waiting.push_back(Waiting { id, job, terms });
        self.hurry(now, out);
    }

    /// Ends a request early: at once while it waits, at the end of the step that is under way while it runs. What it has
    /// computed stays cached. There is no further event of it. All that happens up to `now` must be done.
    pub fn cancel(&mut self, id: usize, now: Nanos, out: &mut Vec<Timed>) {
        self.waiting.retain(|waiting| waiting.id != id);
        if let Some(at) = self.receiving.iter().position(|at| at.run.id == id) {
            let Receiving { run, .. } = self.receiving.remove(at);
            self.drop_blocks(&run);
        }
        for run in self.running.iter_mut().filter(|run| run.id == id) {
            run.is_cancelled = true;
        }
        self.hurry(now, out);
    }

    /// Blocks of an ended request that are held for another engine.
    #[must_use]
    pub fn held(&self, id: usize) -> Option<&[BlockId]> {
        self.held.get(&id).map(Vec::as_slice)
    }

    /// Releases the blocks that are held of an ended request; false if none are. They stay cached.
    pub fn release(&mut self, id: usize, now: Nanos, out: &mut Vec<Timed>) -> bool {
        let Some(blocks) = self.held.remove(&id) else { return false };
        blocks.iter().rev().for_each(|&block| self.pool.release(block));
        self.hurry(now, out);
        true
    }

    /// Empties the prefix cache. Returns false, and does nothing, while blocks are in use.
    pub fn reset(&mut self) -> bool {
        self.pool.reset()
    }

    /// Does all that happens up to `now`, which is included.
    pub fn run_until(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        while let Some(next) = self.next() {
            if next > now {
                return;
            }
            if let Some(flight) = self.flight {
                self.complete(&flight, next, out);
            }
            self.begin(next, out);
        }
    }

    /// When something happens next by itself: steps under way end, or, if there are none, a transfer does.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        match &self.flight {
            Some(flight) => Some(self.end(flight, flight.steps)),
            None => self.receiving.iter().map(|at| at.at).min(),
        }
    }

    /// Something changed at `now`: the next step looks at it, and it begins now if none is under way.
    fn hurry(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        let steps = self.steps_begun(now);
        match &mut self.flight {
            Some(flight) => flight.steps = steps,
            None => self.begin(now, out),
        }
    }

    /// When the step ends that is under way at `now`; none while the engine is idle.
    pub(crate) fn step_end(&self, now: Nanos) -> Option<Nanos> {
        self.flight.map(|flight| self.end(&flight, self.steps_begun(now)))
    }

    /// Steps under way that have begun by `now`.
    pub(crate) fn steps_begun(&self, now: Nanos) -> u64 {
        let Some(flight) = self.flight else { return 0 };
        let is_under_way = |steps: &u64| self.end(&flight, *steps) > now;
        (1..flight.steps).find(is_under_way).unwrap_or(flight.steps)
    }

    /// Blocks that the next request may take.
    pub(crate) fn room(&self) -> usize {
        self.pool.free_len() - self.reserved
    }

    fn end(&self, flight: &Flight, steps: u64) -> Nanos {
        flight.begin + self.options.model.steps_nanos(&flight.first, steps)
    }

    /// Begins a step, if there is something to do.
    fn begin(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        let (mut load, mut changes) = (StepLoad::default(), Vec::new());
        let mut budget = self.options.step_tokens_max;
        let mut running = std::mem::take(&mut self.running);
        running.extend(self.received(now, &mut changes));
        for run in &mut running {
            self.schedule(run, &mut budget, &mut load, &mut changes);
        }
        while budget > 0 && running.len() + self.receiving.len() < self.options.running_max {
            let Some((mut run, terms)) = self.admit() else { break };
            let missing = run.job.prompt_tokens - 1 - run.computed;
            if let Some(transfer) = terms.transfer.filter(|_| missing > 0) {
                let tokens = run.job.prompt_tokens - 1;
                self.allocate(&mut run, tokens, &mut changes);
                self.receiving.push(Receiving { at: now + transfer.nanos(missing), run });
                continue;
            }
            self.schedule(&mut run, &mut budget, &mut load, &mut changes);
            running.push(run);
        }
        let is_quiet = load.prefill_tokens == 0 && self.receiving.is_empty() && !self.is_stepping;
        let further = running.iter().map(|run| run.quiet_steps(self.options.block_size)).min();
        let steps = 1 + if is_quiet { further.unwrap_or(0) } else { 0 } as u64;
        self.flight = (!running.is_empty()).then_some(Flight { begin: now, first: load, steps });
        self.running = running;
        if !changes.is_empty() {
            out.push(Timed { at: now, event: Event::Cache(changes) });
        }
    }

    /// The requests whose transfers have ended. Their blocks are cached now.
    fn received(&mut self, now: Nanos, changes: &mut Vec<CacheChange>) -> Vec<Run<J>> {
        let mut received = Vec::new();
        for Receiving { at, mut run } in std::mem::take(&mut self.receiving) {
            if at > now {
                self.receiving.push(Receiving { at, run });
                continue;
            }
            let tokens = run.job.prompt_tokens - 1 - run.computed;
            self.fill(&mut run, tokens, changes);
            received.push(run);
        }
        received
    }

    /// Gives a request its share of the step.
    fn schedule(
        &mut self,
        run: &mut Run<J>,
        budget: &mut usize,
        load: &mut StepLoad,
        changes: &mut Vec<CacheChange>,
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
        let all = run.computed + tokens;
        self.allocate(run, all, changes);
        self.fill(run, tokens, changes);
    }

    /// Ends the steps under way.
    fn complete(&mut self, flight: &Flight, end: Nanos, out: &mut Vec<Timed>) {
        let further = flight.steps - 1;
        let StepLoad { prefill_tokens, decode_sequences, .. } = flight.first;
        self.computed_tokens += prefill_tokens + decode_sequences * flight.steps;
        for mut run in std::mem::take(&mut self.running) {
            run.computed += further as usize;
            if run.is_cancelled {
                self.drop_blocks(&run);
                continue;
            }
            let is_first = run.out == 0;
            run.out = (run.computed + 1).saturating_sub(run.job.prompt_tokens);
            if is_first && run.out > 0 {
                out.push(Timed { at: end, event: Event::FirstToken(run.id) });
            }
            if run.computed < run.job.total_tokens() {
                self.running.push(run);
                continue;
            }
            let event = Event::Finished { id: run.id, hit_tokens: run.hit_tokens };
            out.push(Timed { at: end, event });
            if run.is_held {
                self.held.insert(run.id, run.blocks);
            } else {
                self.drop_blocks(&run);
            }
        }
    }

    /// Releases the blocks of a request, and what it has reserved. Tail first, so that its prefix is evicted last.
    fn drop_blocks(&mut self, run: &Run<J>) {
        self.reserved -= run.reserved;
        run.blocks.iter().rev().for_each(|&id| self.pool.release(id));
    }

    /// What a request finds now.
    pub(crate) fn fit(&self, job: &Job) -> Fit {
        // The last token is always computed.
        let most = (job.prompt_tokens - 1) / self.options.block_size;
        let total = job.total_tokens().div_ceil(self.options.block_size);
        let (mut hit_blocks, mut free_hits) = (0, 0);
        for &name in job.names.iter().take(most) {
            let Some(id) = self.pool.lookup(CacheKey { group: MAIN_GROUP, name }) else { break };
            hit_blocks += 1;
            free_hits += usize::from(self.pool.is_free(id));
        }
        let needed = total - hit_blocks;
        Fit { hit_blocks, needed, taken: needed + free_hits }
    }

    /// Admits the first waiting request, with the blocks it finds cached, if there is room for it.
    fn admit(&mut self) -> Option<(Run<J>, Terms)> {
        let Fit { hit_blocks, needed, taken } = self.fit(&self.waiting.front()?.job);
        if self.room() < taken {
            return None;
        }
        let Waiting { id, job, terms } = self.waiting.pop_front()?;
        let names = job.names.iter().take(hit_blocks);
        let blocks: Vec<_> = names
            .filter_map(|&name| self.pool.lookup(CacheKey { group: MAIN_GROUP, name }))
            .collect();
        blocks.iter().for_each(|&block| self.pool.acquire(block));
        self.reserved += needed;
        let hit_tokens = hit_blocks * self.options.block_size;
        let run = Run {
            id,
            job,
            is_held: terms.is_held,
            is_cancelled: false,
            computed: hit_tokens,
            out: 0,
            hit_tokens,
            blocks,
            reserved: needed,
            taken,
        };
        Some((run, terms))
    }

    /// Takes blocks for the first `tokens` tokens of a request, as far as it has none. That may evict others.
    fn allocate(&mut self, run: &mut Run<J>, tokens: usize, changes: &mut Vec<CacheChange>) {
        for _ in run.blocks.len()..tokens.div_ceil(self.options.block_size) {
            let (id, evicted) = self.pool.allocate().expect("blocks were reserved at admission");
            (run.reserved, self.reserved) = (run.reserved - 1, self.reserved - 1);
            run.blocks.push(id);
            if let Some(key) = evicted {
                let remaining = self.pool.copies(key);
                changes.push(CacheChange::Removed { name: key.name, remaining });
            }
        }
    }

    /// Puts the keys and values of the next `tokens` tokens of a request into its blocks, and caches those that become
    /// complete.
    fn fill(&mut self, run: &mut Run<J>, tokens: usize, changes: &mut Vec<CacheChange>) {
        let block_size = self.options.block_size;
        let first = run.computed / block_size;
        run.computed += tokens;
        let complete = run.computed / block_size;
        let filled = run.blocks.iter().zip(&run.job.names).take(complete).skip(first);
        let mut names = Vec::with_capacity(complete - first);
        for (&id, &name) in filled {
            self.pool.cache(id, CacheKey { group: MAIN_GROUP, name });
            names.push(name);
        }
        if !names.is_empty() {
            let parent = first.checked_sub(1).and_then(|at| run.job.names.get(at)).copied();
            changes.push(CacheChange::Stored { id: run.id, first, names, parent });
        }
    }
}

// === impl Run ===

impl<J: Deref<Target = Job>> Run<J> {
    /// Further steps after the one under way in which it takes no block, completes none and does not end before the
    /// last.
    fn quiet_steps(&self, block_size: usize) -> usize {
        let inside = self.computed % block_size;
        let to_boundary = if inside == 0 { 0 } else { block_size - 1 - inside };
        to_boundary.min(self.job.total_tokens() - self.computed)
    }
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod machine_test;
