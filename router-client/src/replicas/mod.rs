//! Chooses which replica of a shard to ask, when to ask the next, and which to leave alone for a while.
//! Pure: time is an argument, counted from wherever the caller likes.
//!
//! - The client sends a question to one replica. If that fails, it asks the next. If that is slower than
//!   its own recent answers, the client asks the next as well and takes the first answer (a *hedge*); it
//!   hedges to a replica that knows less only after half of the time. It asks no replica twice for a
//!   question, and limits hedges to a share of the questions: trouble never multiplies the load.
//! - A replica that fails, or times out several times in a row, is in *back-off*: questions go to the
//!   others. Probes ask it again, further and further apart, until it answers one.
//! - *Probes* are questions that no caller waits for: from time to time a round of them goes to all
//!   replicas. They ask for every worker, so their answers show which replica is behind: one that has
//!   just started answers readily and knows nothing. Questions go to the freshest replica, in turn if
//!   several are as fresh. The first question, and one after a pause, waits a moment for the probes.
//!
//! If all replicas are in back-off, questions go to each in turn with a short timeout: a shard that is down
//! costs a moment, and the client finds it as soon as one replica is back.

mod freshness;
mod latency;
mod question;
mod replica;
#[cfg(test)]
mod rules_test;
#[cfg(test)]
mod simulation_test;

pub(crate) use freshness::Freshness;
pub(crate) use question::{Outcome, Question, Step};

use freshness::best;
use replica::{Replica, Status};
use std::time::Duration;

/// Most replicas of one shard.
pub const REPLICAS_MAX: usize = 8;

/// Credit that a hedge costs; a question adds [`HedgeConfig::percent`].
const HEDGE_COST: u32 = 100;
/// Most hedges in a burst, as when a replica hangs while many questions wait for it.
const HEDGES_SAVED_MAX: u32 = 64;
/// Rounds of probes after which an answer is out of date.
const ROUNDS_REMEMBERED: u32 = 3;
/// Time between two log lines about one shard.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Times by which replicas are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HedgeConfig {
    /// Shortest wait before the client asks a second replica. It asks one when the first has not answered
    /// for as long as 95 % of its recent answers took.
    pub delay_min: Duration,
    /// Longest wait before the client asks a second replica. Also the timeout of a question to a shard all
    /// of whose replicas are in back-off.
    pub delay_max: Duration,
    /// Percentage of questions that may be hedged, 0 to 100; 0 turns hedges off.
    pub percent: u32,
    /// Back-off after the first failure of a replica. Each further failure doubles it.
    pub backoff_min: Duration,
    /// Longest back-off.
    pub backoff_max: Duration,
    /// Time between two rounds of probes, which find out which replica is fresh.
    pub probe_interval: Duration,
}

impl Default for HedgeConfig {
    fn default() -> Self {
        Self {
            delay_min: Duration::from_millis(5),
            delay_max: Duration::from_millis(40),
            percent: 10,
            backoff_min: Duration::from_millis(100),
            backoff_max: Duration::from_secs(2),
            probe_interval: Duration::from_secs(1),
        }
    }
}

/// Counts of one shard since the client was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardCounts {
    /// Questions.
    pub questions: u64,
    /// Questions that no replica answered.
    pub missing: u64,
    /// Requests to replicas for all questions.
    pub asked: u64,
    /// Requests because another replica was slow.
    pub hedges: u64,
    /// Hedges whose answer was taken.
    pub hedges_won: u64,
    /// Requests because another replica had failed.
    pub failovers: u64,
    /// Times that a replica entered back-off, or entered it again.
    pub failures: u64,
    /// Probes.
    pub probes: u64,
}

/// The replicas to be probed now, by number, all with one question.
pub(crate) type Round = [bool; REPLICAS_MAX];

/// The replicas of one shard, by number. Fixed size whatever happens.
#[derive(Debug)]
pub(crate) struct Replicas {
    config: HedgeConfig,
    all: Vec<Replica>,
    /// The replica whose turn it is among equals.
    turn: usize,
    hedge_credit: u32,
    /// When the next round of probes is due.
    round_at: Duration,
    /// When it may begin at the earliest.
    round_not_before: Duration,
    /// Spreads back-offs and rounds of many clients.
    noise: u64,
    logged_at: Option<Duration>,
    unlogged: u64,
    counts: ShardCounts,
}

impl Replicas {
    /// `count` replicas without any history. Clients with different `seed`s do not probe at the same
    /// times.
    pub(crate) fn new(count: usize, config: HedgeConfig, seed: u64) -> Self {
        debug_assert!((1..=REPLICAS_MAX).contains(&count), "{count} replicas");
        let turn = usize::try_from(seed % REPLICAS_MAX as u64).unwrap_or(0);
        Self {
            all: vec![Replica::default(); count.min(REPLICAS_MAX)],
            turn,
            hedge_credit: config.percent.min(1) * HEDGES_SAVED_MAX * HEDGE_COST,
            round_at: Duration::ZERO,
            round_not_before: Duration::ZERO,
            noise: seed | 1,
            logged_at: None,
            unlogged: 0,
            counts: ShardCounts::default(),
            config,
        }
    }

    /// What was counted so far.
    pub(crate) const fn counts(&self) -> ShardCounts {
        self.counts
    }

    /// Whether a replica is in back-off.
    pub(crate) fn is_failing(&self, number: usize) -> bool {
        self.all.get(number).is_none_or(Replica::is_failing)
    }

    /// Counts a question that was not answered. If it should be logged, returns how many were not logged before.
    pub(crate) fn missed(&mut self, now: Duration) -> Option<u64> {
        self.counts.missing += 1;
        if self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// The replicas to be probed now, if it is time.
    pub(crate) fn probes(&mut self, now: Duration) -> Option<Round> {
        // A single replica needs no choice.
        if self.all.len() == 1 {
            return None;
        }
        let due = now >= self.round_at || self.all.iter().any(|at| at.is_due(now));
        if !due || now < self.round_not_before {
            return None;
        }
        debug_assert!(self.all.len() <= REPLICAS_MAX, "no replica without a place in a round");
        self.round_not_before = now + self.config.backoff_min / 2;
        self.round_at = now + self.spread(self.config.probe_interval);
        let mut replicas = [false; REPLICAS_MAX];
        for (at, probed) in self.all.iter_mut().zip(&mut replicas) {
            *probed = at.begin_probe(now);
            self.counts.probes += u64::from(*probed);
        }
        replicas.contains(&true).then_some(replicas)
    }

    /// Records the result of a probe: what the replica knows, if it answered.
    pub(crate) fn probed(&mut self, number: usize, found: Option<Freshness>, now: Duration) {
        let Some(at) = self.all.get_mut(number) else { return };
        at.end_probe();
        match found {
            Some(freshness) => at.observe(freshness, now),
            None => self.fail(number, now),
        }
        self.settle();
    }

    /// Ends a probe that shows nothing: the replica answered that it takes no question now.
    pub(crate) fn unprobed(&mut self, number: usize) {
        if let Some(at) = self.all.get_mut(number) {
            at.end_probe();
        }
        self.settle();
    }

    /// Ends back-offs when no probe is under way. A replica that comes back is compared with what the others
    /// answer now: one that restarted after it may know as little, which older answers do not show.
    fn settle(&mut self) {
        if !self.all.iter().any(Replica::is_awaited) {
            self.all.iter_mut().for_each(Replica::settle);
        }
    }

    /// Whether a question should wait for the probes under way: no question was asked for a while, or ever,
    /// and a replica may have restarted since.
    pub(crate) fn in_doubt(&self, now: Duration) -> bool {
        let since = self.remembered_since(now);
        self.all.iter().any(|at| at.is_in_doubt(since))
    }

    /// Answers from before this are out of date.
    fn remembered_since(&self, now: Duration) -> Duration {
        // Rounds are at least a back-off apart, however short the interval.
        let between = self.config.probe_interval.max(self.config.backoff_min);
        now.saturating_sub(between * ROUNDS_REMEMBERED)
    }

    /// Longest wait of a question for probes.
    pub(crate) const fn doubt_max(&self) -> Duration {
        self.config.delay_max
    }

    /// How good a choice each replica is, less being better.
    fn statuses(&self, now: Duration) -> [Status; REPLICAS_MAX] {
        let since = self.remembered_since(now);
        let best = best(self.all.iter().filter_map(|at| at.freshness(since)));
        let mut statuses = [Status::Unknown; REPLICAS_MAX];
        for (at, status) in self.all.iter().zip(&mut statuses) {
            *status = at.status(best, since);
        }
        statuses
    }

    fn fail(&mut self, number: usize, now: Duration) {
        let noise = self.next_noise();
        let config = &self.config;
        if let Some(at) = self.all.get_mut(number) {
            let before = at.failures();
            at.fail(now, |failures| {
                let longer = 1_u32.checked_shl(failures - 1).unwrap_or(u32::MAX);
                let backoff = config.backoff_min.saturating_mul(longer).min(config.backoff_max);
                spread(backoff, noise)
            });
            self.counts.failures += u64::from(at.failures() > before);
        }
        self.settle();
    }

    fn spread(&mut self, time: Duration) -> Duration {
        spread(time, self.next_noise())
    }

    /// Xorshift: clients must differ, nothing more.
    const fn next_noise(&mut self) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise
    }
}

/// A time shortened by up to a quarter.
fn spread(time: Duration, noise: u64) -> Duration {
    let [share, ..] = noise.to_be_bytes();
    time - time / 1_024 * u32::from(share)
}
