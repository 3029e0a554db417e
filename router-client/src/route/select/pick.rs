//! Picks one of several candidates. Randomness is passed in as a function that returns 64 random bits.
//!
//! Candidates are visited one by one, in order. A [`Tally`] keeps only what its mode needs, so that a decision by score
//! or round-robin allocates no list of a thousand ranks.

use super::decision::Reason;
use super::question::Candidates;
use super::score::Scorer;
use crate::route::active::RankLoad;
use std::cmp::Ordering;

/// Number of the chosen candidate, and the reason.
pub(super) type Pick = Option<(usize, Reason)>;

/// State that a mode keeps while it visits the eligible candidates.
pub(super) trait Tally {
    /// Visits the next candidate, with its number, score and load.
    fn visit(&mut self, number: usize, score: f64, load: &RankLoad, scorer: &Scorer<'_>);
}

/// Round-robin in the order of candidates; stays fair when candidates join or leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// The first number after the last chosen one.
    begin: usize,
    first: Option<usize>,
    next: Option<usize>,
}

/// Finds the lowest score; among equals the least loaded; among these the next in round-robin order.
#[derive(Debug)]
pub(super) struct Lowest {
    count: usize,
    score: f64,
    load: (f64, u64),
    /// Number of candidates with the best score.
    low: usize,
    /// Number of candidates with the best score and the least load.
    idle: usize,
    /// Round-robin choice among these `idle` candidates.
    turn: Turn,
}

/// A candidate that can be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eligible {
    /// Index among the candidates.
    number: usize,
    /// Less is better.
    score: f64,
}

/// All eligible candidates, for random modes.
#[derive(Debug, Default)]
pub(super) struct List(Vec<Eligible>);

// === impl Turn ===

impl Turn {
    /// No candidate visited yet. Numbers from `begin` on precede lower numbers.
    pub(super) const fn new(begin: usize) -> Self {
        Self { begin, first: None, next: None }
    }

    pub(super) fn pick(&self) -> Pick {
        Some((self.number()?, Reason::Turn))
    }

    fn number(&self) -> Option<usize> {
        self.next.or(self.first)
    }

    /// Restarts with only this candidate.
    fn restart(&mut self, number: usize) {
        *self = Self::new(self.begin);
        self.add(number);
    }

    /// Adds a candidate to the turn. Candidates are added in ascending order of `number`.
    fn add(&mut self, number: usize) {
        debug_assert!(self.number() < Some(number) || self.next.is_some(), "in their order");
        if self.first.is_none() {
            self.first = Some(number);
        }
        if self.next.is_none() && number >= self.begin {
            self.next = Some(number);
        }
    }
}

impl Tally for Turn {
    #[inline(always)]
    fn visit(&mut self, number: usize, _score: f64, _load: &RankLoad, _scorer: &Scorer<'_>) {
        self.add(number);
    }
}

// === impl Lowest ===

impl Lowest {
    /// No candidate visited yet. Among equals, numbers from `begin` on precede lower numbers.
    pub(super) const fn new(begin: usize) -> Self {
        let score = f64::INFINITY;
        let load = (f64::INFINITY, u64::MAX);
        Self { count: 0, score, load, low: 0, idle: 0, turn: Turn::new(begin) }
    }

    /// Returns the chosen candidate and the reason, or `None` if the candidates were empty.
    pub(super) fn pick(&self) -> Pick {
        debug_assert!(self.idle <= self.low && self.low <= self.count, "{self:?}");
        let reason = match (self.count, self.low, self.idle) {
            (1, ..) => Reason::OnlyOne,
            (_, 1, _) => Reason::LowestScore,
            (_, _, 1) => Reason::LeastLoadedOfEqual,
            _ => Reason::TurnOfEqual,
        };
        Some((self.turn.number()?, reason))
    }

    /// Compares a candidate with the best one so far: by score, then by load. Equal candidates take turns.
    #[inline(always)]
    fn compare(&mut self, number: usize, score: f64, load: (f64, u64)) {
        let is_first = self.low == 0;
        let by_score = if is_first { Ordering::Less } else { score.total_cmp(&self.score) };
        let by_load = load.0.total_cmp(&self.load.0).then(load.1.cmp(&self.load.1));
        match (by_score, by_load) {
            (Ordering::Greater, _) => {}
            (Ordering::Less, _) => {
                (self.score, self.load, self.low, self.idle) = (score, load, 1, 1);
                self.turn.restart(number);
            }
            (Ordering::Equal, Ordering::Greater) => self.low += 1,
            (Ordering::Equal, Ordering::Less) => {
                (self.load, self.low, self.idle) = (load, self.low + 1, 1);
                self.turn.restart(number);
            }
            (Ordering::Equal, Ordering::Equal) => {
                (self.low, self.idle) = (self.low + 1, self.idle + 1);
                self.turn.add(number);
            }
        }
    }
}

impl Tally for Lowest {
    #[inline(always)]
    fn visit(&mut self, number: usize, score: f64, load: &RankLoad, scorer: &Scorer<'_>) {
        self.count += 1;
        // Most candidates score worse than the best so far.
        if score > self.score {
            return;
        }
        // Load in blocks, then in requests.
        self.compare(number, score, (scorer.load_blocks(load), load.requests));
    }
}

// === impl List ===

impl Tally for List {
    #[inline(always)]
    fn visit(&mut self, number: usize, score: f64, _load: &RankLoad, _scorer: &Scorer<'_>) {
        self.0.push(Eligible { number, score });
    }
}

impl List {
    /// A uniformly random candidate.
    pub(super) fn any(&self, draw: &mut dyn FnMut() -> u64) -> Pick {
        let at = below(self.0.len(), draw());
        Some((self.0.get(at)?.number, Reason::Random))
    }

    /// Returns the better of two different random candidates. Among equals, the first in round-robin order from
    /// `begin`.
    pub(super) fn of_two<C: Candidates>(
        &self,
        candidates: &C,
        scorer: &Scorer<'_>,
        begin: usize,
        draw: &mut dyn FnMut() -> u64,
    ) -> Pick {
        let mut lowest = Lowest::new(begin);
        let mut look = |at: &Eligible| {
            lowest.visit(at.number, at.score, &candidates.at(at.number)?.load, scorer);
            Some(())
        };
        let count = self.0.len();
        if count < 2 {
            look(self.0.first()?)?;
            return lowest.pick();
        }
        let first = below(count, draw());
        let second = below(count - 1, draw());
        let second = if second >= first { second + 1 } else { second };
        debug_assert!(first != second && second < count, "{first} and {second}");
        look(self.0.get(first.min(second))?)?;
        look(self.0.get(first.max(second))?)?;
        let (better, _) = lowest.pick()?;
        Some((better, Reason::LessLoadedOfTwo))
    }

    /// Samples by softmax over −score / temperature, with scores normalized to 0 to 1 by their range: the documents'
    /// "softmax sampling on the normalized cost logits". If all scores are equal, all candidates are equally likely.
    pub(super) fn sampled(&self, temperature: f64, draw: &mut dyn FnMut() -> u64) -> Pick {
        debug_assert!(temperature > 0.0, "0 takes the lowest score");
        let scores = || self.0.iter().map(|at| at.score);
        let lowest = scores().fold(f64::INFINITY, f64::min);
        let range = scores().fold(f64::NEG_INFINITY, f64::max) - lowest;
        let weight = |score: f64| {
            let normal = if range > 0.0 { (score - lowest) / range } else { 0.0 };
            (-normal / temperature).exp()
        };
        let sum: f64 = scores().map(weight).sum();
        debug_assert!(self.0.is_empty() || sum >= 1.0, "the lowest has weight 1");
        // An `f64` has 53 significant bits.
        let mut left = (draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        for at in &self.0 {
            left -= weight(at.score);
            if left < 0.0 {
                return Some((at.number, Reason::Sampled));
            }
        }
        // Rounding may leave a remainder after the last candidate; the heaviest gets it, never one of weight 0.
        let heaviest = self.0.iter().min_by(|a, b| a.score.total_cmp(&b.score));
        Some((heaviest?.number, Reason::Sampled))
    }
}

/// Maps 64 random bits to a number below `count`; the bias is below count / 2^64.
fn below(count: usize, bits: u64) -> usize {
    let at = (u128::from(bits) * count as u128) >> u64::BITS;
    usize::try_from(at).unwrap_or(0)
}
