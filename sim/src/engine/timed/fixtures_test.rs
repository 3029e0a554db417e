//! Small engines and requests whose times can be computed by hand.

use super::event::{Event, Timed};
use super::job::Job;
use super::machine::Engine;
use super::model::{EngineOptions, Nanos, StepModel};
use std::collections::BTreeMap;

/// A step takes 1,000 ns, plus 10 per prompt token, 100 per decoding sequence and 1 per token of context. Blocks have 4
/// tokens, steps at most 16 tokens; there are no lower tiers.
pub(crate) const SMALL: EngineOptions = EngineOptions {
    model: StepModel {
        step: 1_000,
        prefill_token: 10,
        decode_sequence: 100,
        context_token: 1,
        host_token: 2,
        disk_token: 5,
    },
    block_size: 4,
    capacity_blocks: 100,
    host_blocks: 0,
    state_slots: 0,
    disk_blocks: 0,
    step_tokens_max: 16,
    running_max: 4,
};

/// A request whose prompt shares its family's beginning, with an answer of its own.
pub(crate) fn job(family: u64, own: u64, prompt_tokens: usize, answer_tokens: usize) -> Job {
    let whole = prompt_tokens / SMALL.block_size;
    let blocks = (prompt_tokens + answer_tokens - 1) / SMALL.block_size;
    let name = |at: usize| match at < whole {
        true => family << 32 | at as u64,
        false => 1 << 63 | own << 32 | at as u64,
    };
    Job { arrival: 0, prompt_tokens, answer_tokens, names: (0..blocks).map(name).collect() }
}

/// All events when requests arrive at these times, until all requests have ended.
pub(crate) fn play<'a>(engine: &mut Engine<&'a Job>, jobs: &'a [(Nanos, Job)]) -> Vec<Timed> {
    let mut out = Vec::new();
    for (id, (at, job)) in jobs.iter().enumerate() {
        engine.run_until(*at, &mut out);
        engine.submit(id, job, *at, &mut out);
        engine.validate();
    }
    engine.run_until(Nanos::MAX, &mut out);
    engine.validate();
    out
}

/// For each request: the times of its first token and of its end, with its number of hit tokens.
pub(crate) fn times(out: &[Timed]) -> BTreeMap<usize, (Nanos, Nanos, usize)> {
    let mut times = BTreeMap::<usize, (Nanos, Nanos, usize)>::new();
    for Timed { at, event } in out {
        match event {
            Event::FirstToken { id, .. } => times.entry(*id).or_default().0 = *at,
            Event::Finished { id, hit_tokens } => {
                let of = times.entry(*id).or_default();
                (of.1, of.2) = (*at, *hit_tokens);
            }
            Event::Cache(_) => {}
        }
    }
    times
}
