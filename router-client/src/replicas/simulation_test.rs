//! Simulates replicas that die, hang, return and start without data, over virtual time: which questions are answered,
//! and what that costs.

use super::*;
use proptest::prelude::*;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

const DEADLINE: Duration = Duration::from_millis(90);
const LENGTH: Duration = Duration::from_secs(10);
/// Time between two questions.
const PACE: Duration = Duration::from_millis(1);
/// Time after which a warm replica is known to be warm.
const SETTLED: Duration = Duration::from_secs(4);

/// Time after which a probe that began after a change was answered.
const PROBED: Duration = Duration::from_secs(2);

/// Time after which a question reaches a replica that is up again.
const FOUND_AGAIN: Duration = Duration::from_millis(10);

/// Behaviour of a replica during a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mood {
    /// Answers with all data.
    Warm,
    /// Answers without data.
    Cold,
    /// Refuses requests.
    Dead,
    /// Never answers.
    Hung,
}

/// The moods of one replica, each with its end.
#[derive(Debug, Clone)]
struct Life(Vec<(Duration, Mood)>);

impl Life {
    fn mood(&self, now: Duration) -> Mood {
        self.0.iter().find(|(end, _)| now < *end).map_or(Mood::Warm, |(_, mood)| *mood)
    }

    /// Whether the mood is `mood` from `from` to `to`.
    fn is(&self, mood: Mood, from: Duration, to: Duration) -> bool {
        let mut at = from;
        loop {
            if self.mood(at) != mood {
                return false;
            }
            match self.0.iter().find(|(end, _)| at < *end) {
                Some((end, _)) if *end <= to => at = *end,
                _ => return true,
            }
        }
    }

    /// Time of the next change after `now`.
    fn next_change(&self, now: Duration) -> Option<Duration> {
        self.0.iter().map(|(end, _)| *end).find(|end| *end > now)
    }

    /// The outcome of a question that arrives at `now` and takes `takes`: when, and whether it is answered. `None`
    /// without an outcome.
    fn outcome(&self, now: Duration, takes: Duration) -> Option<(Duration, Outcome)> {
        let answered = now + takes;
        match self.mood(now) {
            Mood::Dead => Some((now + Duration::from_micros(200), Outcome::Failed)),
            Mood::Hung => None,
            Mood::Warm | Mood::Cold => {
                let change = self.next_change(now).filter(|change| *change < answered);
                match change.map(|change| (change, self.mood(change))) {
                    Some((_, Mood::Hung)) => None,
                    Some((change, Mood::Dead)) => Some((change, Outcome::Failed)),
                    _ => Some((answered, Outcome::Answered)),
                }
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrives,
    Wakes(usize),
    Ends(usize, usize, bool),
    Probed(usize, Option<bool>),
}

/// A question in progress.
struct Open {
    arrived: Duration,
    question: Question,
    /// Replicas asked.
    asked: usize,
    /// Whether the question waited while no hedge credit was left.
    unhedged: bool,
}

struct World {
    lives: Vec<Life>,
    replicas: Replicas,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    scheduled: u64,
    open: BTreeMap<usize, Open>,
    asked: usize,
    answered: u64,
    last_probe: Vec<Option<Duration>>,
}

impl World {
    fn new(lives: Vec<Life>, seed: u64) -> Self {
        let count = lives.len();
        Self {
            lives,
            replicas: Replicas::new(count, HedgeConfig::default(), seed),
            events: BinaryHeap::new(),
            scheduled: 0,
            open: BTreeMap::new(),
            asked: 0,
            answered: 0,
            last_probe: vec![None; count],
        }
    }

    fn at(&mut self, time: Duration, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((time, self.scheduled, event)));
    }

    /// Duration of an answer: 1 to 3 ms.
    fn takes(&self) -> Duration {
        Duration::from_micros(1_000 + self.scheduled * 7_919 % 2_000)
    }

    fn run(&mut self) {
        self.at(Duration::ZERO, Event::Arrives);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            match event {
                Event::Arrives => self.arrives(now),
                Event::Wakes(question) => self.drive(question, now),
                Event::Ends(question, replica, answered) => {
                    self.ends(question, replica, answered, now);
                }
                Event::Probed(replica, found) => {
                    let found = found.map(|warm| Freshness::of_ranks(if warm { 5 } else { 0 }));
                    self.replicas.probed(replica, found, now);
                }
            }
        }
        assert!(self.open.is_empty(), "questions that never end: {:?}", self.open.keys());
    }

    fn arrives(&mut self, now: Duration) {
        if now < LENGTH {
            self.at(now + PACE, Event::Arrives);
        }
        self.probe(now);
        self.asked += 1;
        let question = self.replicas.question(now + DEADLINE);
        let open = Open { arrived: now, question, asked: 0, unhedged: false };
        self.open.insert(self.asked, open);
        self.drive(self.asked, now);
    }

    fn probe(&mut self, now: Duration) {
        let Some(round) = self.replicas.probes(now) else { return };
        for replica in (0..self.lives.len()).filter(|replica| round[*replica]) {
            let before = self.last_probe[replica].replace(now);
            let config = HedgeConfig::default();
            let least = config.backoff_min.min(config.probe_interval) / 2;
            assert!(before.is_none_or(|before| now >= before + least), "probes in a row");
            let warm = self.lives[replica].mood(now) == Mood::Warm;
            // Answers with many ranks take longer: some arrive after several rounds.
            let slow = if self.scheduled.is_multiple_of(3) { 150 } else { 1 };
            let takes = self.takes() * slow;
            let (at, found) = match self.lives[replica].outcome(now, takes) {
                Some((at, Outcome::Answered)) => (at, Some(warm)),
                Some((at, Outcome::Failed)) => (at, None),
                // Not before the answer would have arrived, and so not before the replica hangs.
                None => (now + takes + DEADLINE, None),
            };
            self.at(at, Event::Probed(replica, found));
        }
    }

    fn drive(&mut self, number: usize, now: Duration) {
        loop {
            let Some(open) = self.open.get_mut(&number) else { return };
            match self.replicas.step(&mut open.question, now) {
                Step::Ask(replica) => {
                    open.asked += 1;
                    assert!(open.asked <= self.lives.len(), "a replica is asked twice");
                    if open.asked == 1 {
                        self.check_first(replica, now);
                    }
                    let takes = self.takes();
                    if let Some((at, outcome)) = self.lives[replica].outcome(now, takes) {
                        let answered = outcome == Outcome::Answered;
                        self.at(at, Event::Ends(number, replica, answered));
                    }
                }
                Step::Wait(until) => {
                    assert!(
                        until > now && until <= open.arrived + DEADLINE,
                        "{until:?} at {now:?}"
                    );
                    open.unhedged |= self.replicas.hedge_credit < HEDGE_COST;
                    self.at(until, Event::Wakes(number));
                    return;
                }
                Step::End => {
                    let open = self.open.remove(&number).expect("it is open");
                    self.replicas.close(&open.question, now);
                    self.check_missing(&open);
                    return;
                }
            }
        }
    }

    fn ends(&mut self, number: usize, replica: usize, answered: bool, now: Duration) {
        let Some(open) = self.open.get_mut(&number) else { return };
        let outcome = if answered { Outcome::Answered } else { Outcome::Failed };
        self.replicas.ended(&mut open.question, replica, outcome, now);
        if answered {
            let open = self.open.remove(&number).expect("it is open");
            self.replicas.close(&open.question, now);
            self.answered += 1;
        } else {
            self.drive(number, now);
        }
    }

    /// A replica without data or answers is never asked first while another one is known to be good.
    fn check_first(&self, replica: usize, now: Duration) {
        let since = now.saturating_sub(SETTLED);
        let settled = |life: &Life| now >= SETTLED && life.is(Mood::Warm, since, now);
        let unfit = |mood| self.lives[replica].is(mood, since, now) && now >= SETTLED;
        if self.lives.iter().any(settled) {
            let mood = self.lives[replica].mood(now);
            // The next probes detect a replica that restarted while it received no questions.
            let cold = self.lives[replica].is(Mood::Cold, now.saturating_sub(PROBED), now);
            // Failing questions detect a replica that dies or hangs.
            let lost = unfit(Mood::Dead) || unfit(Mood::Hung);
            assert!(!cold && !lost, "replica {replica} is {mood:?} at {now:?}: {:?}", self.lives);
        }
    }

    /// A question may stay unanswered only if no replica was up during all its time, and briefly before, when clients
    /// still have to find a recovered replica. Or if several hang at the same time and the hedge credit is used up.
    fn check_missing(&self, open: &Open) {
        let from = open.arrived.saturating_sub(FOUND_AGAIN);
        let until = open.arrived + DEADLINE;
        let up = |life: &Life| life.is(Mood::Warm, from, until) || life.is(Mood::Cold, from, until);
        let excused = open.unhedged || !self.lives.iter().any(up);
        assert!(excused, "missed at {:?}: {:?}", open.arrived, self.lives);
    }
}

/// Moods of one replica: after it was dead it is cold, like a restarted process.
fn life() -> impl Strategy<Value = Life> {
    let period = (50..3_000_u64, prop_oneof![Just(Mood::Warm), Just(Mood::Dead), Just(Mood::Hung)]);
    proptest::collection::vec((period, 50..1_500_u64), 0..8).prop_map(|periods| {
        let mut end = Duration::ZERO;
        let mut life = Vec::new();
        for ((millis, mood), cold) in periods {
            end += Duration::from_millis(millis);
            life.push((end, mood));
            if mood == Mood::Dead {
                end += Duration::from_millis(cold);
                life.push((end, Mood::Cold));
            }
        }
        Life(life)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn a_question_is_answered_while_any_replica_is_up(
        lives in proptest::collection::vec(life(), 2..4), seed in any::<u64>(),
    ) {
        let count = lives.len() as u64;
        let mut world = World::new(lives, seed);
        world.run();
        let counts = world.replicas.counts();
        let questions = world.asked as u64;
        prop_assert_eq!(counts.questions, questions);
        // The cost of failures is bounded.
        prop_assert!(counts.hedges <= 64 + questions / 10, "{:?}", counts);
        prop_assert!(counts.asked <= questions + counts.hedges + counts.failovers, "{:?}", counts);
        prop_assert!(counts.asked <= questions * count, "{:?}", counts);
        prop_assert!(counts.hedges_won <= counts.hedges, "{:?}", counts);
    }
}
