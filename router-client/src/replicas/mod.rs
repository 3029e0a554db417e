//! Replica selection with hedged requests, exponential backoff and health probes. Pure: time is an argument, counted
//! from any origin.
//!
//! - **Failover and hedging.** The client sends a query to one replica, and to the next if that fails. If the first is
//!   slower than its own recent answers, the client also queries the next and takes the first answer (a *hedge*). It
//!   hedges to a less fresh replica only after half of the time. No replica gets the same query twice. Hedges are
//!   limited to a share of the queries, so failures never multiply the load.
//! - **Backoff.** A replica that fails, or times out several times in a row, is in *backoff*: the other replicas
//!   receive its queries. Probes test it at increasing intervals, until it answers one.
//! - **Probes** are queries for which no caller waits. Rounds of probes go to all replicas at intervals. They list
//!   every worker, so the answers show which replica is behind: a replica that has just started answers quickly but has
//!   no data. Queries go to the freshest replica, round-robin if several are equally fresh. The first query, and the
//!   first after an idle period, waits briefly for the probes.
//!
//! If all replicas are in backoff, queries go to each in turn with a short timeout. A shard that is down costs little
//! time, and the client finds it as soon as one replica is back.

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

/// Maximum replicas of one shard.
pub const REPLICAS_MAX: usize = 8;

/// Credit that a hedge costs. Each query adds [`HedgeConfig::percent`].
const HEDGE_COST: u32 = 100;
/// Maximum hedges in a burst, for example when a replica hangs while many queries wait for it.
const HEDGES_SAVED_MAX: u32 = 64;
/// Number of probe rounds after which an answer is out of date.
const ROUNDS_REMEMBERED: u32 = 3;
/// Time between two log lines about one shard.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Settings of hedging, backoff and probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HedgeConfig {
    /// Minimum delay before a hedge. The delay is the 95th percentile of the first replica's recent answer times.
    pub delay_min: Duration,
    /// Maximum delay before a hedge. Also the timeout of a query to a shard whose replicas are all in backoff.
    pub delay_max: Duration,
    /// Percentage of queries that may be hedged, 0 to 100; 0 disables hedging.
    pub percent: u32,
    /// Backoff after the first failure of a replica. Each further failure doubles it.
    pub backoff_min: Duration,
    /// Maximum backoff.
    pub backoff_max: Duration,
    /// Time between two rounds of probes, which measure the replicas' freshness.
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

/// Counters of one shard since the client was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ShardCounts {
    /// Queries to the shard.
    pub questions: u64,
    /// Queries that no replica answered.
    pub missing: u64,
    /// Requests to replicas, for all queries.
    pub asked: u64,
    /// Requests because another replica was slow.
    pub hedges: u64,
    /// Hedges whose answer was used.
    pub hedges_won: u64,
    /// Requests because another replica had failed.
    pub failovers: u64,
    /// How often a replica entered backoff, or entered it again.
    pub failures: u64,
    /// Probes sent to replicas.
    pub probes: u64,
}

/// The replicas to probe now, by number, all with one query.
pub(crate) type Round = [bool; REPLICAS_MAX];

/// The replicas of one shard, by number. The size is fixed.
#[derive(Debug)]
pub(crate) struct Replicas {
    config: HedgeConfig,
    all: Vec<Replica>,
    /// Round-robin position among equal replicas.
    turn: usize,
    hedge_credit: u32,
    /// When the next round of probes is due.
    round_at: Duration,
    /// Earliest start of the next round of probes.
    round_not_before: Duration,
    /// Random state that spreads the backoffs and rounds of many clients.
    noise: u64,
    logged_at: Option<Duration>,
    unlogged: u64,
    counts: ShardCounts,
}

impl Replicas {
    /// Creates the state of `count` replicas. Clients with different `seed`s probe at different times.
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

    /// The counters so far.
    pub(crate) const fn counts(&self) -> ShardCounts {
        self.counts
    }

    /// Whether a replica is in backoff.
    pub(crate) fn is_failing(&self, number: usize) -> bool {
        self.all.get(number).is_none_or(Replica::is_failing)
    }

    /// Counts an unanswered query. If it should be logged, returns the number of queries suppressed since the last log
    /// line.
    pub(crate) fn missed(&mut self, now: Duration) -> Option<u64> {
        self.counts.missing += 1;
        if self.logged_at.is_some_and(|at| now < at + LOG_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.logged_at = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }

    /// Returns the replicas to probe now, if a round is due. A single replica is never probed.
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

    /// Records the result of a probe: the replica's freshness, or `None` if it failed.
    pub(crate) fn probed(&mut self, number: usize, found: Option<Freshness>, now: Duration) {
        let Some(at) = self.all.get_mut(number) else { return };
        at.end_probe();
        match found {
            Some(freshness) => at.observe(freshness, now),
            None => self.fail(number, now),
        }
        self.end_backoffs();
    }

    /// Ends a probe without a result: the replica rejected it for now.
    pub(crate) fn unprobed(&mut self, number: usize) {
        if let Some(at) = self.all.get_mut(number) {
            at.end_probe();
        }
        self.end_backoffs();
    }

    /// Ends backoffs when no probe is in flight. A recovered replica is compared with the current answers of the
    /// others. A replica that restarted later may have as little data, which older answers do not show.
    fn end_backoffs(&mut self) {
        if !self.all.iter().any(Replica::is_awaited) {
            self.all.iter_mut().for_each(Replica::end_backoff);
        }
    }

    /// Whether a query should wait for the probes in flight. True after an idle period and at the start, when a replica
    /// may have restarted unnoticed.
    pub(crate) fn in_doubt(&self, now: Duration) -> bool {
        let since = self.remembered_since(now);
        self.all.iter().any(|at| at.is_in_doubt(since))
    }

    /// The oldest time at which an answer still counts.
    fn remembered_since(&self, now: Duration) -> Duration {
        // Rounds are at least one backoff apart, however short the interval.
        let between = self.config.probe_interval.max(self.config.backoff_min);
        now.saturating_sub(between * ROUNDS_REMEMBERED)
    }

    /// Longest time that a query waits for probes.
    pub(crate) const fn doubt_max(&self) -> Duration {
        self.config.delay_max
    }

    /// Returns the status of each replica, which orders the choice; a smaller status is better.
    fn statuses(&self, now: Duration) -> [Status; REPLICAS_MAX] {
        let since = self.remembered_since(now);
        let best = best(self.all.iter().filter_map(|at| at.freshness(since)));
        let mut statuses = [Status::Unknown; REPLICAS_MAX];
        for (at, status) in self.all.iter().zip(&mut statuses) {
            *status = at.status(best, since);
        }
        statuses
    }

    /// Records a failure of a replica, and sets its backoff: exponential with jitter.
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
        self.end_backoffs();
    }

    fn spread(&mut self, time: Duration) -> Duration {
        spread(time, self.next_noise())
    }

    /// Xorshift random numbers. They only have to differ between clients.
    const fn next_noise(&mut self) -> u64 {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        self.noise
    }
}

/// Shortens a time by up to a quarter (jitter).
fn spread(time: Duration, noise: u64) -> Duration {
    let [share, ..] = noise.to_be_bytes();
    time - time / 1_024 * u32::from(share)
}
