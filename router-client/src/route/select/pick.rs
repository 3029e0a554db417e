//! Picks one of several; randomness is handed in as a function that returns 64 random bits.
//!
//! Candidates are looked at one by one, in their order. A [`Tally`] keeps of them only what its mode needs: a decision by
//! score or by turn writes no list of a thousand ranks.

use super::decision::Reason;
use super::question::Candidates;
use super::score::Scorer;
use crate::route::active::RankLoad;
use std::cmp::Ordering;

/// The number of who is chosen, and why.
pub(super) type Pick = Option<(usize, Reason)>;

/// What a mode remembers of those who can be chosen.
pub(super) trait Tally {
    /// Looks at the next one, by its number, its score and its load.
    fn look(&mut self, number: usize, score: f64, load: &RankLoad, scorer: &Scorer<'_>);
}

/// Finds the one whose turn it is, in the order of candidates: each has its turn, whoever comes or goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// The first number behind the one whose turn it was.
    begin: usize,
    first: Option<usize>,
    next: Option<usize>,
}

/// Finds the lowest score; of equal ones the least loaded; of these the one whose turn it is.
#[derive(Debug)]
pub(super) struct Lowest {
    count: usize,
    score: f64,
    load: (f64, u64),
    /// How many score as low as the best.
    low: usize,
    /// How many of these have as little to do.
    idle: usize,
    /// One of the latter.
    turn: Turn,
}

/// A candidate that can be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eligible {
    /// Its place among the candidates.
    number: usize,
    /// Less is better.
    score: f64,
}

/// All who can be chosen, for modes that draw.
#[derive(Debug, Default)]
pub(super) struct List(Vec<Eligible>);

// === impl Turn ===

impl Turn {
    /// Nobody has been looked at; those from number `begin` on have their turn before those below.
    pub(super) const fn new(begin: usize) -> Self {
        Self { begin, first: None, next: None }
    }

    pub(super) fn pick(&self) -> Pick {
        Some((self.number()?, Reason::Turn))
    }

    fn number(&self) -> Option<usize> {
        self.next.or(self.first)
    }

    /// Forgets everybody but this one.
    fn restart(&mut self, number: usize) {
        *self = Self::new(self.begin);
        self.add(number);
    }

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
    fn look(&mut self, number: usize, _score: f64, _load: &RankLoad, _scorer: &Scorer<'_>) {
        self.add(number);
    }
}

// === impl Lowest ===

impl Lowest {
    /// Nobody has been looked at. Of equals, those from number `begin` on have their turn before those below.
    pub(super) const fn new(begin: usize) -> Self {
        let score = f64::INFINITY;
        let load = (f64::INFINITY, u64::MAX);
        Self { count: 0, score, load, low: 0, idle: 0, turn: Turn::new(begin) }
    }

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

    /// Looks at one who may be the best, or as good as the best.
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
    fn look(&mut self, number: usize, score: f64, load: &RankLoad, scorer: &Scorer<'_>) {
        self.count += 1;
        // Most score worse than the best so far.
        if score > self.score {
            return;
        }
        // What it has to do, in blocks, then in requests.
        self.compare(number, score, (scorer.load_blocks(load), load.requests));
    }
}

// === impl List ===

impl Tally for List {
    #[inline(always)]
    fn look(&mut self, number: usize, score: f64, _load: &RankLoad, _scorer: &Scorer<'_>) {
        self.0.push(Eligible { number, score });
    }
}

impl List {
    /// Any.
    pub(super) fn any(&self, draw: &mut dyn FnMut() -> u64) -> Pick {
        let at = below(self.0.len(), draw());
        Some((self.0.get(at)?.number, Reason::Random))
    }

    /// The better of two that are drawn, which are never the same. Of equals the one whose turn comes first from `begin`.
    pub(super) fn of_two<C: Candidates>(
        &self,
        (candidates, scorer): (&C, &Scorer<'_>),
        begin: usize,
        draw: &mut dyn FnMut() -> u64,
    ) -> Pick {
        let mut lowest = Lowest::new(begin);
        let mut look = |at: &Eligible| {
            lowest.look(at.number, at.score, &candidates.at(at.number)?.load, scorer);
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

    /// One by softmax over −score / temperature, the scores brought to 0 to 1 by their range: the documents' "softmax
    /// sampling on the normalized cost logits". All are as likely if all scores are equal.
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
        // 53 bits are what a number of 64 bits holds between 0 and 1.
        let mut left = (draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        for at in &self.0 {
            left -= weight(at.score);
            if left < 0.0 {
                return Some((at.number, Reason::Sampled));
            }
        }
        // Rounding may leave a trace behind the last one; nobody whose weight is 0 is chosen for that.
        let heaviest = self.0.iter().min_by(|a, b| a.score.total_cmp(&b.score));
        Some((heaviest?.number, Reason::Sampled))
    }
}

/// A number below `count` by 64 random bits; the bias is below count / 2^64.
fn below(count: usize, bits: u64) -> usize {
    let at = (u128::from(bits) * count as u128) >> u64::BITS;
    usize::try_from(at).unwrap_or(0)
}
