//! Requests by the names of their blocks: no token is made or hashed while a run goes on.

use crate::engine::scheduler::block_names;
pub use crate::engine::timed::Job;
use crate::engine::timed::model::{Nanos, SECOND};
use crate::workload::Conversations;
use crate::workload::trace::{Entry, HASH_ID_TOKENS, Trace};
use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the names of blocks that answers fill.
const ANSWER_NAMES: u64 = 1 << 63;
/// Gap that the last tick of a trace is taken to have, in milliseconds.
const LAST_TICK_MILLIS: u64 = 3_000;

/// The first `count` requests of the generated workload of a seed.
#[must_use]
pub fn generated(seed: u64, count: usize, block_size: usize) -> Vec<Job> {
    let mut workload = Conversations::new(seed);
    let job = |_| {
        let turn = workload.next_turn();
        let request = workload.request(&turn);
        let (prompt_tokens, answer_tokens) = (request.prompt.len(), request.answer.len().max(1));
        let mut tokens = request.prompt;
        tokens.extend(request.answer.iter().take(answer_tokens - 1));
        Job {
            arrival: nanos(request.arrival.as_secs_f64()),
            prompt_tokens,
            answer_tokens,
            names: block_names(&tokens, block_size, 0),
        }
    };
    (0..count).map(job).collect()
}

/// Reads a trace.
///
/// # Errors
/// If the file cannot be read, it is empty, or a line is malformed or has an earlier time than the line before.
pub fn read_trace(path: &Path) -> Result<Vec<Entry>> {
    let mut trace = Trace::open(path, 0)?;
    let mut entries: Vec<Entry> = Vec::new();
    while let Some(entry) = trace.next_entry() {
        let entry = entry.with_context(|| path.display().to_string())?;
        let is_later = entries.last().is_none_or(|last| last.timestamp <= entry.timestamp);
        let (path, number) = (path.display(), entries.len() + 1);
        ensure!(is_later, "{path}: request {number} has an earlier timestamp than the one before");
        entries.push(entry);
    }
    ensure!(!entries.is_empty(), "{} has no requests", path.display());
    Ok(entries)
}

/// A window of `count` requests of a trace, from a place that the seed picks. Requests of one tick of the trace arrive
/// at random times before the next tick, as those of a Poisson process do.
#[must_use]
pub fn window(lines: &[Entry], seed: u64, count: usize, block_size: usize) -> Vec<Job> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = count.min(lines.len());
    let first = rng.random_range(0..=lines.len() - count);
    let mut jobs = Vec::with_capacity(count);
    let rest = lines.get(first..).unwrap_or_default();
    let begin = rest.first().map_or(0, |line| line.timestamp);
    for (number, line) in rest.iter().take(count).enumerate() {
        let after = rest.iter().skip(number).find(|other| other.timestamp > line.timestamp);
        let tick = after.map_or(LAST_TICK_MILLIS, |next| next.timestamp - line.timestamp);
        let millis = (line.timestamp - begin) as f64 + tick as f64 * rng.random::<f64>();
        let names = names(line, block_size, (first + number) as u64);
        jobs.push(Job {
            arrival: nanos(millis / 1e3),
            prompt_tokens: line.input_length,
            answer_tokens: line.output_length.max(1),
            names,
        });
    }
    jobs.sort_by_key(|job| job.arrival);
    jobs
}

/// The same requests, arriving `factor` times as fast.
#[must_use]
pub fn faster(jobs: &[Job], factor: f64) -> Vec<Nanos> {
    jobs.iter().map(|job| (job.arrival as f64 / factor) as Nanos).collect()
}

fn nanos(secs: f64) -> Nanos {
    (secs * SECOND as f64) as Nanos
}

/// Names of the whole blocks of a request; those that its answer fills are its own.
fn names(entry: &Entry, block_size: usize, number: u64) -> Vec<u64> {
    let total = entry.input_length + entry.output_length.max(1) - 1;
    let mut parent = 0;
    let name = |block: usize| {
        // The end decides: a block that the prompt does not fill has a part of the answer.
        let end = (block + 1) * block_size;
        let (id, seed) = match entry.hash_ids.get((end - 1) / HASH_ID_TOKENS) {
            Some(&id) if end <= entry.input_length => (id, 0),
            _ => (number, ANSWER_NAMES),
        };
        let place = (block * block_size % HASH_ID_TOKENS) as u64;
        let parts = [parent, id, place].map(u64::to_le_bytes);
        parent = xxh3_64_with_seed(parts.as_flattened(), seed);
        parent
    };
    (0..total / block_size).map(name).collect()
}

#[cfg(test)]
#[path = "job_test.rs"]
mod job_test;
