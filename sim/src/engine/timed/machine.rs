//! A mock engine with step times, as a pure state machine: requests and times in, timed events out. No clock, no
//! tokens, no I/O.
//!
//! It behaves like [`Scheduler`](crate::engine::scheduler::Scheduler), with the same admission rules over the same
//! [`BlockPool`](crate::engine::pool::BlockPool). But a request in its decode gets one token per step, and a step takes
//! time. As in vLLM's scheduler, blocks are allocated, evicted, cached and announced when a step begins. First tokens
//! are sent and requests end when a step ends.
//!
//! A request whose prompt another engine has computed gets its blocks when it is admitted. They are cached and
//! announced at the first step that begins after the transfer. The request computes the last token of its prompt
//! itself. Blocks that another engine will fetch stay in use after the request's end, until they are released.
//!
//! A request with blocks to fetch from other engines gets room for them when it is admitted, and waits for them while
//! other requests run. The blocks arrive in host memory; the step that begins with them moves them to device memory.
//! The request computes the rest.
//!
//! With host memory or a disk, complete blocks are also written there. Blocks that device memory has evicted are
//! fetched from there: the time is added to the step that begins with them.
//!
//! While all running requests decode inside their blocks, there are no decisions to make: such steps are taken
//! together. A request that arrives meanwhile ends this at the end of the current step.

use super::cache::{Cache, Fit};
use super::event::{CacheChange, Event, Timed};
use super::job::{Job, Terms};
use super::model::{EngineOptions, Nanos, StepLoad};
use super::run::{Receiving, Run, Waiting};
use crate::engine::pool::BlockId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

/// A run of equal steps in progress.
#[derive(Debug, Clone, Copy)]
struct Flight {
    begin: Nanos,
    first: StepLoad,
    steps: u64,
}

/// The state machine of one engine. `J` is how it refers to a [`Job`].
#[derive(Debug)]
pub struct Engine<J> {
    pub(crate) options: EngineOptions,
    cache: Cache,
    pub(crate) waiting: VecDeque<Waiting<J>>,
    pub(crate) running: Vec<Run<J>>,
    receiving: Vec<Receiving<J>>,
    /// Blocks of ended requests that other engines will fetch.
    held: BTreeMap<usize, Vec<BlockId>>,
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
            cache: Cache::new(&options),
            waiting: VecDeque::new(),
            running: Vec::new(),
            receiving: Vec::new(),
            held: BTreeMap::new(),
            flight: None,
            computed_tokens: 0,
            is_stepping: false,
        }
    }

    /// Takes each step separately: slower, with equal results.
    #[must_use]
    pub fn stepping(self) -> Self {
        Self { is_stepping: true, ..self }
    }

    /// Checks the pool and the reservations.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub fn validate(&self) {
        let receiving = self.receiving.iter().map(|at| &at.run);
        let reserved: usize = self.running.iter().chain(receiving).map(|run| run.reserved).sum();
        self.cache.validate(reserved);
    }

    /// Whether the request fits into the engine's pool.
    #[must_use]
    pub fn can_hold(&self, job: &Job) -> bool {
        job.total_tokens().div_ceil(self.options.block_size) <= self.options.capacity_blocks
    }

    /// Number of tokens computed so far: prompt tokens without hits, and answer tokens.
    #[must_use]
    pub fn computed_tokens(&self) -> u64 {
        self.computed_tokens
    }

    /// Number of waiting and running requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.waiting() + self.running()
    }

    /// Number of requests that wait for room or for a transfer, as vLLM counts them.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len() + self.receiving.len()
    }

    /// Number of running requests.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Number of blocks in use, including blocks kept for other engines.
    #[must_use]
    pub fn used_blocks(&self) -> usize {
        self.cache.used_blocks()
    }

    /// Names cached in device memory, with their numbers of physical copies.
    #[must_use]
    pub fn contents(&self) -> BTreeMap<u64, u32> {
        self.cache.contents()
    }

    /// Running requests, with the number of answer tokens sent when the last step ended.
    pub fn progress(&self) -> impl Iterator<Item = (usize, usize)> {
        self.running.iter().map(|run| (run.id, run.out))
    }

    /// Whether device memory has a block.
    #[must_use]
    pub fn holds(&self, name: u64) -> bool {
        self.cache.lookup(name).is_some()
    }

    /// Whether any tier has a block.
    #[must_use]
    pub fn keeps(&self, name: u64) -> bool {
        self.cache.keeps(name)
    }

    /// Queues a request that the engine [can hold](Self::can_hold). All events up to `now` must be done.
    pub fn submit(&mut self, id: usize, job: J, now: Nanos, out: &mut Vec<Timed>) {
        self.submit_with(id, job, Terms::default(), now, out);
    }

    /// Like [`submit`](Self::submit), with terms. The id must differ from the ids of all active and kept requests.
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

    /// Cancels a request: immediately while it waits, at the end of the current step while it runs. Its computed blocks
    /// stay cached. The request causes no further events. All events up to `now` must be done.
    pub fn cancel(&mut self, id: usize, now: Nanos, out: &mut Vec<Timed>) {
        self.waiting.retain(|waiting| waiting.id != id);
        if let Some(at) = self.receiving.iter().position(|at| at.run.id == id) {
            let Receiving { run, .. } = self.receiving.remove(at);
            self.cache.drop_run(&run);
        }
        for run in self.running.iter_mut().filter(|run| run.id == id) {
            run.is_cancelled = true;
        }
        self.hurry(now, out);
    }

    /// Blocks of an ended request that are kept for another engine.
    #[must_use]
    pub fn held(&self, id: usize) -> Option<&[BlockId]> {
        self.held.get(&id).map(Vec::as_slice)
    }

    /// Releases the kept blocks of an ended request, which stay cached. Returns false if no blocks are kept.
    pub fn release(&mut self, id: usize, now: Nanos, out: &mut Vec<Timed>) -> bool {
        let Some(blocks) = self.held.remove(&id) else { return false };
        self.cache.release(&blocks);
        self.hurry(now, out);
        true
    }

    /// Empties the prefix cache in all tiers. Returns false, without effect, while blocks are in use.
    pub fn reset(&mut self) -> bool {
        self.cache.reset()
    }

    /// Advances to `now`, inclusive.
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

    /// Time of the next event without input: the end of the current steps or, without any, of a transfer.
    #[must_use]
    pub fn next(&self) -> Option<Nanos> {
        match &self.flight {
            Some(flight) => Some(self.end(flight, flight.steps)),
            None => self.receiving.iter().map(|at| at.at).min(),
        }
    }

    /// Reacts to a change at `now`: the next step considers it, and begins now if no step is in progress.
    fn hurry(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        let steps = self.steps_begun(now);
        match &mut self.flight {
            Some(flight) => flight.steps = steps,
            None => self.begin(now, out),
        }
    }

    /// Time from `now` to the end of the current step; 0 while the engine is idle. All events up to `now` must be done.
    #[must_use]
    pub fn residual(&self, now: Nanos) -> Nanos {
        self.step_end(now).map_or(0, |end| end.saturating_sub(now))
    }

    /// End of the step in progress at `now`; none while the engine is idle.
    pub(crate) fn step_end(&self, now: Nanos) -> Option<Nanos> {
        self.flight.map(|flight| self.end(&flight, self.steps_begun(now)))
    }

    /// Number of current steps that have begun by `now`.
    pub(crate) fn steps_begun(&self, now: Nanos) -> u64 {
        let Some(flight) = self.flight else { return 0 };
        let is_under_way = |steps: &u64| self.end(&flight, *steps) > now;
        (1..flight.steps).find(is_under_way).unwrap_or(flight.steps)
    }

    /// Number of blocks that the next request may take.
    pub(crate) fn room(&self) -> usize {
        self.cache.room()
    }

    fn end(&self, flight: &Flight, steps: u64) -> Nanos {
        flight.begin + self.options.model.steps_nanos(&flight.first, steps)
    }

    /// Begins a step, if there is work.
    fn begin(&mut self, now: Nanos, out: &mut Vec<Timed>) {
        let mut load = StepLoad::default();
        let mut changes = Vec::new();
        let mut budget = self.options.step_tokens_max;
        let mut running = std::mem::take(&mut self.running);
        running.extend(self.received(now, &mut load, &mut changes));
        for run in &mut running {
            self.schedule(run, &mut budget, &mut load, &mut changes);
        }
        while budget > 0 && running.len() + self.receiving.len() < self.options.running_max {
            let Some(mut run) = self.admit(now, &mut load, &mut changes) else { break };
            if let Some(at) = run.fetched_at() {
                let tokens = run.fetched_tokens();
                self.cache.allocate(&mut run, tokens, &mut changes);
                if at > now {
                    self.receiving.push(Receiving { at, run });
                    continue;
                }
                self.receive_fetched(&mut run, &mut load, &mut changes);
            }
            let missing = run.job.prompt_tokens - 1 - run.computed;
            if let Some(transfer) = run.terms.transfer.filter(|_| missing > 0) {
                let tokens = run.job.prompt_tokens - 1;
                self.cache.allocate(&mut run, tokens, &mut changes);
                self.receiving.push(Receiving { at: now + transfer.nanos(missing), run });
                continue;
            }
            self.schedule(&mut run, &mut budget, &mut load, &mut changes);
            running.push(run);
        }
        let fetched = load.host_tokens + load.disk_tokens;
        let is_still = load.prefill_tokens + fetched == 0;
        let is_quiet = is_still && self.receiving.is_empty() && !self.is_stepping;
        let further = running.iter().map(|run| run.quiet_steps(self.options.block_size)).min();
        let steps = 1 + if is_quiet { further.unwrap_or(0) } else { 0 } as u64;
        self.flight = (!running.is_empty()).then_some(Flight { begin: now, first: load, steps });
        self.running = running;
        if !changes.is_empty() {
            out.push(Timed { at: now, event: Event::Cache(changes) });
        }
    }

    /// Requests whose transfers have ended. Their blocks are cached now.
    fn received(
        &mut self,
        now: Nanos,
        load: &mut StepLoad,
        changes: &mut Vec<CacheChange>,
    ) -> Vec<Run<J>> {
        let mut received = Vec::new();
        for Receiving { at, mut run } in std::mem::take(&mut self.receiving) {
            if at > now {
                self.receiving.push(Receiving { at, run });
                continue;
            }
            if run.terms.transfer.is_some() {
                let tokens = run.job.prompt_tokens - 1 - run.computed;
                self.cache.fill(&mut run, tokens, changes);
            } else {
                self.receive_fetched(&mut run, load, changes);
            }
            run.begun = now;
            received.push(run);
        }
        received
    }

    /// Handles blocks from other engines that have arrived.
    fn receive_fetched(
        &mut self,
        run: &mut Run<J>,
        load: &mut StepLoad,
        changes: &mut Vec<CacheChange>,
    ) {
        let tokens = run.fetched_tokens().saturating_sub(run.computed);
        load.host_tokens += tokens as u64;
        run.hit_tokens += tokens;
        self.cache.fill(run, tokens, changes);
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
        self.cache.allocate(run, all, changes);
        self.cache.fill(run, tokens, changes);
    }

    /// Ends the current steps.
    fn complete(&mut self, flight: &Flight, end: Nanos, out: &mut Vec<Timed>) {
        let further = flight.steps - 1;
        let StepLoad { prefill_tokens, decode_sequences, .. } = flight.first;
        self.computed_tokens += prefill_tokens + decode_sequences * flight.steps;
        let mut changes = Vec::new();
        for mut run in std::mem::take(&mut self.running) {
            run.computed += further as usize;
            if run.is_cancelled {
                self.cache.touch(&run, &mut changes);
                self.cache.drop_run(&run);
                continue;
            }
            let is_first = run.out == 0;
            run.out = (run.computed + 1).saturating_sub(run.job.prompt_tokens);
            if is_first && run.out > 0 {
                let event = Event::FirstToken { id: run.id, begun: run.begun };
                out.push(Timed { at: end, event });
            }
            if run.computed < run.total {
                self.running.push(run);
                continue;
            }
            let event = Event::Finished { id: run.id, hit_tokens: run.hit_tokens };
            out.push(Timed { at: end, event });
            self.cache.touch(&run, &mut changes);
            if run.terms.is_held {
                self.held.insert(run.id, run.blocks);
            } else {
                self.cache.drop_run(&run);
            }
        }
        if !changes.is_empty() {
            out.push(Timed { at: end, event: Event::Cache(changes) });
        }
    }

    /// What a request would find cached now, and what it would need.
    pub(crate) fn fit(&self, job: &Job, terms: &Terms) -> Fit {
        self.cache.fit(job, terms)
    }

    /// Admits the first waiting request with its cached blocks, if there is room for it. The step that begins fetches
    /// its blocks in lower tiers.
    fn admit(
        &mut self,
        now: Nanos,
        load: &mut StepLoad,
        changes: &mut Vec<CacheChange>,
    ) -> Option<Run<J>> {
        let Waiting { job, terms, .. } = self.waiting.front()?;
        let fit = self.fit(job, terms);
        if self.room() < fit.taken {
            return None;
        }
        let mut run = self.cache.admit(self.waiting.pop_front()?, &fit, now);
        let block_size = self.options.block_size;
        load.host_tokens += (fit.fetch.host * block_size) as u64;
        load.disk_tokens += (fit.fetch.disk * block_size) as u64;
        let present = run.hit_tokens;
        self.cache.allocate(&mut run, present, changes);
        self.cache.fill(&mut run, fit.fetch.total() * block_size, changes);
        Some(run)
    }
}

#[cfg(test)]
#[path = "machine_test.rs"]
mod machine_test;
