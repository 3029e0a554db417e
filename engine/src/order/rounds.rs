use super::{BackOff, Jitter};
use std::time::Duration;

/// When rounds start, and how many may fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacing {
    /// The first round of a recovery starts within this time, at random.
    pub(crate) spread: Duration,
    /// Between rounds that bring nothing.
    pub(crate) back_off: BackOff,
    /// Rounds in a row that may bring nothing; at least 1.
    pub(crate) attempts_max: u32,
    pub(crate) jitter_seed: u64,
}

/// Requests for what is missing of one source: one round at a time, backed off while they bring
/// nothing. `R` is what is known of a round under way.
#[derive(Debug, Clone)]
pub(crate) struct Rounds<R> {
    pacing: Pacing,
    /// When the planned round starts.
    due: Option<Duration>,
    round: Option<(u64, R)>,
    started: u64,
    /// Rounds in a row that brought nothing.
    fruitless: u32,
    jitter: Jitter,
}

impl<R> Rounds<R> {
    pub(crate) fn new(pacing: Pacing) -> Self {
        Self {
            pacing: Pacing { attempts_max: pacing.attempts_max.max(1), ..pacing },
            due: None,
            round: None,
            started: 0,
            fruitless: 0,
            jitter: Jitter::new(pacing.jitter_seed),
        }
    }

    /// The round under way.
    pub(crate) fn under_way(&self) -> Option<&R> {
        self.round.as_ref().map(|(_, round)| round)
    }

    /// The round under way, if that is its number: what comes late from another is ignored.
    pub(crate) fn current(&mut self, number: u64) -> Option<&mut R> {
        self.round.as_mut().filter(|(at, _)| *at == number).map(|(_, round)| round)
    }

    /// Ends the round, if that is its number.
    pub(crate) fn finish(&mut self, number: u64) -> Option<R> {
        self.round.take_if(|(at, _)| *at == number).map(|(_, round)| round)
    }

    /// Ends the round under way; returns its number.
    pub(crate) fn abandon(&mut self) -> Option<u64> {
        self.round.take().map(|(number, _)| number)
    }

    /// A round brought what was missing, or some of it.
    pub(crate) const fn succeeded(&mut self) {
        self.fruitless = 0;
    }

    /// A round brought nothing; `true` if that was the last attempt.
    pub(crate) const fn failed(&mut self) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        self.is_exhausted()
    }

    /// Whether no attempt is left.
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.fruitless >= self.pacing.attempts_max
    }

    /// A round found another incarnation. That alone never exhausts the attempts, but restarts in
    /// quick succession are backed off from.
    pub(crate) fn restarted(&mut self) {
        self.fruitless = (self.fruitless + 1).min(self.pacing.attempts_max.saturating_sub(1));
    }

    /// Whether no further attempt follows one that brings nothing.
    pub(crate) const fn is_last_attempt(&self) -> bool {
        self.fruitless + 1 >= self.pacing.attempts_max
    }

    /// Plans a round, unless one is planned or under way.
    pub(crate) fn plan(&mut self, now: Duration) {
        if self.round.is_some() || self.due.is_some() {
            return;
        }
        let delay = match self.fruitless {
            0 => self.jitter.up_to(self.pacing.spread),
            failed => self.pacing.back_off.after(failed, &mut self.jitter),
        };
        self.due = Some(now + delay);
    }

    /// Plans a round for `at`, or for up to `early` before that, at random.
    pub(crate) fn plan_for(&mut self, at: Duration, early: Duration) {
        debug_assert!(self.round.is_none(), "one round at a time");
        self.due = Some(at.saturating_sub(self.jitter.up_to(early)));
    }

    /// Nothing is missing: nothing is planned.
    pub(crate) const fn rest(&mut self) {
        self.due = None;
    }

    /// Whether the planned round is to start.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Starts a round; returns its number.
    pub(crate) fn start(&mut self, round: R) -> u64 {
        debug_assert!(self.round.is_none(), "one round at a time");
        self.due = None;
        self.started += 1;
        self.round = Some((self.started, round));
        self.started
    }

    /// When [`Rounds::is_due`] is to be checked next.
    pub(crate) const fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Whether a round is planned or under way.
    pub(crate) const fn is_active(&self) -> bool {
        self.round.is_some() || self.due.is_some()
    }
}
