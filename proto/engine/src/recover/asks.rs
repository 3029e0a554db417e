use super::config::RecoveryConfig;
use crate::order::{BackOff, Jitter};
use std::time::Duration;

/// What a round under way was asked for, and how far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A range: whether a batch of it was news.
    Range { brought: bool },
    /// A dump: whether a part of it is in the index.
    Dump { begun: bool },
}

/// A round under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Round {
    pub(super) number: u64,
    pub(super) kind: Kind,
}

/// Pacing of the rounds of one source: one at a time, backed off while they bring nothing.
#[derive(Debug, Clone)]
pub(super) struct Asks {
    /// When the next round starts.
    due: Option<Duration>,
    round: Option<Round>,
    started: u64,
    /// Rounds in a row that brought nothing.
    fruitless: u32,
    jitter: Jitter,
}

impl Asks {
    pub(super) const fn new(jitter_seed: u64) -> Self {
        let jitter = Jitter::new(jitter_seed);
        Self { due: None, round: None, started: 0, fruitless: 0, jitter }
    }

    pub(super) const fn round(&self) -> Option<Round> {
        self.round
    }

    /// Whether a dump is being read into the index.
    pub(super) fn is_dumping(&self) -> bool {
        self.round.is_some_and(|round| round.kind == Kind::Dump { begun: true })
    }

    /// The round under way, if that is its number: what comes late from another is ignored.
    pub(super) fn current(&mut self, number: u64) -> Option<&mut Round> {
        self.round.as_mut().filter(|round| round.number == number)
    }

    /// Ends the round, if that is its number.
    pub(super) fn finish(&mut self, number: u64) -> Option<Round> {
        self.round.take_if(|round| round.number == number)
    }

    /// Ends whatever round is under way, and forgets what was planned.
    pub(super) const fn abandon(&mut self) -> Option<Round> {
        self.due = None;
        self.round.take()
    }

    /// A round brought what was missing, or some of it.
    pub(super) const fn succeeded(&mut self) {
        self.fruitless = 0;
    }

    /// A round brought nothing; whether these were as many in a row as may be.
    pub(super) fn failed(&mut self, config: &RecoveryConfig) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        self.fruitless >= config.attempts_max
    }

    /// An answer named another life. That alone never exhausts the attempts, but lives in quick
    /// succession are backed off from.
    pub(super) fn outlived(&mut self, config: &RecoveryConfig) {
        self.fruitless = (self.fruitless + 1).min(config.attempts_max.saturating_sub(1));
    }

    /// Plans a round, unless one is planned or under way.
    pub(super) fn plan(&mut self, now: Duration, config: &RecoveryConfig) {
        if self.round.is_some() || self.due.is_some() {
            return;
        }
        let back_off = BackOff { min: config.retry_min, max: config.retry_max };
        let delay = match self.fruitless {
            0 => self.jitter.up_to(config.ask_spread),
            failed => back_off.after(failed, &mut self.jitter),
        };
        self.due = Some(now + delay);
    }

    /// Nothing is missing: nothing is planned.
    pub(super) const fn rest(&mut self) {
        self.due = None;
    }

    /// Whether the planned round is to start.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Starts a round; returns its number.
    pub(super) fn start(&mut self, kind: Kind) -> u64 {
        self.due = None;
        self.started += 1;
        self.round = Some(Round { number: self.started, kind });
        self.started
    }

    /// When [`Asks::is_due`] is to be looked at next.
    pub(super) const fn deadline(&self) -> Option<Duration> {
        self.due
    }
}
