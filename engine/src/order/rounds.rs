use super::{BackOff, Jitter};
use std::time::Duration;

/// Schedule of rounds, and the maximum number of failures.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pacing {
    /// The first round of a recovery starts at a random time within this duration.
    pub(crate) spread: Duration,
    /// Backoff after rounds without a new batch.
    pub(crate) back_off: BackOff,
    /// Maximum number of consecutive rounds without a new batch; at least 1.
    pub(crate) attempts_max: u32,
    pub(crate) jitter_seed: u64,
}

/// Requests for one source's missing batches: one round at a time, with exponential backoff after failures.
/// `R` is the state of the current round.
#[derive(Debug, Clone)]
pub(crate) struct Rounds<R> {
    pacing: Pacing,
    /// When the planned round starts.
    due: Option<Duration>,
    round: Option<(u64, R)>,
    started: u64,
    /// Consecutive rounds without a new batch.
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

    /// The current round.
    pub(crate) fn under_way(&self) -> Option<&R> {
        self.round.as_ref().map(|(_, round)| round)
    }

    /// The current round, if it has this `number`. Late replies of other rounds are ignored.
    pub(crate) fn current(&mut self, number: u64) -> Option<&mut R> {
        self.round.as_mut().filter(|(at, _)| *at == number).map(|(_, round)| round)
    }

    /// Ends the current round, if it has this `number`.
    pub(crate) fn finish(&mut self, number: u64) -> Option<R> {
        self.round.take_if(|(at, _)| *at == number).map(|(_, round)| round)
    }

    /// Cancels the current round; returns its number.
    pub(crate) fn abandon(&mut self) -> Option<u64> {
        self.round.take().map(|(number, _)| number)
    }

    /// Records that a round obtained missing batches.
    pub(crate) const fn succeeded(&mut self) {
        self.fruitless = 0;
    }

    /// Records a round without a new batch. Returns `true` if it was the last attempt.
    pub(crate) const fn failed(&mut self) -> bool {
        self.fruitless = self.fruitless.saturating_add(1);
        self.is_exhausted()
    }

    /// Whether all attempts are used up.
    pub(crate) const fn is_exhausted(&self) -> bool {
        self.fruitless >= self.pacing.attempts_max
    }

    /// Records that a round found another incarnation. This alone never exhausts the attempts, but causes
    /// backoff from frequent restarts.
    pub(crate) fn restarted(&mut self) {
        self.fruitless = (self.fruitless + 1).min(self.pacing.attempts_max.saturating_sub(1));
    }

    /// Whether the current attempt is the last one if it fails.
    pub(crate) const fn is_last_attempt(&self) -> bool {
        self.fruitless + 1 >= self.pacing.attempts_max
    }

    /// Plans a round, unless one is planned or running.
    pub(crate) fn plan_round(&mut self, now: Duration) {
        if self.round.is_some() || self.due.is_some() {
            return;
        }
        let delay = match self.fruitless {
            0 => self.jitter.up_to(self.pacing.spread),
            failed => self.pacing.back_off.delay_after(failed, &mut self.jitter),
        };
        self.due = Some(now + delay);
    }

    /// Plans a round for a random time between `at - early` and `at`.
    pub(crate) fn plan_for(&mut self, at: Duration, early: Duration) {
        debug_assert!(self.round.is_none(), "one round at a time");
        self.due = Some(at.saturating_sub(self.jitter.up_to(early)));
    }

    /// Cancels the planned round, because no batch is missing.
    pub(crate) const fn cancel_planned(&mut self) {
        self.due = None;
    }

    /// Whether it is time to start the planned round.
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

    /// When to check [`Rounds::is_due`] next.
    pub(crate) const fn deadline(&self) -> Option<Duration> {
        self.due
    }

    /// Whether a round is planned or running.
    pub(crate) const fn is_active(&self) -> bool {
        self.round.is_some() || self.due.is_some()
    }
}
