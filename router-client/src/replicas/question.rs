use super::{HEDGE_COST, HEDGES_SAVED_MAX, REPLICAS_MAX, Replica, Replicas, Status};
use std::time::Duration;

/// One query in progress.
#[derive(Debug)]
pub(crate) struct Question {
    /// Deadline of the query.
    until: Duration,
    /// When to hedge to a replica that is as fresh as one in flight.
    hedge_at: Duration,
    /// When to hedge to any replica.
    late_at: Duration,
    attempts: [Attempt; REPLICAS_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    None,
    /// Start of the request, and whether it is a hedge.
    InFlight {
        since: Duration,
        hedge: bool,
    },
    Done,
}

/// Next step for a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Query this replica, then immediately call [`Replicas::step`] again.
    Ask(usize),
    /// Call again after the next outcome, or at this time.
    Wait(Duration),
    /// End the query: no replica answers.
    End,
}

/// How a request to one replica ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The replica answered, whether or not the answer is useful.
    Answered,
    /// The replica failed or cannot be reached.
    Failed,
}

impl Question {
    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let waiting = |(_, at): &(usize, &Attempt)| matches!(at, Attempt::InFlight { .. });
        self.attempts.iter().enumerate().filter(waiting).map(|(number, _)| number)
    }
}

impl Replicas {
    /// Starts a query with the deadline `until`.
    pub(crate) fn question(&mut self, until: Duration) -> Question {
        self.counts.questions += 1;
        self.turn = self.turn.wrapping_add(1);
        let credit = self.hedge_credit + self.config.percent.min(HEDGE_COST);
        self.hedge_credit = credit.min(HEDGES_SAVED_MAX * HEDGE_COST);
        Question { until, hedge_at: until, late_at: until, attempts: [Attempt::None; REPLICAS_MAX] }
    }

    /// Returns the next step for a query: query a replica, wait, or end.
    pub(crate) fn step(&mut self, question: &mut Question, now: Duration) -> Step {
        if now >= question.until {
            return Step::End;
        }
        let next = self.next(question, now);
        if question.waiting().next().is_none() {
            let Some(next) = next else { return Step::End };
            self.counts.failovers += u64::from(question.attempts.contains(&Attempt::Done));
            return self.query_replica(question, next, now, false);
        }
        let Some(next) = next else { return Step::Wait(question.until) };
        let stuck = self.is_stuck(question);
        if stuck && !self.is_failing(next) {
            self.counts.failovers += 1;
            return self.query_replica(question, next, now, false);
        }
        if now >= question.hedge_at {
            // If all replicas are failing, each query tries one replica, and the credit is saved.
            let helps = !stuck && (now >= question.late_at || !self.is_worse(question, next, now));
            let credit = self.hedge_credit.checked_sub(HEDGE_COST);
            if let Some(credit) = credit.filter(|_| helps) {
                debug_assert!(credit <= (HEDGES_SAVED_MAX - 1) * HEDGE_COST, "credit is bounded");
                self.hedge_credit = credit;
                self.counts.hedges += 1;
                return self.query_replica(question, next, now, true);
            }
            // By then, a replica in flight may have failed.
            question.hedge_at = now + self.config.delay_max;
            if now < question.late_at {
                question.hedge_at = question.hedge_at.min(question.late_at);
            }
        }
        Step::Wait(question.hedge_at.min(question.until))
    }

    /// Whether all replicas in flight are in backoff.
    fn is_stuck(&self, question: &Question) -> bool {
        question.waiting().all(|number| self.is_failing(number))
    }

    /// Whether a replica is less fresh than one in flight, so that its answer may lack blocks.
    fn is_worse(&self, question: &Question, next: usize, now: Duration) -> bool {
        let statuses = self.statuses(now);
        let class = |number: usize| statuses.get(number).map(Status::class);
        question.waiting().any(|number| class(number) < class(next))
    }

    /// The best replica that has not been queried yet.
    fn next(&self, question: &Question, now: Duration) -> Option<usize> {
        let statuses = self.statuses(now);
        let count = self.all.len();
        let unasked = (0..count).filter(|at| question.attempts.get(*at) == Some(&Attempt::None));
        let turns = |at: usize| (at + count - self.turn % count) % count;
        unasked.min_by_key(|at| (statuses.get(*at).copied(), turns(*at)))
    }

    /// Chooses replica `number` for the query. Sets the times at which another replica is queried as well, or instead.
    /// `hedge` is true if another replica is in flight.
    fn query_replica(
        &mut self,
        question: &mut Question,
        number: usize,
        now: Duration,
        hedge: bool,
    ) -> Step {
        self.counts.asked += 1;
        if self.is_failing(number) && self.is_stuck(question) {
            question.until = question.until.min(now + self.config.delay_max);
        }
        // This leaves time for another replica.
        question.late_at = now + question.until.saturating_sub(now) / 2;
        question.hedge_at = question.late_at.min(now + self.delay(number));
        if let Some(attempt) = question.attempts.get_mut(number) {
            debug_assert_eq!(*attempt, Attempt::None, "no replica is asked twice for a question");
            *attempt = Attempt::InFlight { since: now, hedge };
        }
        Step::Ask(number)
    }

    /// How long to wait for a replica before hedging.
    fn delay(&self, number: usize) -> Duration {
        let usual = self.all.get(number).and_then(Replica::p95);
        let usual = usual.unwrap_or(self.config.delay_max);
        usual.max(self.config.delay_min).min(self.config.delay_max)
    }

    /// Records how a request to a replica ended: resets or counts failures, and stores the duration of an answer.
    pub(crate) fn ended(
        &mut self,
        question: &mut Question,
        number: usize,
        outcome: Outcome,
        now: Duration,
    ) {
        let Some(asked) = question.attempts.get_mut(number) else { return };
        let Attempt::InFlight { since, hedge } = std::mem::replace(asked, Attempt::Done) else {
            return;
        };
        match outcome {
            Outcome::Answered => {
                self.counts.hedges_won += u64::from(hedge);
                let Some(at) = self.all.get_mut(number) else { return };
                if at.is_failing() {
                    // The replica is back: probe its freshness.
                    self.round_at = now;
                }
                at.answered(now.saturating_sub(since));
            }
            Outcome::Failed => self.fail(number, now),
        }
    }

    /// Ends a query, answered or not. Each replica still in flight gets a strike if it exceeded its usual delay.
    pub(crate) fn close(&mut self, question: &Question, now: Duration) {
        for (number, asked) in question.attempts.iter().enumerate() {
            let Attempt::InFlight { since, .. } = *asked else { continue };
            if now.saturating_sub(since) < self.delay(number) {
                continue;
            }
            if self.all.get_mut(number).is_some_and(Replica::strike) {
                self.fail(number, now);
            }
        }
    }
}
