//! Assigns chains to workers: chains of 64, 80, .. 512 blocks, in events of 16 blocks that name their parent. Workers
//! send one event each in turn.

use super::content::{Content, Script, Span};
use crate::random::Random;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Blocks per event.
pub(crate) const EVENT_BLOCKS: u32 = 16;
/// Number of workers per chain in `shared8`.
const SHARED_BY: usize = 8;
/// Number of prompts that all workers have in `prefix64`.
const PROMPTS: usize = 16;
/// Blocks per shared prompt.
pub(crate) const PROMPT_BLOCKS: usize = 256;
/// Number of different lengths of chains.
const LENGTHS: usize = 29;
const LENGTH_MIN: usize = 64;

/// How the fleet shares blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Each chain is on one worker.
    Distinct,
    /// Each chain is on 8 random workers.
    Shared8,
    /// All workers have 16 prompts of 256 blocks; each chain is a private tail of one of them.
    Prefix64,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Distinct, Self::Shared8, Self::Prefix64];

    /// Name on the command line.
    pub(crate) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// One chain of blocks, from the root.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    pub(crate) prompt: Option<Span>,
    pub(crate) own: Span,
    pub(crate) workers: Vec<u32>,
}

impl Chain {
    pub(crate) fn len(&self) -> usize {
        self.prompt.map_or(0, |prompt| prompt.len as usize) + self.own.len as usize
    }
}

/// Blocks that one worker stores together: a prompt, or a chain's own blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) blocks: Span,
    /// The worker's preceding piece.
    pub(crate) after: Option<usize>,
}

/// All stored chains.
#[derive(Debug)]
pub(crate) struct Fleet {
    pub(crate) kind: Kind,
    pub(crate) content: Content,
    pub(crate) chains: Vec<Chain>,
    /// Pieces of each worker, in the order of storing.
    pub(crate) pieces: Vec<Vec<Piece>>,
    pub(crate) pairs: usize,
}

impl Fleet {
    /// Creates a fleet of `workers` workers with `pairs` (worker, block) pairs, rounded down to a multiple of 16.
    pub(crate) fn new(kind: Kind, workers: usize, pairs: usize, seed: u64) -> Self {
        let copies = if kind == Kind::Shared8 { SHARED_BY.min(workers) } else { 1 };
        let mut fleet = Self {
            kind,
            content: Content::new(seed, pairs / copies),
            chains: Vec::new(),
            pieces: vec![Vec::new(); workers],
            pairs: 0,
        };
        let mut random = Random::new(seed);
        let mut prompts = Vec::new();
        if kind == Kind::Prefix64 {
            prompts.extend((0..PROMPTS).map(|_| fleet.content.add(None, PROMPT_BLOCKS)));
            fleet.store_prompts(&prompts);
        }
        let mut number = 0;
        loop {
            let room = pairs.saturating_sub(fleet.pairs) / copies;
            let len = (LENGTH_MIN + 16 * (number % LENGTHS)).min(room) / 16 * 16;
            if len == 0 {
                break;
            }
            let holders = match copies {
                1 => vec![(number % workers) as u32],
                _ => random.distinct(copies, workers),
            };
            // Workers take the prompts in turn, each starting with a different one.
            let turn = number / workers + number;
            let prompt = (!prompts.is_empty()).then(|| turn % prompts.len());
            fleet.add_chain(prompt.map(|at| (at, prompts[at])), len, holders);
            number += 1;
        }
        fleet
    }

    fn store_prompts(&mut self, prompts: &[Span]) {
        for pieces in &mut self.pieces {
            for &blocks in prompts {
                self.pairs += blocks.len as usize;
                pieces.push(Piece { blocks, after: None });
            }
        }
    }

    fn add_chain(&mut self, prompt: Option<(usize, Span)>, len: usize, workers: Vec<u32>) {
        let own = self.content.add(prompt.map(|(_, span)| span.last()), len);
        for &worker in &workers {
            // The prompts are the first pieces of each worker.
            let after = prompt.map(|(at, _)| at);
            self.pieces[worker as usize].push(Piece { blocks: own, after });
        }
        self.pairs += len * workers.len();
        self.chains.push(Chain { prompt: prompt.map(|(_, span)| span), own, workers });
    }

    /// Fills `content` with different blocks in the same chains.
    pub(crate) fn refill(&self, content: &mut Content, seed: u64) {
        content.clear(seed);
        let prompts = self.pieces.first().into_iter().flatten();
        for prompt in prompts.take(if self.kind == Kind::Prefix64 { PROMPTS } else { 0 }) {
            content.add(None, prompt.blocks.len as usize);
        }
        for chain in &self.chains {
            let span = content.add(chain.prompt.map(Span::last), chain.own.len as usize);
            assert_eq!(span, chain.own, "the same places");
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.pieces.len()
    }

    /// The events that store all blocks of the fleet.
    pub(crate) fn stores(&self) -> Script {
        let queues: Vec<_> = self.pieces.iter().map(|pieces| worker_events(pieces)).collect();
        let mut script = Script::default();
        in_turn(queues, |worker, (parent, blocks)| script.store(worker, parent, blocks));
        script
    }
}

/// The events of one worker: (parent, blocks).
fn worker_events(pieces: &[Piece]) -> Vec<(Option<u32>, Span)> {
    let mut events = Vec::new();
    for piece in pieces {
        let mut parent = piece.after.map(|at| pieces[at].blocks.last());
        for blocks in events_of(piece.blocks) {
            events.push((parent, blocks));
            parent = Some(blocks.last());
        }
    }
    events
}

/// The events of a span.
pub(crate) fn events_of(span: Span) -> impl DoubleEndedIterator<Item = Span> {
    (0..span.len.div_ceil(EVENT_BLOCKS)).map(move |event| {
        let start = span.start + event * EVENT_BLOCKS;
        Span { start, len: EVENT_BLOCKS.min(span.end() - start) }
    })
}

/// Takes one item of each worker in turn until all are taken.
pub(crate) fn in_turn<T>(queues: Vec<Vec<T>>, mut take: impl FnMut(u32, T)) {
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    loop {
        let mut any = false;
        for (worker, queue) in queues.iter_mut().enumerate() {
            if let Some(item) = queue.next() {
                take(worker as u32, item);
                any = true;
            }
        }
        if !any {
            return;
        }
    }
}
