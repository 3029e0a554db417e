//! Which replica of a shard is asked, when the next one is, and which is left alone for a while. Pure:
//! time is an argument, counted from wherever the caller likes.
//!
//! - A question goes to one replica. When that fails, to the next; when it is slower than its own
//!   recent times, to the next as well, and the first answer is taken (a *hedge*); one that knows less
//!   is asked only when half of the time is over. No question goes to a replica twice, and hedges
//!   are a share of the questions at most: trouble never multiplies the load.
//! - A replica that fails, or is left behind several times in a row, is in *back-off*: questions go
//!   to the others. It is asked again by probes, further and further apart, until it answers one.
//! - *Probes* are questions nobody waits for, a round of them to all replicas from time to time. They
//!   ask for every worker, so their answers tell who is behind: a replica that has just been
//!   started answers readily and knows nothing. Questions go to the freshest, in turn where
//!   several are as fresh. The first question, and one after a pause, waits a moment for the probes.
//!
//! When all are in back-off, questions go to each in turn and have little patience: a shard that is down
//! costs a moment, and is found as soon as one of them is back.

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
use replica::{Replica, Standing};
use std::time::Duration;

/// Most replicas of one shard.
pub const REPLICAS_MAX: usize = 8;

/// What a hedge costs; a question brings in [`HedgeConfig::percent`].
const HEDGE_COST: u32 = 100;
/// What may be saved up: so many hedges in a burst, as when a replica hangs while many wait for it.
const HEDGES_SAVED_MAX: u32 = 64;
/// What was said so many rounds ago says nothing any more.
const ROUNDS_REMEMBERED: u32 = 3;
/// Time between two log lines about one shard.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Times by which replicas are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HedgeConfig {
    /// The next replica is asked when the first has not answered for as long as 95 % of its recent
    /// answers took; but not before this,
    pub delay_min: Duration,
    /// and not after this. A shard all of whose replicas are in back-off is waited for so long.
    pub delay_max: Duration,
    /// So many of a hundred questions may be asked a second time for that, 0 to 100; 0 for none.
    pub percent: u32,
    /// How long a replica is left alone after a first failure; each further one doubles it,
    pub backoff_min: Duration,
    /// up to this.
    pub backoff_max: Duration,
    /// Time between two rounds of probes, which tell which replica is fresh.
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

/// What was done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardCounts {
    /// Questions.
    pub questions: u64,
    /// Questions that no replica answered.
    pub missing: u64,
    /// Replicas asked, for all questions.
    pub asked: u64,
    /// Of those, the ones that were asked because another was slow,
    pub hedges: u64,
    /// and of those, the ones whose answer was taken.
    pub hedges_won: u64,
    /// Replicas asked because another had failed.
    pub failovers: u64,
    /// Times that a replica went into back-off, or back into it.
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
    /// Whose turn it is among those that are as good.
    turn: usize,
    hedge_credit: u32,
    /// When the next round of probes is due,
    round_at: Duration,
    /// and when it may begin at the earliest.
    round_not_before: Duration,
    /// Spreads back-offs and rounds of many clients.
    noise: u64,
    logged_at: Option<Duration>,
    unlogged: u64,
    counts: ShardCounts,
}

impl Replicas {
    /// `count` replicas, of which nothing is known. Clients with different `seed`s do not probe at
    /// the same times.
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

    /// What was done so far.
    pub(crate) const fn counts(&self) -> ShardCounts {
        self.counts
    }

    /// Whether a replica is in back-off.
    pub(crate) fn is_failing(&self, number: usize) -> bool {
        self.all.get(number).is_none_or(Replica::is_failing)
    }

    /// Notes that a question was not answered. Whether to log it, and how many were not logged.
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
        // One replica is asked in any case.
        if self.all.len() == 1 {
            return None;
        }
        let due = now >= self.round_at || self.all.iter().any(|at| at.is_due(now));
        if !due || now < self.round_not_before {
            return None;
        }
        self.round_not_before = now + self.config.backoff_min / 2;
        self.round_at = now + self.spread(self.config.probe_interval);
        let mut replicas = [false; REPLICAS_MAX];
        for (at, probed) in self.all.iter_mut().zip(&mut replicas) {
            *probed = at.begin_probe(now);
            self.counts.probes += u64::from(*probed);
        }
        replicas.contains(&true).then_some(replicas)
    }

    /// What became of a probe: what the replica knows, if it answered.
    pub(crate) fn probed(&mut self, number: usize, found: Option<Freshness>, now: Duration) {
        let Some(at) = self.all.get_mut(number) else { return };
        at.end_probe();
        match found {
            Some(freshness) => at.proven(freshness, now),
            None => self.fail(number, now),
        }
        self.settle();
    }

    /// Who comes back from back-off is judged beside the others, by what they say now: one that has
    /// been started after it may know as little, as far as was known before.
    fn settle(&mut self) {
        if !self.all.iter().any(Replica::is_awaited) {
            self.all.iter_mut().for_each(Replica::settle);
        }
    }

    /// Whether a question had better wait for the probes under way: nobody has asked for a while, or
    /// ever, and a replica may have been started anew since.
    pub(crate) fn in_doubt(&self, now: Duration) -> bool {
        let since = self.remembered_since(now);
        self.all.iter().any(|at| at.is_in_doubt(since))
    }

    /// What was said before is out of date.
    fn remembered_since(&self, now: Duration) -> Duration {
        // Rounds are no closer than that, however short the interval.
        let between = self.config.probe_interval.max(self.config.backoff_min);
        now.saturating_sub(between * ROUNDS_REMEMBERED)
    }

    /// The most that a question waits for that.
    pub(crate) const fn doubt_max(&self) -> Duration {
        self.config.delay_max
    }

    /// How good a choice each replica is, less being better.
    fn standings(&self, now: Duration) -> [Standing; REPLICAS_MAX] {
        let since = self.remembered_since(now);
        let best = best(self.all.iter().filter_map(|at| at.freshness(since)));
        let mut standings = [Standing::Unknown; REPLICAS_MAX];
        for (at, standing) in self.all.iter().zip(&mut standings) {
            *standing = at.standing(best, since);
        }
        standings
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

    /// Xorshift: all that is asked of it is that clients differ.
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
