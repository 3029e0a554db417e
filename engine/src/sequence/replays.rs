use super::config::SequencerConfig;
use crate::order::{BackOff, Pacing, Rounds};
use std::mem;
use std::time::Duration;

/// The current round of replay.
#[derive(Debug, Clone)]
pub(super) struct Round {
    /// The cursor that the round starts from, inclusive; `None` if it requests all batches.
    pub(super) cursor: Option<u64>,
    /// Number of the latest reply.
    pub(super) last: Option<u64>,
    pub(super) replies: u64,
    /// Whether a reply was the cursor's batch or followed it. Later replies then belong to the same
    /// incarnation.
    pub(super) proved: bool,
    /// Whether a reply was a new batch.
    pub(super) brought: bool,
}

/// Replay rounds of one source: a round fetches missing batches, or only checks whether batches are missing.
#[derive(Debug, Clone)]
pub(super) struct Replays {
    pub(super) rounds: Rounds<Round>,
    probe_interval: Duration,
    /// Whether the planned round is a probe.
    probing: bool,
    /// Whether the current round confirms the last successful one.
    confirming: bool,
}

impl Replays {
    pub(super) fn new(config: &SequencerConfig) -> Self {
        let rounds = Rounds::new(Pacing {
            spread: config.replay_spread,
            back_off: BackOff { min: config.retry_min, max: config.retry_max },
            attempts_max: config.replay_attempts_max,
            jitter_seed: config.jitter_seed,
        });
        let probe_interval = config.probe_interval;
        Self { rounds, probe_interval, probing: false, confirming: false }
    }

    /// Whether a round is running, or planned because batches are missing.
    pub(super) const fn is_recovering(&self) -> bool {
        self.rounds.is_active() && !self.probing
    }

    /// Resets failures and plans after a new connection.
    pub(super) const fn reset(&mut self) {
        self.rounds.cancel_planned();
        self.rounds.succeeded();
        self.probing = false;
        self.confirming = false;
    }

    /// Counts a failed round. Returns `true` if it was the last attempt.
    pub(super) const fn exhausted_by(&mut self, round: &Round) -> bool {
        if round.brought {
            self.rounds.succeeded();
            return false;
        }
        self.rounds.failed()
    }

    /// Whether the current round is the last attempt if it brings no new batch.
    pub(super) fn is_last_attempt(&self) -> bool {
        self.rounds.under_way().is_none_or(|round| !round.brought) && self.rounds.is_last_attempt()
    }

    /// Plans a recovery round, unless one is planned or running.
    pub(super) fn recover(&mut self, now: Duration) {
        if mem::take(&mut self.probing) {
            self.rounds.cancel_planned();
        }
        self.rounds.plan_round(now);
    }

    /// Plans a confirming round after a successful one. Returns `false` if this was the confirming round.
    pub(super) fn confirm(&mut self, now: Duration) -> bool {
        if self.confirming {
            return false;
        }
        self.confirming = true;
        self.rounds.succeeded();
        self.recover(now);
        true
    }

    /// Plans the next probe: either no batch is missing, or all attempts are used up.
    pub(super) fn probe_later(&mut self, now: Duration) {
        self.reset();
        self.probing = true;
        self.rounds.plan_for(now + self.probe_interval, self.probe_interval / 8);
    }

    /// Starts the planned round if it is due; returns its number.
    pub(super) fn start_due(&mut self, now: Duration, cursor: Option<u64>) -> Option<u64> {
        if !self.rounds.is_due(now) {
            return None;
        }
        self.probing = false;
        let round = Round { cursor, last: None, replies: 0, proved: false, brought: false };
        Some(self.rounds.start(round))
    }
}
