use super::Freshness;
use super::latency::Latencies;
use std::time::Duration;

/// Timeouts in a row after which a replica counts as failed.
const STRIKES_MAX: u32 = 3;

/// State of one replica.
#[derive(Debug, Clone, Default)]
pub(super) struct Replica {
    latencies: Latencies,
    observed: Option<Observation>,
    /// Observation from a probe during backoff, kept until the other probes of the round have ended.
    returning: Option<Observation>,
    /// Failures in a row. The replica is in backoff while this is not 0.
    failures: u32,
    strikes: u32,
    /// End of the backoff: when the replica may be queried again.
    retry_at: Duration,
    probing: bool,
}

/// A replica's freshness at one time.
#[derive(Debug, Clone, Copy)]
struct Observation {
    freshness: Freshness,
    /// When the replica answered.
    at: Duration,
}

/// How good a choice a replica is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Status {
    /// As fresh as the best replica.
    Fresh,
    /// Less fresh than another replica.
    Behind(Freshness),
    /// Has not answered a probe recently.
    Unknown,
    /// In back-off.
    Failing,
}

impl Status {
    /// Replicas of one class are equally good for a hedge.
    pub(super) const fn class(&self) -> u8 {
        match self {
            Self::Fresh => 0,
            Self::Behind(_) => 1,
            Self::Unknown => 2,
            Self::Failing => 3,
        }
    }
}

impl Replica {
    pub(super) const fn is_failing(&self) -> bool {
        self.failures > 0
    }

    pub(super) const fn failures(&self) -> u32 {
        self.failures
    }

    pub(super) fn p95(&self) -> Option<Duration> {
        self.latencies.p95()
    }

    /// The replica's freshness, if it has answered a probe since `since`.
    pub(super) fn freshness(&self, since: Duration) -> Option<Freshness> {
        let recent = |observed: &Observation| observed.at >= since && !self.is_failing();
        self.observed.filter(recent).map(|observed| observed.freshness)
    }

    /// Returns how usable the replica is, compared with the freshest replica (`best`): fresh, behind, failing, or
    /// unknown if either has not answered `since`.
    pub(super) fn status(&self, best: Option<Freshness>, since: Duration) -> Status {
        if self.is_failing() {
            return Status::Failing;
        }
        match self.freshness(since).zip(best) {
            Some((own, best)) if own.keeps_up_with(&best) => Status::Fresh,
            Some((own, _)) => Status::Behind(own),
            None => Status::Unknown,
        }
    }

    /// Records an answered query.
    pub(super) fn answered(&mut self, took: Duration) {
        self.latencies.add(took);
        self.strikes = 0;
        self.failures = 0;
    }

    /// Counts a timeout. Returns whether the limit ([`STRIKES_MAX`]) is reached.
    pub(super) const fn strike(&mut self) -> bool {
        self.strikes += 1;
        self.strikes >= STRIKES_MAX
    }

    /// Counts a failure, and sets the backoff. Failures during a backoff are not counted again, because one broken
    /// connection fails many queries. `backoff` maps the number of failures to a duration.
    pub(super) fn fail(&mut self, now: Duration, backoff: impl FnOnce(u32) -> Duration) {
        self.strikes = 0;
        (self.observed, self.returning) = (None, None);
        if self.is_failing() && now < self.retry_at {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        debug_assert!(self.freshness(Duration::ZERO).is_none(), "a failed replica knows nothing");
        self.retry_at = now + backoff(self.failures);
    }

    /// Whether a recovery probe is due.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_failing() && self.returning.is_none() && !self.probing && now >= self.retry_at
    }

    /// Starts a probe in the current round, unless one is in flight or the backoff lasts. Returns whether it started.
    pub(super) fn begin_probe(&mut self, now: Duration) -> bool {
        let probed = !self.probing && (!self.is_failing() || now >= self.retry_at);
        self.probing |= probed;
        probed
    }

    /// Whether a probe of this replica is in flight, and none has succeeded since `since`.
    pub(super) fn is_in_doubt(&self, since: Duration) -> bool {
        self.probing && !self.is_failing() && self.freshness(since).is_none()
    }

    pub(super) const fn end_probe(&mut self) {
        self.probing = false;
    }

    /// Whether the comparison of replicas must wait for this replica's probe.
    pub(super) const fn is_awaited(&self) -> bool {
        self.probing && !self.is_failing()
    }

    /// Records the freshness of an answered probe. For a failing replica, the freshness counts only once it no longer
    /// fails.
    pub(super) const fn observe(&mut self, freshness: Freshness, at: Duration) {
        let observed = Some(Observation { freshness, at });
        if self.is_failing() {
            self.returning = observed;
        } else {
            self.observed = observed;
        }
        self.strikes = 0;
    }

    /// Ends the backoff if the replica has answered its probe. Called when all probes have ended.
    pub(super) const fn end_backoff(&mut self) {
        if let Some(observed) = self.returning.take() {
            self.observed = Some(observed);
            self.failures = 0;
        }
    }
}
