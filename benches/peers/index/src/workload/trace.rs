//! Plays a recorded trace through a fleet of mock engines: their events, and the queries.
//!
//! The trace is in the Mooncake form: an object per line with `input_length`, `output_length` and `hash_ids`, one id
//! for each 512 tokens of the prompt. Equal ids mean equal tokens after the same prefix. An engine keeps the blocks of
//! its last prompts and answers. It evicts least recently used blocks first, and the end of a prompt before its
//! beginning.

use super::content::{Content, Script, Span};
use super::query::Expected;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::ops::Range;
use std::path::Path;

/// Tokens per hash id.
const ID_TOKENS: usize = 512;
/// Tokens per block.
const BLOCK_TOKENS: usize = 16;
const ID_BLOCKS: usize = ID_TOKENS / BLOCK_TOKENS;
/// Capacity of one engine, in blocks.
const POOL_BLOCKS: usize = 16_384;
/// Maximum number of blocks in one event: the blocks computed in one step.
const EVENT_BLOCKS: usize = 128;
/// One request in this many goes to a random engine, the others to the engine with most of the prompt.
const STRAY_EVERY: usize = 4;

#[derive(Debug, Deserialize)]
struct Entry {
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// One request: the prompt to query, then the events of its engine.
#[derive(Debug)]
pub(crate) struct Request {
    prompt: Vec<Span>,
    pub(crate) operations: Range<usize>,
}

/// The complete trace.
#[derive(Debug)]
pub(crate) struct Trace {
    pub(crate) content: Content,
    pub(crate) script: Script,
    pub(crate) requests: Vec<Request>,
    engines: Vec<Engine>,
}

impl Trace {
    /// Plays a trace to a fleet.
    pub(crate) fn load(path: &Path, workers: usize, seed: u64) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
        let mut player = Player::new(workers, seed);
        for (line, number) in BufReader::new(file).lines().zip(1..) {
            let place = || format!("{}, line {number}", path.display());
            let entry: Entry =
                serde_json::from_str(&line.with_context(place)?).with_context(place)?;
            let covered = entry.hash_ids.len() * ID_TOKENS;
            ensure!(entry.input_length <= covered, "{}: too few hash_ids", place());
            ensure!(entry.input_length / BLOCK_TOKENS < POOL_BLOCKS, "{}: too long", place());
            player.play(&entry);
        }
        ensure!(!player.trace.requests.is_empty(), "{} is empty", path.display());
        Ok(player.trace)
    }

    /// Number of pairs in the engines at the end.
    pub(crate) fn pairs(&self) -> usize {
        self.engines.iter().map(|engine| engine.ages.len()).sum()
    }

    /// Appends the local hashes of a request's prompt to `query`.
    pub(crate) fn append<H>(&self, request: &Request, query: &mut Vec<H>, hash: impl Fn(u64) -> H) {
        let locals = request.prompt.iter().flat_map(|&span| self.content.locals(span));
        query.extend(locals.map(|&local| hash(local)));
    }

    /// Expected answer to a request's prompt at the end.
    pub(crate) fn expected(&self, request: &Request) -> Expected {
        let blocks = || request.prompt.iter().flat_map(|span| span.start..span.end());
        let leading =
            |engine: &Engine| blocks().take_while(|block| engine.ages.contains_key(block)).count();
        let scores: Vec<usize> = self.engines.iter().map(leading).filter(|&at| at > 0).collect();
        Expected {
            workers: scores.len(),
            deepest: scores.iter().copied().max().unwrap_or(0),
            sum: scores.iter().sum(),
        }
    }
}

/// An LRU cache.
#[derive(Debug, Default)]
struct Engine {
    ages: HashMap<u32, u64>,
    by_age: BTreeMap<u64, u32>,
}

impl Engine {
    /// Marks a block as used. Returns whether the block is new.
    fn touch(&mut self, block: u32, age: u64) -> bool {
        let before = self.ages.insert(block, age);
        if let Some(before) = before {
            self.by_age.remove(&before);
        }
        self.by_age.insert(age, block);
        before.is_none()
    }

    /// Evicts blocks beyond the capacity, the oldest first.
    fn evict(&mut self) -> Vec<u32> {
        let mut gone = Vec::new();
        while self.ages.len() > POOL_BLOCKS
            && let Some((_, block)) = self.by_age.pop_first()
        {
            self.ages.remove(&block);
            gone.push(block);
        }
        gone
    }
}

struct Player {
    trace: Trace,
    /// Blocks of each id.
    spans: HashMap<u64, Span>,
    /// The last engine with each id.
    seen_by: HashMap<u64, usize>,
    random: Random,
    clock: u64,
}

impl Player {
    fn new(workers: usize, seed: u64) -> Self {
        let engines = (0..workers).map(|_| Engine::default()).collect();
        let trace = Trace {
            content: Content::new(seed, 0),
            script: Script::default(),
            requests: Vec::new(),
            engines,
        };
        let spans = HashMap::new();
        let seen_by = HashMap::new();
        Self { trace, spans, seen_by, random: Random::new(seed), clock: 0 }
    }

    fn play(&mut self, entry: &Entry) {
        let worker = self.route(entry);
        let mut prompt = Vec::new();
        let mut parent = None;
        let mut left = entry.input_length / BLOCK_TOKENS;
        for id in &entry.hash_ids {
            let content = &mut self.trace.content;
            let span = *self.spans.entry(*id).or_insert_with(|| content.add(parent, ID_BLOCKS));
            let len = left.min(ID_BLOCKS);
            if len == 0 {
                break;
            }
            prompt.push(Span { start: span.start, len: len as u32 });
            left -= len;
            parent = Some(span.last());
            self.seen_by.insert(*id, worker);
        }
        let tail = prompt.last().map(|span| span.last());
        let answer = self.trace.content.add(tail, entry.output_length / BLOCK_TOKENS);
        let mut computed = prompt.clone();
        computed.extend((answer.len > 0).then_some(answer));
        let begin = self.trace.script.operations().len();
        self.compute(worker, &computed);
        let operations = begin..self.trace.script.operations().len();
        self.trace.requests.push(Request { prompt, operations });
    }

    /// The engine last seen with most of the prompt, or sometimes a random one.
    fn route(&mut self, entry: &Entry) -> usize {
        let stray = self.random.below(self.trace.engines.len());
        if self.random.below(STRAY_EVERY) == 0 {
            return stray;
        }
        let seen = entry.hash_ids.iter().skip(1).rev().find_map(|id| self.seen_by.get(id));
        seen.copied().unwrap_or(stray)
    }

    /// Makes room, then stores new blocks.
    fn compute(&mut self, worker: usize, spans: &[Span]) {
        let engine = &mut self.trace.engines[worker];
        let blocks: Vec<u32> = spans.iter().flat_map(|span| span.start..span.end()).collect();
        self.clock += blocks.len() as u64;
        // The end of a prompt is older than its beginning.
        let ages = (0..).map(|at| self.clock - at);
        let new: Vec<bool> =
            blocks.iter().zip(ages).map(|(&block, age)| engine.touch(block, age)).collect();
        for gone in engine.evict().chunks(EVENT_BLOCKS) {
            self.trace.script.remove(worker as u32, gone.iter().copied());
        }
        let mut at = 0;
        while at < blocks.len() {
            // One event: consecutive numbers, all new or all known.
            let same = |pair: &(usize, &u32)| *pair.1 == blocks[at] + pair.0 as u32;
            let run = blocks[at..].iter().enumerate().take_while(same);
            let len = run.take_while(|(offset, _)| new[at + offset] == new[at]).count();
            let len = len.min(EVENT_BLOCKS);
            if new[at] {
                let parent = at.checked_sub(1).map(|before| blocks[before]);
                let span = Span { start: blocks[at], len: len as u32 };
                self.trace.script.store(worker as u32, parent, span);
            }
            at += len;
        }
    }
}
