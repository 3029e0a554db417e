use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fmt::Display;

const READINGS: usize = 8;

fn agent(name: impl Display) -> Arc<str> {
    format!("{name}").into()
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// All permits available at this time.
fn turns(queue: &mut TurnQueue, now: Duration) -> Vec<(Ticket, Turn)> {
    std::iter::from_fn(|| queue.next(now)).collect()
}

/// An agent that has answered once.
fn known(queue: &mut TurnQueue, name: &str) -> Arc<str> {
    let agent = agent(name);
    let ticket = queue.wait(&agent);
    assert_eq!(queue.next(Duration::ZERO), Some((ticket, Turn::Open)));
    assert!(queue.answered(ticket));
    queue.end_request(ticket, false, Duration::ZERO);
    agent
}

#[test]
fn agents_that_never_answer_keep_nobody_from_being_read() {
    let mut queue = TurnQueue::new(READINGS);
    let good = known(&mut queue, "good");
    let silent: Vec<_> = (0..120).map(agent).collect();
    for agent in &silent {
        let _ticket = queue.wait(agent);
    }
    let opened = turns(&mut queue, seconds(1));
    assert_eq!(opened.len(), OPENINGS_MAX);
    let wanted = queue.wait(&good);
    assert_eq!(queue.next(seconds(1)), Some((wanted, Turn::Read)));
    queue.end_request(wanted, false, seconds(1));
    // All end without an answer, and the others are asked. A new agent is asked once these have ended, too.
    opened.into_iter().for_each(|(ticket, _)| queue.end_request(ticket, true, seconds(11)));
    let others = turns(&mut queue, seconds(11));
    assert_eq!(others.len(), 120 - OPENINGS_MAX);
    for agent in &silent {
        let _ticket = queue.wait(agent);
    }
    let retried = turns(&mut queue, seconds(60));
    assert_eq!(retried.len(), OPENINGS_MAX - others.len(), "who was not given up is new");
    let wanted = queue.wait(&agent("another"));
    others.into_iter().for_each(|(ticket, _)| queue.end_request(ticket, true, seconds(61)));
    assert_eq!(queue.next(seconds(61)), Some((wanted, Turn::Open)), "before those that failed");
}

#[test]
fn one_agent_has_few_turns_and_the_others_come_before_its_next() {
    let mut queue = TurnQueue::new(READINGS);
    let busy = known(&mut queue, "busy");
    let other = known(&mut queue, "other");
    let tickets: Vec<_> = (0..20).map(|_| queue.wait(&busy)).collect();
    let granted: Vec<_> = turns(&mut queue, seconds(1)).into_iter().map(|(at, _)| at).collect();
    assert_eq!(granted, tickets[..AGENT_TURNS_MAX]);
    let mut queue = TurnQueue::new(1);
    for name in ["busy", "other"] {
        known(&mut queue, name);
    }
    let first = queue.wait(&busy);
    let second = queue.wait(&busy);
    let third = queue.wait(&other);
    for expected in [first, third, second] {
        let (ticket, turn) = queue.next(seconds(1)).expect("a turn");
        assert_eq!((ticket, turn), (expected, Turn::Read));
        assert_eq!(queue.next(seconds(1)), None);
        queue.end_request(ticket, false, seconds(1));
    }
}

#[test]
fn who_does_not_answer_rests_for_longer_each_time_until_it_is_heard() {
    let mut queue = TurnQueue::new(READINGS);
    let silent = agent("silent");
    let mut now = seconds(100);
    for rest in [1, 2, 4, 8, 16, 30, 30] {
        let ticket = queue.wait(&silent);
        assert_eq!(queue.next(now), Some((ticket, Turn::Open)));
        queue.end_request(ticket, true, now);
        let ticket = queue.wait(&silent);
        let rested = now + seconds(rest);
        assert_eq!(queue.next(rested - Duration::from_millis(1)), None, "{rest}");
        assert_eq!(queue.try_read(&silent, now), None);
        assert_eq!(queue.next(rested), Some((ticket, Turn::Open)), "{rest}");
        queue.end_request(ticket, false, rested);
        now = rested;
    }
    let ticket = queue.wait(&silent);
    let (given_up, _) = queue.next(now).expect("it has rested");
    assert_eq!(given_up, ticket);
    queue.end_request(ticket, true, now);
    let ticket = queue.wait(&silent);
    assert_eq!(queue.next(now), None);
    queue.mark_reachable(&silent);
    assert_eq!(queue.next(now), Some((ticket, Turn::Open)));
}

#[test]
fn answers_that_begin_while_others_are_read_wait_and_are_asked_for_again() {
    let mut queue = TurnQueue::new(1);
    let first = queue.wait(&agent("first"));
    let second = queue.wait(&agent("second"));
    let opened = turns(&mut queue, seconds(1));
    assert_eq!(opened, [(first, Turn::Open), (second, Turn::Open)]);
    assert!(queue.answered(first));
    assert!(!queue.answered(second));
    let third = queue.wait(&agent("third"));
    assert_eq!(turns(&mut queue, seconds(1)), [], "what would begin would only wait");
    queue.end_request(first, false, seconds(1));
    let next = turns(&mut queue, seconds(1));
    assert_eq!(next, [(second, Turn::Read), (third, Turn::Open)]);
    assert!(queue.answered(second), "its turn is to be read");
}

/// State of a request in the simulation below.
struct Asked {
    ticket: Ticket,
    agent: usize,
    turn: Option<Turn>,
}

#[test]
fn limits_hold_and_everybody_has_a_turn_whatever_agents_do() {
    const AGENTS: usize = 100;
    for seed in 0..50 {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let mut queue = TurnQueue::new(dice.random_range(1..=READINGS));
        let agents: Vec<_> = (0..AGENTS).map(agent).collect();
        let mut asked: Vec<Asked> = Vec::new();
        let mut now = Duration::ZERO;
        for _ in 0..2_000 {
            now += Duration::from_millis(dice.random_range(0..100));
            let agent = dice.random_range(0..AGENTS);
            let any = (!asked.is_empty()).then(|| dice.random_range(0..asked.len()));
            match (dice.random_range(0..10), any) {
                (0..4, _) => {
                    let ticket = queue.wait(&agents[agent]);
                    asked.push(Asked { ticket, agent, turn: None });
                }
                (4, _) => {
                    let ticket = queue.try_read(&agents[agent], now);
                    let turn = Some(Turn::Read);
                    asked.extend(ticket.map(|ticket| Asked { ticket, agent, turn }));
                }
                (5, _) => queue.mark_reachable(&agents[agent]),
                (6..8, Some(at)) if asked[at].turn.is_some() => {
                    let may_read = queue.answered(asked[at].ticket);
                    asked[at].turn = may_read.then_some(Turn::Read);
                }
                (_, Some(at)) => {
                    let Asked { ticket, turn, .. } = asked.swap_remove(at);
                    // Every third agent fails most of the time.
                    let failed = turn.is_some() && agent % 3 == 0 && dice.random_bool(0.9);
                    queue.end_request(ticket, failed, now);
                }
                _ => {}
            }
            for (ticket, turn) in turns(&mut queue, now) {
                let at = asked.iter_mut().find(|at| at.ticket == ticket).expect("it waits");
                assert_eq!(at.turn.replace(turn), None, "it waits");
            }
            check(&queue, &asked);
        }
        // Once all requests have answered and ended, the queue is empty.
        while !asked.is_empty() {
            now += BACKOFF_MAX;
            for (ticket, turn) in turns(&mut queue, now) {
                let at = asked.iter_mut().find(|at| at.ticket == ticket).expect("it waits");
                at.turn = Some(turn);
            }
            let before = asked.len();
            asked.retain(|at| {
                if at.turn.is_some() {
                    queue.end_request(at.ticket, false, now);
                }
                at.turn.is_none()
            });
            assert!(asked.len() < before, "seed {seed}: nobody has a turn");
        }
        assert_eq!((queue.readers, queue.openings, queue.failing_openings), (0, 0, 0));
        assert!(queue.tickets.is_empty() && queue.backing_off.is_empty());
        assert!(queue.ready.iter().all(BTreeMap::is_empty));
    }
}

fn check(queue: &TurnQueue, asked: &[Asked]) {
    let count = |turn| asked.iter().filter(|at| at.turn == Some(turn)).count();
    assert_eq!((queue.readers, queue.openings), (count(Turn::Read), count(Turn::Open)));
    assert!(queue.readers <= queue.readers_max && queue.openings <= OPENINGS_MAX);
    assert!(queue.failing_openings <= FAILING_OPENINGS_MAX);
    assert_eq!(queue.tickets.len(), asked.len());
    for agent in asked.iter().map(|at| at.agent) {
        let turns = asked.iter().filter(|at| at.agent == agent && at.turn.is_some()).count();
        assert!(turns <= AGENT_TURNS_MAX);
    }
}

#[test]
fn agents_of_which_nothing_is_asked_are_forgotten_when_they_are_many() {
    let mut queue = TurnQueue::new(READINGS);
    for number in 0..3 * AGENTS_REMEMBERED_MAX {
        let ticket = queue.wait(&agent(number));
        assert_eq!(queue.next(Duration::ZERO), Some((ticket, Turn::Open)));
        queue.end_request(ticket, true, Duration::ZERO);
        assert!(queue.agents.len() <= AGENTS_REMEMBERED_MAX);
    }
}
