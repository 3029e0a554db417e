//! Picks one of several; randomness is handed in as a function that returns 64 random bits.

use super::decision::Reason;
use kvasir_proto::types::WorkerKey;
use std::cmp::Ordering;

/// A candidate that can be chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Eligible<'a> {
    /// Its place among the candidates.
    pub(super) candidate: usize,
    pub(super) key: &'a WorkerKey,
    /// Requests under way.
    pub(super) requests: u64,
    /// Less is better.
    pub(super) score: f64,
    /// What it has to do, in blocks; among equals, less is better.
    pub(super) load_blocks: f64,
}

/// Who is chosen, and why.
pub(super) type Pick<'a> = Option<(Eligible<'a>, Reason)>;

/// The lowest score; of equal ones the least loaded; of these the one whose turn it is.
pub(super) fn best<'a>(eligible: &[Eligible<'a>], last: Option<&WorkerKey>) -> Pick<'a> {
    let mut best = eligible.first()?;
    // How many score as low as the best, and how many of these have as little to do.
    let (mut low, mut idle) = (0, 0);
    for at in eligible {
        match (at.score.total_cmp(&best.score), by_load(at, best)) {
            (Ordering::Greater, _) => {}
            (Ordering::Less, _) => (best, low, idle) = (at, 1, 1),
            (Ordering::Equal, Ordering::Greater) => low += 1,
            (Ordering::Equal, Ordering::Less) => (best, low, idle) = (at, low + 1, 1),
            (Ordering::Equal, Ordering::Equal) => (low, idle) = (low + 1, idle + 1),
        }
    }
    debug_assert!(1 <= idle && idle <= low && low <= eligible.len(), "{idle} of {low}");
    let reason = match (eligible.len(), low, idle) {
        (1, ..) => Reason::OnlyOne,
        (_, 1, _) => Reason::LowestScore,
        (_, _, 1) => Reason::LeastLoadedOfEqual,
        _ => {
            let is_as_good = |at: &&Eligible<'_>| {
                at.score.total_cmp(&best.score).is_eq() && by_load(at, best).is_eq()
            };
            let next = next(eligible.iter().filter(is_as_good), last)?;
            return Some((next, Reason::TurnOfEqual));
        }
    };
    Some((*best, reason))
}

/// The one whose turn it is.
pub(super) fn turn<'a>(eligible: &[Eligible<'a>], last: Option<&WorkerKey>) -> Pick<'a> {
    Some((next(eligible.iter(), last)?, Reason::Turn))
}

/// Any.
pub(super) fn any<'a>(eligible: &[Eligible<'a>], draw: &mut dyn FnMut() -> u64) -> Pick<'a> {
    let at = below(eligible.len(), draw());
    Some((*eligible.get(at)?, Reason::Random))
}

/// The better of two that are drawn, which are never the same.
pub(super) fn of_two<'a>(
    eligible: &[Eligible<'a>],
    last: Option<&WorkerKey>,
    draw: &mut dyn FnMut() -> u64,
) -> Pick<'a> {
    if eligible.len() < 2 {
        return best(eligible, last);
    }
    let first = below(eligible.len(), draw());
    let second = below(eligible.len() - 1, draw());
    let second = if second >= first { second + 1 } else { second };
    debug_assert!(first != second && second < eligible.len(), "{first} and {second}");
    let two = [*eligible.get(first)?, *eligible.get(second)?];
    let (better, _) = best(&two, last)?;
    Some((better, Reason::LessLoadedOfTwo))
}

/// One by softmax over −score / temperature, the scores brought to 0 to 1 by their range: the documents' "softmax sampling on
/// the normalized cost logits". All are as likely if all scores are equal.
pub(super) fn sampled<'a>(
    eligible: &[Eligible<'a>],
    temperature: f64,
    draw: &mut dyn FnMut() -> u64,
) -> Pick<'a> {
    debug_assert!(temperature > 0.0, "0 takes the lowest score");
    let scores = || eligible.iter().map(|at| at.score);
    let lowest = scores().fold(f64::INFINITY, f64::min);
    let range = scores().fold(f64::NEG_INFINITY, f64::max) - lowest;
    let weight = |score: f64| {
        let normal = if range > 0.0 { (score - lowest) / range } else { 0.0 };
        (-normal / temperature).exp()
    };
    let sum: f64 = scores().map(weight).sum();
    debug_assert!(eligible.is_empty() || sum >= 1.0, "the lowest has weight 1");
    // 53 bits are what a number of 64 bits holds between 0 and 1.
    let mut left = (draw() >> 11) as f64 / (1_u64 << 53) as f64 * sum;
    for at in eligible {
        left -= weight(at.score);
        if left < 0.0 {
            return Some((*at, Reason::Sampled));
        }
    }
    // Rounding may leave a trace behind the last one; nobody whose weight is 0 is chosen for that.
    let heaviest = eligible.iter().min_by(|a, b| a.score.total_cmp(&b.score));
    Some((*heaviest?, Reason::Sampled))
}

fn by_load(a: &Eligible<'_>, b: &Eligible<'_>) -> Ordering {
    let by_blocks = a.load_blocks.total_cmp(&b.load_blocks);
    by_blocks.then_with(|| a.requests.cmp(&b.requests))
}

/// The first after the last one chosen, in the order of keys: each has its turn, whoever comes or goes.
fn next<'a: 'b, 'b>(
    eligible: impl Iterator<Item = &'b Eligible<'a>>,
    last: Option<&WorkerKey>,
) -> Option<Eligible<'a>> {
    let is_before = |at: &Eligible<'_>| last.is_some_and(|last| at.key <= last);
    eligible.min_by(|a, b| (is_before(a), a.key).cmp(&(is_before(b), b.key))).copied()
}

/// A number below `count` by 64 random bits; the bias is below count / 2^64.
fn below(count: usize, bits: u64) -> usize {
    let at = (u128::from(bits) * count as u128) >> u64::BITS;
    usize::try_from(at).unwrap_or(0)
}
