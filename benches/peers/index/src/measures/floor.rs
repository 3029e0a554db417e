//! Measures the lower bound of a lookup with cold caches on this machine, in memory of the index's size: two dependent
//! cache misses, and reading the hashes.

use super::cold::{CASES, cold};
use crate::indexes::Ask;
use crate::line::Line;
use crate::random::mix;
use crate::workload::{Fleet, Question, cases};

/// One answer in this many may be wrong, because two chains share one place.
const WRONG_SHARE: usize = 100;

/// Positions of chains by their first hash, and the hashes, chain after chain. The table has neither workers nor the
/// ends of chains, and compares as many hashes as one query has.
struct Floor {
    heads: Vec<u64>,
    hashes: Vec<u64>,
}

impl Floor {
    /// Creates a table of `bytes` bytes.
    fn new(fleet: &Fleet, bytes: usize) -> Self {
        let mut hashes: Vec<u64> = Vec::with_capacity(fleet.content.len());
        let taken = fleet.content.len() * size_of::<u64>();
        let mut heads = vec![0; bytes.saturating_sub(taken).max(taken) / size_of::<u64>()];
        for chain in &fleet.chains {
            let locals = fleet.content.locals(chain.own);
            let place = Self::place(&heads, locals[0]);
            heads[place] = hashes.len() as u64;
            hashes.extend_from_slice(locals);
        }
        Self { heads, hashes }
    }

    fn place(heads: &[u64], hash: u64) -> usize {
        ((u128::from(mix(hash)) * heads.len() as u128) >> 64) as usize
    }
}

impl Ask for Floor {
    const CALLS: &'static [&'static str] = &["floor"];
    type Hash = u64;
    type Answer = usize;

    fn hash(local: u64) -> u64 {
        local
    }

    fn ask(&self, _call: usize, query: &[u64], answer: &mut usize) {
        let head = self.heads[Self::place(&self.heads, query[0])] as usize;
        let is_held = self.hashes.get(head..head + query.len()) == Some(query);
        *answer = if is_held { query.len() } else { 0 };
    }

    fn scores(&self, _call: usize, answer: &usize) -> Vec<(u32, u32)> {
        vec![(0, *answer as u32)]
    }
}

/// Measures the same queries as [`cold`], on chains without common blocks.
pub(crate) fn floor(fleet: &Fleet, bytes: u64, questions: usize, line: &mut Line) {
    let floor = Floor::new(fleet, bytes as usize);
    for &case in &cases(fleet.kind)[..CASES] {
        let mut query = Vec::new();
        let mut blocks = 0;
        let mut wrong = 0;
        for question in Question::some(fleet, case, questions, line.seed + 3) {
            query.clear();
            question.append(fleet, &mut query, Floor::hash);
            floor.ask(0, &query, &mut blocks);
            wrong += usize::from(blocks != query.len());
        }
        assert!(wrong * WRONG_SHARE <= questions, "{wrong} of {questions} chains are not found");
    }
    cold(&floor, fleet, questions, line);
}
