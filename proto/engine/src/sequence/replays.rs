use super::config::SequencerConfig;
use crate::order::{BackOff, Jitter};
use std::time::Duration;

/// When the next round of replay starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// Not at all: disconnected, no replay socket, or a round is under way.
    None,
    /// To see whether all is well.
    Probe(Duration),
    /// Because something is missing.
    Recover(Duration),
}

/// A round of replay under way.
#[derive(Debug, Clone)]
pub(super) struct Round {
    pub(super) number: u64,
    /// The cursor it asked from, inclusive; none if it asked for everything.
    pub(super) cursor: Option<u64>,
    /// Number of the latest reply.
    pub(super) last: Option<u64>,
    pub(super) replies: u64,
    /// Whether a reply was the cursor's batch or went on from it: what follows is of its life.
    pub(super) proved: bool,
    /// Whether a reply was news.
    pub(super) brought: bool,
}

/// Pacing of the rounds of replay of one source: one at a time, backed off while they bring
/// nothing.
#[derive(Debug, Clone)]
pub(super) struct Replays {
    plan: Plan,
    round: Option<Round>,
    rounds_started: u64,
    /// Rounds in a row that brought nothing and did not end well.
    fruitless: u32,
    /// Whether the round that ended well last is being confirmed by another.
    confirming: bool,
    jitter: Jitter,
}

impl Replays {
    pub(super) const fn new(jitter_seed: u64) -> Self {
        Self {
            plan: Plan::None,
            round: None,
            rounds_started: 0,
            fruitless: 0,
            confirming: false,
            jitter: Jitter::new(jitter_seed),
        }
    }

    pub(super) const fn round(&self) -> Option<&Round> {
        self.round.as_ref()
    }

    pub(super) const fn plan(&self) -> Plan {
        self.plan
    }

    pub(super) const fn fruitless(&self) -> u32 {
        self.fruitless
    }

    /// The round under way, if that is its number: what comes late from another is ignored.
    pub(super) fn current(&mut self, number: u64) -> Option<&mut Round> {
        self.round.as_mut().filter(|round| round.number == number)
    }

    /// Ends the round, if that is its number.
    pub(super) fn finish(&mut self, number: u64) -> Option<Round> {
        self.round.take_if(|round| round.number == number)
    }

    /// Ends whatever round is under way.
    pub(super) const fn abandon(&mut self) -> Option<Round> {
        self.round.take()
    }

    /// Forgets failures and plans: a new connection is a new chance.
    pub(super) const fn reset(&mut self) {
        self.plan = Plan::None;
        self.fruitless = 0;
        self.confirming = false;
    }

    /// Counts a round that did not end well; `true` if that was the last attempt.
    pub(super) const fn exhausted_by(&mut self, round: &Round, config: &SequencerConfig) -> bool {
        self.fruitless = if round.brought { 0 } else { self.fruitless + 1 };
        self.fruitless >= config.replay_attempts_max
    }

    /// Counts a round whose life came to an end. That alone never exhausts the attempts, but
    /// restarts in quick succession are backed off from.
    pub(super) fn outlived(&mut self, config: &SequencerConfig) {
        self.fruitless = (self.fruitless + 1).min(config.replay_attempts_max.saturating_sub(1));
    }

    /// Whether no further attempt follows the round under way if it brings nothing.
    pub(super) fn is_last_attempt(&self, config: &SequencerConfig) -> bool {
        let fruitless = self.round.as_ref().is_none_or(|round| !round.brought);
        fruitless && self.fruitless + 1 >= config.replay_attempts_max
    }

    /// Plans a round to recover, unless one is planned or under way.
    pub(super) fn recover(&mut self, now: Duration, config: &SequencerConfig) {
        if self.round.is_some() || matches!(self.plan, Plan::Recover(_)) {
            return;
        }
        let back_off = BackOff { min: config.retry_min, max: config.retry_max };
        let delay = match self.fruitless {
            0 => self.jitter.up_to(config.replay_spread),
            failed => back_off.after(failed, &mut self.jitter),
        };
        self.plan = Plan::Recover(now + delay);
    }

    /// Plans a second round after one that ended well; `false` if that was the second.
    pub(super) fn confirm(&mut self, now: Duration, config: &SequencerConfig) -> bool {
        if self.confirming {
            return false;
        }
        self.confirming = true;
        self.fruitless = 0;
        self.recover(now, config);
        true
    }

    /// Plans the next probe: nothing is missing, or all that could be done was done.
    pub(super) fn probe_later(&mut self, now: Duration, config: &SequencerConfig) {
        self.fruitless = 0;
        self.confirming = false;
        let early = self.jitter.up_to(config.probe_interval / 8);
        self.plan = Plan::Probe(now + config.probe_interval - early);
    }

    /// Starts the planned round if its time has come; returns its number.
    pub(super) fn start_due(&mut self, now: Duration, cursor: Option<u64>) -> Option<u64> {
        match self.plan {
            Plan::Probe(at) | Plan::Recover(at) if at <= now => {}
            Plan::None | Plan::Probe(_) | Plan::Recover(_) => return None,
        }
        self.plan = Plan::None;
        self.rounds_started += 1;
        let number = self.rounds_started;
        self.round =
            Some(Round { number, cursor, last: None, replies: 0, proved: false, brought: false });
        Some(number)
    }

    /// When [`Replays::start_due`] is to be called next.
    pub(super) const fn deadline(&self) -> Option<Duration> {
        match self.plan {
            Plan::None => None,
            Plan::Probe(at) | Plan::Recover(at) => Some(at),
        }
    }
}
