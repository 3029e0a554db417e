//! Requests in terms of block names: a run makes and hashes no tokens.

use crate::engine::scheduler::block_names;
use crate::engine::timed::{Job, Nanos, SECOND};
use crate::workload::Conversations;
use crate::workload::synthetic::{self, Sketch};
use crate::workload::trace::{Entry, Trace};
use anyhow::{Context, Result, ensure};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Seed of the names of blocks filled by answers.
const ANSWER_NAMES: u64 = 1 << 63;
/// Assumed gap after the last tick of a trace, in milliseconds.
const LAST_TICK_MILLIS: u64 = 3_000;

/// A source of requests.
#[derive(Debug, Clone, PartialEq)]
pub enum Source {
    /// Generated conversations.
    Conversations,
    /// Generated requests about one document.
    Document,
    /// Generated agents, and plain requests.
    Agents,
    /// Generated requests with some shared prefixes.
    Prefixes,
    /// Generated sessions, one request at a time.
    Paced,
    /// A trace: its name and entries.
    Trace(String, Vec<Entry>),
}

// === impl Source ===

impl Source {
    /// Reads a trace from a file. If the trace has several models, one must be named.
    ///
    /// # Errors
    /// If the file cannot be read, a line is malformed, block sizes differ, or no request remains.
    pub fn trace(path: &Path, model: Option<&str>) -> Result<Self> {
        let mut entries = read_trace(path)?;
        // Recorders write a request when it has ended.
        entries.sort_by_key(|entry| entry.timestamp);
        if let Some(model) = model {
            entries.retain(|entry| entry.model.as_deref() == Some(model));
        }
        let name = path.display().to_string();
        ensure!(
            !entries.is_empty(),
            "{name} has no requests{}",
            model.map_or("", |_| " of the model")
        );
        let models: BTreeSet<_> = entries.iter().filter_map(|at| at.model.as_deref()).collect();
        ensure!(models.len() < 2, "{name} has several models: name one with --model of {models:?}");
        let sizes: BTreeSet<_> = entries.iter().map(Entry::id_tokens).collect();
        ensure!(sizes.len() < 2, "{name} has blocks of several sizes: {sizes:?}");
        let name =
            path.file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned());
        Ok(Self::Trace(name, entries))
    }

    /// `count` requests of a seed, in the order of arrival; a trace may have fewer.
    #[must_use]
    pub fn jobs(&self, seed: u64, count: usize, block_size: usize) -> Vec<Job> {
        match self {
            Self::Conversations => generated(seed, count, block_size),
            Self::Document => sketched(synthetic::documents(seed, count), block_size),
            Self::Agents => sketched(synthetic::agents(seed, count), block_size),
            Self::Prefixes => sketched(synthetic::prefixes(seed, count), block_size),
            Self::Paced => sketched(synthetic::paced(seed, count), block_size),
            Self::Trace(_, lines) => window(lines, seed, count, block_size),
        }
    }

    /// Tokens per hash id, which an engine's block size must divide; none if any block size is valid.
    #[must_use]
    pub fn id_tokens(&self) -> Option<usize> {
        match self {
            Self::Trace(_, lines) => lines.first().map(Entry::id_tokens),
            _ => None,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Conversations => "conversations",
            Self::Document => "document",
            Self::Agents => "agents",
            Self::Prefixes => "prefixes",
            Self::Paced => "paced",
            Self::Trace(name, _) => name,
        })
    }
}

fn sketched(sketches: Vec<Sketch>, block_size: usize) -> Vec<Job> {
    let job = |at: Sketch| Job {
        arrival: nanos(at.arrival.as_secs_f64()),
        prompt_tokens: at.prompt_tokens,
        answer_tokens: at.answer_tokens,
        names: text_names(&at.text, at.prompt_tokens + at.answer_tokens - 1, block_size),
    };
    sketches.into_iter().map(job).collect()
}

/// Names of the complete blocks of a text of `tokens` tokens, given as streams.
fn text_names(text: &[(u64, usize)], tokens: usize, block_size: usize) -> Vec<u64> {
    let mut parent = 0;
    let mut piece = 0;
    let name = |block: usize| {
        let begin = block * block_size;
        let end = (block + 1) * block_size;
        while text.get(piece + 1).is_some_and(|next| next.1 <= begin) {
            piece += 1;
        }
        let within = text.get(piece..).unwrap_or_default().iter();
        for &(stream, start) in within.take_while(|at| at.1 < end) {
            let parts = [parent, stream, start.max(begin) as u64].map(u64::to_le_bytes);
            parent = xxh3_64_with_seed(parts.as_flattened(), 0);
        }
        parent
    };
    (0..tokens / block_size).map(name).collect()
}

/// The first `count` requests of the workload that the seed generates.
#[must_use]
pub fn generated(seed: u64, count: usize, block_size: usize) -> Vec<Job> {
    let mut workload = Conversations::new(seed);
    let job = |_| {
        let turn = workload.next_turn();
        let request = workload.request(&turn);
        let prompt_tokens = request.prompt.len();
        let answer_tokens = request.answer.len().max(1);
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

/// Reads the entries of a trace.
///
/// # Errors
/// If the file cannot be read or is empty, or a line is malformed.
fn read_trace(path: &Path) -> Result<Vec<Entry>> {
    let mut trace = Trace::open(path, 0)?;
    let mut entries: Vec<Entry> = Vec::new();
    while let Some(entry) = trace.next_entry() {
        let entry = entry.with_context(|| path.display().to_string())?;
        entries.push(entry);
    }
    ensure!(!entries.is_empty(), "{} has no requests", path.display());
    Ok(entries)
}

/// A window of `count` requests of a trace, at a position chosen by the seed. Requests with equal times arrive at
/// random times before the next one, like those of a Poisson process.
#[must_use]
pub fn window(lines: &[Entry], seed: u64, count: usize, block_size: usize) -> Vec<Job> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let count = count.min(lines.len());
    let first = rng.random_range(0..=lines.len() - count);
    let mut jobs = Vec::with_capacity(count);
    let rest = lines.get(first..).unwrap_or_default();
    let begin = rest.first().map_or(0, |line| line.timestamp);
    for (number, line) in rest.iter().take(count).enumerate() {
        let is_shared =
            |other: Option<&Entry>| other.is_some_and(|at| at.timestamp == line.timestamp);
        let before = number.checked_sub(1).and_then(|before| rest.get(before));
        let tick = if is_shared(before) || is_shared(rest.get(number + 1)) {
            let after = rest.iter().skip(number).find(|other| other.timestamp > line.timestamp);
            after.map_or(LAST_TICK_MILLIS, |next| next.timestamp - line.timestamp)
        } else {
            0
        };
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

/// Arrival times of the requests, `factor` times as fast.
#[must_use]
pub fn faster(jobs: &[Job], factor: f64) -> Vec<Nanos> {
    jobs.iter().map(|job| (job.arrival as f64 / factor) as Nanos).collect()
}

fn nanos(secs: f64) -> Nanos {
    (secs * SECOND as f64) as Nanos
}

/// Names of the complete blocks of a request. Blocks that its answer fills are unique to it.
fn names(entry: &Entry, block_size: usize, number: u64) -> Vec<u64> {
    let total = entry.input_length + entry.output_length.max(1) - 1;
    let id_tokens = entry.id_tokens();
    let mut parent = 0;
    let name = |block: usize| {
        // The block's end decides: a block that the prompt does not fill contains a part of the answer.
        let end = (block + 1) * block_size;
        let (id, seed) = match entry.hash_ids.get((end - 1) / id_tokens) {
            Some(&id) if end <= entry.input_length => (id, 0),
            _ => (number, ANSWER_NAMES),
        };
        let place = (block * block_size % id_tokens) as u64;
        let parts = [parent, id, place].map(u64::to_le_bytes);
        parent = xxh3_64_with_seed(parts.as_flattened(), seed);
        parent
    };
    (0..total / block_size).map(name).collect()
}

#[cfg(test)]
#[path = "job_test.rs"]
mod job_test;
