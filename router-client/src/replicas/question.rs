use super::{HEDGE_COST, HEDGES_SAVED_MAX, REPLICAS_MAX, Replica, Replicas, Standing};
use std::time::Duration;

/// One question on its way.
#[derive(Debug)]
pub(crate) struct Question {
    /// When it is given up.
    until: Duration,
    /// When the next replica is asked as well, if it is as good as one that is waited for,
    hedge_at: Duration,
    /// and if it is not.
    late_at: Duration,
    asked: [Asked; REPLICAS_MAX],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Not,
    /// Since when, and whether another was slow then.
    Waiting {
        since: Duration,
        hedge: bool,
    },
    Over,
}

/// What to do next for a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Ask this replica, and come again at once.
    Ask(usize),
    /// Come again with the first outcome, or at this time.
    Wait(Duration),
    /// Nobody answers.
    End,
}

/// What became of asking one replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It answered; whether the answer is of use is not its affair.
    Answered,
    /// It failed, or cannot be reached.
    Failed,
}

impl Question {
    fn waiting(&self) -> impl Iterator<Item = usize> + '_ {
        let waiting = |(_, at): &(usize, &Asked)| matches!(at, Asked::Waiting { .. });
        self.asked.iter().enumerate().filter(waiting).map(|(number, _)| number)
    }
}

impl Replicas {
    /// A question that is given up at `until`.
    pub(crate) fn question(&mut self, until: Duration) -> Question {
        self.counts.questions += 1;
        self.turn = self.turn.wrapping_add(1);
        let credit = self.hedge_credit + self.config.percent.min(HEDGE_COST);
        self.hedge_credit = credit.min(HEDGES_SAVED_MAX * HEDGE_COST);
        Question { until, hedge_at: until, late_at: until, asked: [Asked::Not; REPLICAS_MAX] }
    }

    /// What to do for a question now.
    pub(crate) fn step(&mut self, question: &mut Question, now: Duration) -> Step {
        if now >= question.until {
            return Step::End;
        }
        let next = self.next(question, now);
        if question.waiting().next().is_none() {
            let Some(next) = next else { return Step::End };
            self.counts.failovers += u64::from(question.asked.contains(&Asked::Over));
            return self.ask(question, next, now, false);
        }
        let Some(next) = next else { return Step::Wait(question.until) };
        let stuck = self.is_stuck(question);
        if stuck && !self.is_failing(next) {
            self.counts.failovers += 1;
            return self.ask(question, next, now, false);
        }
        if now >= question.hedge_at {
            // Where all fail, each question tries one: what is saved up is for better times.
            let helps = !stuck && (now >= question.late_at || !self.is_worse(question, next, now));
            let credit = self.hedge_credit.checked_sub(HEDGE_COST);
            if let Some(credit) = credit.filter(|_| helps) {
                self.hedge_credit = credit;
                self.counts.hedges += 1;
                return self.ask(question, next, now, true);
            }
            // Who is waited for may be found to fail until then.
            question.hedge_at = now + self.config.delay_max;
            if now < question.late_at {
                question.hedge_at = question.hedge_at.min(question.late_at);
            }
        }
        Step::Wait(question.hedge_at.min(question.until))
    }

    /// Whether all that are waited for were found to fail.
    fn is_stuck(&self, question: &Question) -> bool {
        question.waiting().all(|number| self.is_failing(number))
    }

    /// Whether a replica is less good than one that is waited for, so that its answer may lack what
    /// that one's has.
    fn is_worse(&self, question: &Question, next: usize, now: Duration) -> bool {
        let standings = self.standings(now);
        let class = |number: usize| standings.get(number).map(Standing::class);
        question.waiting().any(|number| class(number) < class(next))
    }

    /// The best replica that was not asked.
    fn next(&self, question: &Question, now: Duration) -> Option<usize> {
        let (standings, count) = (self.standings(now), self.all.len());
        let unasked = (0..count).filter(|at| question.asked.get(*at) == Some(&Asked::Not));
        let turns = |at: usize| (at + count - self.turn % count) % count;
        unasked.min_by_key(|at| (standings.get(*at).copied(), turns(*at)))
    }

    fn ask(&mut self, question: &mut Question, number: usize, now: Duration, hedge: bool) -> Step {
        self.counts.asked += 1;
        if self.is_failing(number) && self.is_stuck(question) {
            question.until = question.until.min(now + self.config.delay_max);
        }
        // Time is left for another.
        question.late_at = now + question.until.saturating_sub(now) / 2;
        question.hedge_at = question.late_at.min(now + self.delay(number));
        if let Some(asked) = question.asked.get_mut(number) {
            *asked = Asked::Waiting { since: now, hedge };
        }
        Step::Ask(number)
    }

    /// How long a replica is waited for before another is asked as well.
    fn delay(&self, number: usize) -> Duration {
        let usual = self.all.get(number).and_then(Replica::p95);
        let usual = usual.unwrap_or(self.config.delay_max);
        usual.max(self.config.delay_min).min(self.config.delay_max)
    }

    /// What became of asking a replica.
    pub(crate) fn ended(
        &mut self,
        question: &mut Question,
        number: usize,
        outcome: Outcome,
        now: Duration,
    ) {
        let Some(asked) = question.asked.get_mut(number) else { return };
        let Asked::Waiting { since, hedge } = std::mem::replace(asked, Asked::Over) else { return };
        match outcome {
            Outcome::Answered => {
                self.counts.hedges_won += u64::from(hedge);
                let Some(at) = self.all.get_mut(number) else { return };
                if at.is_failing() {
                    // It is back: what does it know?
                    self.round_at = now;
                }
                at.answered(now.saturating_sub(since));
            }
            Outcome::Failed => self.fail(number, now),
        }
    }

    /// The question is over, answered or not: who is still waited for was too slow, if it had its
    /// time.
    pub(crate) fn close(&mut self, question: &Question, now: Duration) {
        for (number, asked) in question.asked.iter().enumerate() {
            let Asked::Waiting { since, .. } = *asked else { continue };
            if now.saturating_sub(since) < self.delay(number) {
                continue;
            }
            if self.all.get_mut(number).is_some_and(Replica::strike) {
                self.fail(number, now);
            }
        }
    }
}
