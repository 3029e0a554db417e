use super::{Freshness, latency::Latencies};
use std::time::Duration;

/// Questions in a row that others answered, or nobody, while this one had its time.
const STRIKES_MAX: u32 = 3;

/// What is known of one replica.
#[derive(Debug, Clone, Default)]
pub(super) struct Replica {
    latencies: Latencies,
    proven: Option<Proven>,
    /// The same while it is in back-off, until others have answered that were asked with it.
    back: Option<Proven>,
    /// Failures in a row; while there are any it is in back-off.
    failures: u32,
    strikes: u32,
    /// When it may be tried again.
    retry_at: Duration,
    probing: bool,
}

/// What a replica knew.
#[derive(Debug, Clone, Copy)]
struct Proven {
    freshness: Freshness,
    /// When it said so.
    at: Duration,
}

/// How good a choice a replica is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Standing {
    /// As fresh as any.
    Fresh,
    /// It knows less than another.
    Behind(Freshness),
    /// What it knows is not known.
    Unknown,
    /// In back-off.
    Failing,
}

impl Standing {
    /// Replicas of one class are as good to ask a second time.
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

    /// What it knows, if it has said so since `since`.
    pub(super) fn freshness(&self, since: Duration) -> Option<Freshness> {
        let recent = |proven: &Proven| proven.at >= since && !self.is_failing();
        self.proven.filter(recent).map(|proven| proven.freshness)
    }

    pub(super) fn standing(&self, best: Option<Freshness>, since: Duration) -> Standing {
        if self.is_failing() {
            return Standing::Failing;
        }
        match self.freshness(since).zip(best) {
            Some((own, best)) if own.keeps_up_with(&best) => Standing::Fresh,
            Some((own, _)) => Standing::Behind(own),
            None => Standing::Unknown,
        }
    }

    /// It answered a question.
    pub(super) fn answered(&mut self, took: Duration) {
        self.latencies.add(took);
        self.strikes = 0;
        self.failures = 0;
    }

    /// It had its time and did not answer. Whether that is too often.
    pub(super) const fn strike(&mut self) -> bool {
        self.strikes += 1;
        self.strikes >= STRIKES_MAX
    }

    /// It failed. One break fails many questions, so it counts once until it may be tried again.
    /// `backoff` says for how long it is left alone after so many failures.
    pub(super) fn fail(&mut self, now: Duration, backoff: impl FnOnce(u32) -> Duration) {
        self.strikes = 0;
        (self.proven, self.back) = (None, None);
        if self.is_failing() && now < self.retry_at {
            return;
        }
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + backoff(self.failures);
    }

    /// Whether it is time to look whether it is back.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.is_failing() && self.back.is_none() && !self.probing && now >= self.retry_at
    }

    /// Whether it is probed in the round that begins now.
    pub(super) fn begin_probe(&mut self, now: Duration) -> bool {
        let probed = !self.probing && (!self.is_failing() || now >= self.retry_at);
        self.probing |= probed;
        probed
    }

    /// Whether it is about to say what it knows, and has not said so since `since`.
    pub(super) fn is_in_doubt(&self, since: Duration) -> bool {
        self.probing && !self.is_failing() && self.freshness(since).is_none()
    }

    pub(super) const fn end_probe(&mut self) {
        self.probing = false;
    }

    /// Whether its answer to a probe counts when another is judged.
    pub(super) const fn is_awaited(&self) -> bool {
        self.probing && !self.is_failing()
    }

    /// It answered a probe.
    pub(super) const fn proven(&mut self, freshness: Freshness, at: Duration) {
        let proven = Some(Proven { freshness, at });
        if self.is_failing() {
            self.back = proven;
        } else {
            self.proven = proven;
        }
        self.strikes = 0;
    }

    /// All have answered: if it did while it was in back-off, that is over.
    pub(super) const fn settle(&mut self) {
        if let Some(proven) = self.back.take() {
            self.proven = Some(proven);
            self.failures = 0;
        }
    }
}
