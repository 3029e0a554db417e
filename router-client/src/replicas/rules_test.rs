use super::*;
use crate::overlap::Overlap;
use kvasir_proto::types::{SourceState, WorkerId, WorkerKey};

const DEADLINE: Duration = Duration::from_millis(90);

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Two replicas; the next question goes to the first one.
fn two() -> Replicas {
    let mut replicas = Replicas::new(2, HedgeConfig::default(), 1);
    replicas.turn = 1;
    replicas
}

/// Freshness of a replica with this number of exact ranks.
fn knows(exact: u32, lag_batches: u64, age: Duration) -> Freshness {
    let rank = |rank| Overlap {
        worker: WorkerKey { worker: WorkerId::new("w").expect("a name"), rank },
        blocks: 0,
        reusable_tokens: 0,
        main_group_blocks: 0,
        speculative_blocks: 0,
        device_blocks: 0,
        blocks_by_best_tier: [0; 3],
        pool_blocks: 0,
        host_blocks: 0,
        disk_blocks: 0,
        state: if rank < exact { SourceState::Exact } else { SourceState::Gap },
        applied: None,
        lag_batches: if rank == 0 { lag_batches } else { 0 },
        verified_age: Some(age),
        shed_blocks: 0,
        connected: true,
        may_be_high: false,
    };
    Freshness::from_overlaps(&(0..9).map(rank).collect::<Vec<_>>())
}

/// The replica that a question asks first at `now`, which answers immediately.
fn first(replicas: &mut Replicas, now: Duration) -> usize {
    let mut question = replicas.question(now + DEADLINE);
    let Step::Ask(number) = replicas.step(&mut question, now) else { panic!("nobody is asked") };
    replicas.ended(&mut question, number, Outcome::Answered, now + ms(1));
    replicas.close(&question, now + ms(1));
    number
}

#[test]
fn replicas_that_are_as_good_take_turns() {
    let mut replicas = two();
    let asked: Vec<usize> = (0..4).map(|at| first(&mut replicas, ms(at))).collect();
    assert_eq!(asked, [0, 1, 0, 1]);
}

#[test]
fn a_slow_replica_is_hedged_after_its_own_usual_time() {
    let mut replicas = two();
    for at in 0..40 {
        first(&mut replicas, ms(at));
    }
    let now = ms(1_000);
    let mut question = replicas.question(now + DEADLINE);
    assert_eq!(replicas.step(&mut question, now), Step::Ask(0));
    // Answers took 1 ms; the least delay is 5.
    let hedge_at = now + ms(5);
    assert_eq!(replicas.step(&mut question, now), Step::Wait(hedge_at));
    assert_eq!(replicas.step(&mut question, hedge_at), Step::Ask(1));
    assert_eq!(replicas.step(&mut question, hedge_at), Step::Wait(now + DEADLINE));
    replicas.ended(&mut question, 1, Outcome::Answered, hedge_at + ms(1));
    replicas.close(&question, hedge_at + ms(1));
    let counts = replicas.counts();
    assert_eq!((counts.hedges, counts.hedges_won, counts.failures), (1, 1, 0));
    assert!(!replicas.is_failing(0), "one strike");
}

#[test]
fn a_replica_that_knows_less_is_asked_late() {
    let mut replicas = two();
    replicas.probes(ms(0)).expect("a round");
    replicas.probed(0, Some(knows(9, 0, ms(0))), ms(0));
    replicas.probed(1, Some(knows(8, 0, ms(0))), ms(0));
    let mut question = replicas.question(DEADLINE);
    let mut asked = Vec::new();
    let mut now = ms(0);
    loop {
        match replicas.step(&mut question, now) {
            Step::Ask(number) => asked.push((number, now)),
            Step::Wait(until) => now = until,
            Step::End => break,
        }
    }
    assert_eq!((asked, now), (vec![(0, ms(0)), (1, ms(45))], DEADLINE));
}

#[test]
fn three_strikes_are_a_failure_and_those_who_wait_go_on_at_once() {
    let mut replicas = two();
    let mut waiting: Vec<Question> = Vec::new();
    for at in 0..4 {
        let mut question = replicas.question(ms(at) + DEADLINE);
        replicas.turn = 0;
        assert_eq!(replicas.step(&mut question, ms(at)), Step::Ask(0));
        waiting.push(question);
    }
    let mut last = waiting.pop().expect("four");
    let now = ms(60);
    for (number, mut question) in (1..).zip(waiting) {
        assert_eq!(replicas.step(&mut question, now), Step::Ask(1));
        replicas.ended(&mut question, 1, Outcome::Answered, now);
        replicas.close(&question, now);
        assert_eq!(replicas.is_failing(0), number == 3);
    }
    let credit = replicas.hedge_credit;
    assert_eq!(replicas.step(&mut last, now), Step::Ask(1));
    assert_eq!(replicas.hedge_credit, credit, "not a hedge: the first has failed");
    assert_eq!((replicas.counts().failures, replicas.counts().failovers), (1, 1));
}

#[test]
fn a_failure_is_passed_over_at_once_and_left_alone_for_longer_each_time() {
    let mut replicas = two();
    let mut question = replicas.question(DEADLINE);
    assert_eq!(replicas.step(&mut question, ms(0)), Step::Ask(0));
    replicas.ended(&mut question, 0, Outcome::Failed, ms(1));
    assert_eq!(replicas.step(&mut question, ms(1)), Step::Ask(1));
    replicas.ended(&mut question, 1, Outcome::Answered, ms(2));
    replicas.close(&question, ms(2));
    let mut now = ms(2);
    let mut gaps = Vec::new();
    for _ in 0..8 {
        let begun = now;
        let round = loop {
            assert_eq!(first(&mut replicas, now), 1);
            now += ms(1);
            if let Some(round) = replicas.probes(now).filter(|round| round[0]) {
                break round;
            }
        };
        gaps.push(now - begun);
        replicas.probed(0, None, now);
        if round[1] {
            replicas.probed(1, Some(knows(9, 0, ms(0))), now);
        }
    }
    for (gap, most) in gaps.iter().zip([100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000]) {
        assert!((ms(most) * 3 / 4 - ms(1)..=ms(most) + ms(1)).contains(gap), "{gaps:?}");
    }
    // The replica is back, and equally fresh.
    while replicas.probes(now).is_none_or(|round| !round[0]) {
        now += ms(1);
    }
    replicas.probed(0, Some(knows(9, 0, ms(0))), now);
    replicas.probed(1, Some(knows(9, 0, ms(0))), now);
    assert_ne!(first(&mut replicas, now), first(&mut replicas, now));
}

#[test]
fn one_break_counts_once() {
    let mut replicas = two();
    let mut questions: Vec<Question> = (0..50).map(|_| replicas.question(DEADLINE)).collect();
    for question in &mut questions {
        replicas.turn = 0;
        assert_eq!(replicas.step(question, ms(0)), Step::Ask(0));
    }
    for question in &mut questions {
        replicas.ended(question, 0, Outcome::Failed, ms(1));
    }
    assert_eq!(replicas.counts().failures, 1);
}

#[test]
fn the_fresher_replica_is_asked() {
    let check = |other: Freshness, both: bool| {
        let mut replicas = two();
        let round = replicas.probes(ms(0)).expect("the first round");
        assert_eq!(round[..2], [true, true]);
        replicas.probed(0, Some(other), ms(1));
        replicas.probed(1, Some(knows(9, 10, ms(30))), ms(1));
        let mut asked = [first(&mut replicas, ms(2)), first(&mut replicas, ms(2))];
        asked.sort_unstable();
        assert_eq!(asked, if both { [0, 1] } else { [1, 1] }, "{other:?}");
    };
    check(knows(9, 10, ms(30)), true);
    check(knows(9, 74, ms(60_030)), true);
    check(knows(9, 75, ms(30)), false);
    check(knows(9, 10, ms(60_031)), false);
    check(knows(8, 0, ms(0)), false);
    check(Freshness::NOTHING, false);
}

/// The first replica has just started, and was probed while it had no data; then the second one starts.
#[test]
fn who_comes_back_is_judged_by_what_all_say_now() {
    let mut replicas = two();
    replicas.probes(ms(0)).expect("a round");
    replicas.probed(0, Some(Freshness::NOTHING), ms(0));
    replicas.probed(1, Some(knows(9, 0, ms(0))), ms(0));
    let mut question = replicas.question(DEADLINE);
    assert_eq!(replicas.step(&mut question, ms(0)), Step::Ask(1));
    replicas.ended(&mut question, 1, Outcome::Failed, ms(1));
    let mut now = ms(1);
    while replicas.probes(now).is_none_or(|round| round[..2] != [true, true]) {
        now += ms(1);
    }
    replicas.probed(1, Some(Freshness::NOTHING), now);
    assert_eq!([first(&mut replicas, now), first(&mut replicas, now)], [0, 0]);
    replicas.probed(0, Some(knows(9, 0, ms(0))), now);
    assert_eq!([first(&mut replicas, now), first(&mut replicas, now)], [0, 0]);
    assert!(!replicas.is_failing(1));
}

#[test]
fn a_question_after_a_pause_waits_for_probes() {
    let mut replicas = two();
    let fresh = Some(knows(9, 0, ms(0)));
    assert!(!replicas.in_doubt(ms(0)), "nothing is under way");
    replicas.probes(ms(0)).expect("a round");
    assert!(replicas.in_doubt(ms(0)));
    replicas.probed(0, fresh, ms(1));
    assert!(replicas.in_doubt(ms(1)), "the other has not answered");
    replicas.probed(1, None, ms(2));
    assert!(!replicas.in_doubt(ms(2)), "what fails is not waited for");
    let mut now = ms(900);
    for (pause, doubt) in [(ms(1_000), false), (ms(2_900), false), (ms(3_200), true)] {
        now += pause;
        replicas.probes(now).expect("a round");
        assert_eq!(replicas.in_doubt(now), doubt, "{pause:?}");
        for number in 0..2 {
            replicas.probed(number, fresh, now);
        }
        assert!(!replicas.in_doubt(now));
    }
}

/// Answers to probes arrive one after the other, some late. Until then, earlier answers count.
#[test]
fn who_was_not_heard_for_three_rounds_is_unknown() {
    let mut replicas = two();
    let all = Some(knows(9, 0, ms(0)));
    let some = Some(knows(5, 0, ms(0)));
    replicas.probes(ms(0)).expect("a round");
    replicas.probed(0, all, ms(0));
    replicas.probed(1, some, ms(0));
    for now in [ms(1_000), ms(2_000), ms(3_000), ms(4_000)] {
        let round = replicas.probes(now).expect("a round");
        assert_eq!(round[..2], [now == ms(1_000), true], "one probe at a time");
        replicas.probed(1, some, now);
        let expected = if now <= ms(3_000) { [0, 0] } else { [1, 1] };
        assert_eq!([first(&mut replicas, now), first(&mut replicas, now)], expected, "{now:?}");
    }
}

#[test]
fn a_shard_that_is_down_costs_little_and_is_found_when_it_is_back() {
    let mut replicas = two();
    for at in 0..2 {
        let mut question = replicas.question(ms(at) + DEADLINE);
        for _ in 0..2 {
            let Step::Ask(number) = replicas.step(&mut question, ms(at)) else { panic!("{at}") };
            replicas.ended(&mut question, number, Outcome::Failed, ms(at));
        }
        assert_eq!(replicas.step(&mut question, ms(at)), Step::End);
        replicas.close(&question, ms(at));
    }
    assert_eq!(replicas.counts().failures, 2);
    // One replica at a time, and no longer than a hedge takes.
    let mut question = replicas.question(ms(10) + DEADLINE);
    assert!(matches!(replicas.step(&mut question, ms(10)), Step::Ask(_)));
    assert_eq!(replicas.step(&mut question, ms(10)), Step::Wait(ms(30)));
    assert_eq!(replicas.step(&mut question, ms(30)), Step::Wait(ms(50)));
    assert_eq!(replicas.step(&mut question, ms(50)), Step::End);
    let logged = [ms(50), ms(60), ms(10_050)].map(|now| replicas.missed(now));
    assert_eq!(logged, [Some(0), None, Some(1)]);
    assert_eq!(replicas.counts().hedges, 0);
    // An answer ends the backoff of that replica.
    let found = first(&mut replicas, ms(60));
    assert!(!replicas.is_failing(found));
    assert!(replicas.is_failing(1 - found));
    assert_eq!(first(&mut replicas, ms(61)), found);
}

#[test]
fn hedges_end_when_nothing_is_left_to_pay_them_with() {
    let mut replicas = two();
    let mut hedges = 0;
    for at in 0..1_000 {
        let now = ms(at * 1_000);
        let mut question = replicas.question(now + DEADLINE);
        let Step::Ask(asked) = replicas.step(&mut question, now) else { panic!("{at}") };
        let later = now + ms(45);
        hedges += u64::from(matches!(replicas.step(&mut question, later), Step::Ask(_)));
        replicas.ended(&mut question, asked, Outcome::Answered, later);
        replicas.close(&question, later);
    }
    assert_eq!(replicas.counts().hedges, hedges);
    assert!((64 + 99..=64 + 101).contains(&hedges), "{hedges}");
}
