//! Queries with their expected answers.

use super::fleet::{Chain, Fleet, Kind, PROMPT_BLOCKS};
use crate::random::{Random, mix};

/// Maximum length of a query, in blocks.
pub(crate) const QUERY_BLOCKS_MAX: usize = 512;
/// First number of unknown blocks, beyond the numbers of any content.
const UNKNOWN: u64 = 1 << 60;

/// A kind of query: the first `known` blocks of a random chain that is long enough, then unknown blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) known: usize,
    pub(crate) unknown: usize,
}

const fn case(name: &'static str, known: usize, unknown: usize) -> Case {
    Case { name, known, unknown }
}

/// Queries for chains without common blocks.
const SEPARATE: &[Case] = &[
    case("hit64", 64, 0),
    case("hit256", 256, 0),
    case("hit512", 512, 0),
    case("miss_head", 0, 512),
    case("miss_at64", 64, 448),
];

/// Queries where all workers have the first 256 blocks of every chain.
const PREFIXED: &[Case] = &[
    case("hit64", 64, 0),
    case("prompt", 256, 0),
    case("prompt_tail64", 320, 0),
    case("prompt_tail256", 512, 0),
    case("miss_head", 0, 512),
    case("prompt_miss64", 256, 64),
];

/// The queries of a workload.
pub(crate) fn cases(kind: Kind) -> &'static [Case] {
    match kind {
        Kind::Distinct | Kind::Shared8 => SEPARATE,
        Kind::Prefix64 => PREFIXED,
    }
}

/// Expected answer of a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Expected {
    /// Number of workers with at least one block.
    pub(crate) workers: usize,
    /// Largest number of leading blocks of a worker.
    pub(crate) deepest: usize,
    /// Sum of the leading blocks of all workers.
    pub(crate) sum: usize,
}

/// One query.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question {
    chain: u32,
    case: Case,
    salt: u64,
}

impl Question {
    /// `count` random queries of a case.
    pub(crate) fn some(fleet: &Fleet, case: Case, count: usize, seed: u64) -> Vec<Self> {
        let long = |at: &usize| fleet.chains[*at].len() >= case.known;
        let chains: Vec<usize> = (0..fleet.chains.len()).filter(long).collect();
        assert!(!chains.is_empty(), "no chain has {} blocks", case.known);
        let mut random = Random::new(seed);
        let mut next = || {
            let chain = chains[random.below(chains.len())] as u32;
            Self { chain, case, salt: random.next() }
        };
        (0..count).map(|_| next()).collect()
    }

    fn chain<'a>(&self, fleet: &'a Fleet) -> &'a Chain {
        &fleet.chains[self.chain as usize]
    }

    /// Appends the query's local hashes to `query`.
    pub(crate) fn append<H>(&self, fleet: &Fleet, query: &mut Vec<H>, hash: impl Fn(u64) -> H) {
        let chain = self.chain(fleet);
        let prompt = chain.prompt.map_or(&[][..], |span| fleet.content.locals(span));
        let known = prompt.iter().chain(fleet.content.locals(chain.own)).take(self.case.known);
        query.extend(known.map(|&local| hash(local)));
        let unknown =
            (0..self.case.unknown as u64).map(|at| mix(UNKNOWN + self.salt % UNKNOWN + at));
        query.extend(unknown.map(hash));
    }

    /// The query's leading blocks that some worker stored.
    pub(crate) fn known_blocks(&self, fleet: &Fleet) -> Vec<u32> {
        let chain = self.chain(fleet);
        let spans = chain.prompt.into_iter().chain([chain.own]);
        spans.flat_map(|span| span.start..span.end()).take(self.case.known).collect()
    }

    /// The query's answer after everything is stored.
    pub(crate) fn expected(&self, fleet: &Fleet) -> Expected {
        let known = self.case.known;
        let holders = self.chain(fleet).workers.len();
        match fleet.kind {
            _ if known == 0 => Expected::default(),
            Kind::Distinct | Kind::Shared8 => {
                Expected { workers: holders, deepest: known, sum: holders * known }
            }
            Kind::Prefix64 => {
                let shared = known.min(PROMPT_BLOCKS);
                let workers = fleet.workers();
                Expected { workers, deepest: known, sum: workers * shared + known - shared }
            }
        }
    }
}
