//! Forecasts the time to the first token of a request at an engine, for the oracle policy.
//!
//! It simulates the engine's own steps by counts: the true cache, the queue and the running requests, with the engine's
//! own times. It is only a forecast: later requests hardly change the time, but evictions before the admission may.

use crate::engine::timed::{Engine, EngineOptions, Job, Nanos, StepLoad, Terms};
use std::collections::VecDeque;

/// A request, by counts.
#[derive(Debug, Clone, Copy)]
struct Sequence {
    /// Number of prompt tokens still to compute.
    prompt_left: u64,
    /// Number of tokens in the pool.
    context: u64,
    /// Number of answer tokens to come, besides the first.
    answer_left: u64,
    /// Number of tokens to fetch at admission, from host memory and from disk.
    fetch: [u64; 2],
    /// Number of blocks freed at its end.
    blocks: usize,
    is_target: bool,
}

/// An engine, by counts.
#[derive(Debug)]
struct Counts {
    options: EngineOptions,
    now: Nanos,
    room: usize,
    running: Vec<Sequence>,
    waiting: VecDeque<Sequence>,
}

/// Time from `now` to the first token if the engine gets the request now, in nanoseconds.
#[must_use]
pub fn time_to_first_token(engine: &Engine<&Job>, job: &Job, now: Nanos) -> Nanos {
    let mut counts = Counts::of(engine, job, now);
    while !counts.step() {}
    counts.now - now
}

// === impl Counts ===

impl Counts {
    fn of(engine: &Engine<&Job>, job: &Job, now: Nanos) -> Self {
        let steps_begun = engine.steps_begun(now);
        let running = engine.running.iter().map(|run| {
            let total = run.total as u64;
            let is_decoding = run.computed >= run.job.prompt_tokens;
            // `computed` already includes the first of the current steps.
            let further = if is_decoding { steps_begun.saturating_sub(1) } else { 0 };
            let context = run.computed as u64 + further;
            let prompt_left = (run.job.prompt_tokens as u64).saturating_sub(context);
            let answer_left = total - prompt_left - context;
            let blocks = run.taken;
            let fetch = [0; 2];
            Sequence { prompt_left, context, answer_left, fetch, blocks, is_target: false }
        });
        let mut queue: VecDeque<_> =
            engine.waiting.iter().map(|at| waiting(engine, at.job, &at.terms, 0)).collect();
        // Blocks computed by earlier requests are cached when this one is admitted.
        let before = engine.running.iter().map(|run| run.job);
        let before = before.chain(engine.waiting.iter().map(|at| at.job));
        let shared = before
            .map(|other| shared_blocks(job, other, engine.options.block_size))
            .max()
            .unwrap_or(0);
        let target = waiting(engine, job, &Terms::default(), shared);
        queue.push_back(Sequence { is_target: true, ..target });
        let mut counts = Self {
            options: engine.options,
            now: engine.step_end(now).unwrap_or(now),
            room: engine.room(),
            running: running.collect(),
            waiting: queue,
        };
        counts.end_finished();
        counts
    }

    /// Simulates one step, or many if requests only decode. Returns true when the target's first token is sent.
    fn step(&mut self) -> bool {
        let mut load = StepLoad::default();
        let mut budget = self.options.step_tokens_max as u64;
        for sequence in &mut self.running {
            sequence.schedule(&mut budget, &mut load);
        }
        while budget > 0 && self.running.len() < self.options.running_max {
            let Some(mut next) = self.waiting.front().copied() else { break };
            let Some(room) = self.room.checked_sub(next.blocks) else { break };
            self.waiting.pop_front();
            self.room = room;
            next.schedule(&mut budget, &mut load);
            self.running.push(next);
        }
        // Only decoding: nothing changes until a request ends.
        let is_quiet = load.prefill_tokens + load.host_tokens + load.disk_tokens == 0;
        let quiet = if !is_quiet { None } else { self.shortest_answer() };
        let further = quiet.unwrap_or(0);
        for sequence in &mut self.running {
            sequence.answer_left -= further;
            sequence.context += further;
        }
        self.now += self.options.model.steps_nanos(&load, 1 + further);
        let is_out = self.running.iter().any(|at| at.is_target && at.prompt_left == 0);
        self.end_finished();
        is_out
    }

    fn shortest_answer(&self) -> Option<u64> {
        self.running.iter().map(|at| at.answer_left).min()
    }

    fn end_finished(&mut self) {
        let Self { running, room, .. } = self;
        running.retain(|at| {
            let is_over = at.prompt_left == 0 && at.answer_left == 0;
            *room += if is_over { at.blocks } else { 0 };
            !is_over
        });
    }
}

// === impl Sequence ===

impl Sequence {
    fn schedule(&mut self, budget: &mut u64, load: &mut StepLoad) {
        let is_prefill = self.prompt_left > 0;
        let tokens = if is_prefill { self.prompt_left } else { 1 }.min(*budget);
        if tokens == 0 {
            return;
        }
        *budget -= tokens;
        load.context_tokens += self.context;
        let [host, disk] = std::mem::take(&mut self.fetch);
        load.host_tokens += host;
        load.disk_tokens += disk;
        self.context += tokens;
        if is_prefill {
            load.prefill_tokens += tokens;
            self.prompt_left -= tokens;
        } else {
            load.decode_sequences += 1;
            self.answer_left -= 1;
        }
    }
}

/// A waiting request with at least this many cached leading blocks.
fn waiting(engine: &Engine<&Job>, job: &Job, terms: &Terms, shared_blocks: usize) -> Sequence {
    let fit = engine.fit(job, terms);
    let block_size = engine.options.block_size;
    let found = fit.hit_blocks + fit.fetch.total();
    let shared = shared_blocks.saturating_sub(fit.hit_blocks);
    let cached = found.max(fit.hit_blocks + shared) * block_size;
    let context = terms.present_tokens(job, cached);
    Sequence {
        prompt_left: (job.prompt_tokens - context) as u64,
        context: context as u64,
        answer_left: (terms.total_tokens(job) - job.prompt_tokens) as u64,
        fetch: [fit.fetch.host, fit.fetch.disk].map(|blocks| (blocks * block_size) as u64),
        blocks: fit.taken - shared,
        is_target: false,
    }
}

/// Number of leading blocks that two prompts share, without the last token of the first prompt.
fn shared_blocks(job: &Job, other: &Job, block_size: usize) -> usize {
    let most = (job.prompt_tokens - 1) / block_size;
    let same = job.names.iter().take(most).zip(other.prompt_names(block_size));
    same.take_while(|(name, other)| name == other).count()
}

#[cfg(test)]
#[path = "forecast_test.rs"]
mod forecast_test;
