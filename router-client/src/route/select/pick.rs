//! Picks one of several; randomness is handed in as a function that returns 64 random bits.

use super::decision::Reason;
use super::question::{Candidate, Candidates};
use super::score::Scorer;
use kvasir_proto::types::WorkerKey;
use std::cmp::Ordering;

/// A candidate that can be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eligible {
    /// Its place among the candidates.
    pub(super) number: usize,
    /// Less is better.
    pub(super) score: f64,
}

/// Those who can be chosen.
#[derive(Debug)]
pub(super) struct Choice<'a, C> {
    pub(super) candidates: &'a C,
    pub(super) eligible: &'a [Eligible],
    pub(super) scorer: &'a Scorer<'a>,
    /// Whose turn it was.
    pub(super) last: Option<&'a WorkerKey>,
}

/// Who is chosen, and why.
pub(super) type Pick = Option<(Eligible, Reason)>;

impl<C: Candidates> Choice<'_, C> {
    /// The lowest score; of equal ones the least loaded; of these the one whose turn it is.
    pub(super) fn best(&self) -> Pick {
        self.best_of(self.eligible)
    }

    /// The one whose turn it is.
    pub(super) fn turn(&self) -> Pick {
        Some((self.next(self.eligible, |_any| true)?, Reason::Turn))
    }

    /// Any.
    pub(super) fn any(&self, draw: &mut dyn FnMut() -> u64) -> Pick {
        let at = below(self.eligible.len(), draw());
        Some((*self.eligible.get(at)?, Reason::Random))
    }

    /// The better of two that are drawn, which are never the same.
    pub(super) fn of_two(&self, draw: &mut dyn FnMut() -> u64) -> Pick {
        let count = self.eligible.len();
        if count < 2 {
            return self.best();
        }
        let first = below(count, draw());
        let second = below(count - 1, draw());
        let second = if second >= first { second + 1 } else { second };
        debug_assert!(first != second && second < count, "{first} and {second}");
        let (first, second) = (first.min(second), first.max(second));
        let two = [*self.eligible.get(first)?, *self.eligible.get(second)?];
        let (better, _) = self.best_of(&two)?;
        Some((better, Reason::LessLoadedOfTwo))
    }

    /// One by softmax over −score / temperature, the scores brought to 0 to 1 by their range: the documents' "softmax
    /// sampling on the normalized cost logits". All are as likely if all scores are equal.
    pub(super) fn sampled(&self, temperature: f64, draw: &mut dyn FnMut() -> u64) -> Pick {
        debug_assert!(temperature > 0.0, "0 takes the lowest score");
        let scores = || self.eligible.iter().map(|at| at.score);
        let lowest = scores().fold(f64::INFINITY, f64::min);
        let range = scores().fold(f64::NEG_INFINITY, f64::max) - lowest;
        let weight = |score: f64| {
            let normal = if range > 0.0 { (score - lowest) / range } else { 0.0 };
            (-normal / temperature).exp()
        };
        let sum: f64 = scores().map(weight).sum();
        debug_assert!(self.eligible.is_empty() || sum >= 1.0, "the lowest has weight 1");
        // 53 bits are what a number of 64 bits holds between 0 and 1.
        let mut left = (draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
        for at in self.eligible {
            left -= weight(at.score);
            if left < 0.0 {
                return Some((*at, Reason::Sampled));
            }
        }
        // Rounding may leave a trace behind the last one; nobody whose weight is 0 is chosen for that.
        let heaviest = self.eligible.iter().min_by(|a, b| a.score.total_cmp(&b.score));
        Some((*heaviest?, Reason::Sampled))
    }

    fn best_of(&self, eligible: &[Eligible]) -> Pick {
        let mut best = eligible.first()?;
        let mut best_load = self.load(best);
        // How many score as low as the best, and how many of these have as little to do.
        let (mut low, mut idle) = (0, 0);
        for at in eligible {
            match at.score.total_cmp(&best.score) {
                Ordering::Greater => {}
                Ordering::Less => (best, best_load, low, idle) = (at, self.load(at), 1, 1),
                Ordering::Equal => {
                    low += 1;
                    let load = self.load(at);
                    match by_load(load, best_load) {
                        Ordering::Greater => {}
                        Ordering::Less => (best, best_load, idle) = (at, load, 1),
                        Ordering::Equal => idle += 1,
                    }
                }
            }
        }
        debug_assert!(1 <= idle && idle <= low && low <= eligible.len(), "{idle} of {low}");
        let reason = match (eligible.len(), low, idle) {
            (1, ..) => Reason::OnlyOne,
            (_, 1, _) => Reason::LowestScore,
            (_, _, 1) => Reason::LeastLoadedOfEqual,
            _ => {
                let is_as_good = |at: &Eligible| {
                    at.score.total_cmp(&best.score).is_eq()
                        && by_load(self.load(at), best_load).is_eq()
                };
                return Some((self.next(eligible, is_as_good)?, Reason::TurnOfEqual));
            }
        };
        Some((*best, reason))
    }

    /// What a rank has to do, in blocks, then in requests.
    fn load(&self, at: &Eligible) -> (f64, u64) {
        let load = |at: Candidate<'_>| (self.scorer.load_blocks(&at), at.load.requests);
        self.candidates.at(at.number).map_or((f64::INFINITY, u64::MAX), load)
    }

    /// The first whose turn it is, in the order of keys: each has its turn, whoever comes or goes.
    fn next(
        &self,
        eligible: &[Eligible],
        is_wanted: impl Fn(&Eligible) -> bool,
    ) -> Option<Eligible> {
        debug_assert!(eligible.is_sorted_by_key(|at| at.number), "in the order of candidates");
        let had_turn = |at: &Eligible| {
            self.last
                .is_some_and(|last| self.candidates.at(at.number).is_some_and(|at| at.key <= last))
        };
        let at = eligible.partition_point(had_turn);
        let (before, after) = eligible.split_at_checked(at)?;
        after.iter().chain(before).find(|at| is_wanted(at)).copied()
    }
}

fn by_load(a: (f64, u64), b: (f64, u64)) -> Ordering {
    a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
}

/// A number below `count` by 64 random bits; the bias is below count / 2^64.
fn below(count: usize, bits: u64) -> usize {
    let at = (u128::from(bits) * count as u128) >> u64::BITS;
    usize::try_from(at).unwrap_or(0)
}
