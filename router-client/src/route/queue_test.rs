use super::active::RankLoad;
use super::queue::*;
use kvasir_proto::convert::WorkerProfile;
use proptest::prelude::*;
use std::time::Duration;

const ALL: Lane = Lane(0);

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

fn queue(policy: QueuePolicy) -> Queue<&'static str> {
    Queue::new(QueueConfig { policy, ..QueueConfig::default() })
}

fn wait(input_tokens: u64, latency_sensitivity_secs: f64) -> Wait {
    Wait { lane: ALL, input_tokens, latency_sensitivity_secs, deadline: None }
}

/// All items in the order in which they leave.
fn drain(queue: &mut Queue<&'static str>) -> Vec<&'static str> {
    std::iter::from_fn(|| queue.next(secs(100), |_| true)).map(|left| left.item).collect()
}

fn load(prefill_tokens: u64) -> RankLoad {
    RankLoad { prefill_tokens, ..RankLoad::default() }
}

fn states(max_num_batched_tokens: Option<u64>) -> WorkerProfile {
    WorkerProfile { max_num_batched_tokens, ..WorkerProfile::default() }
}

#[test]
fn requests_wait_while_all_ranks_are_above() {
    let config = QueueConfig::default();
    assert_eq!(config.threshold, Some(2.0));
    let small = states(Some(100));
    let large = states(Some(1_000));
    let silent = states(None);
    for (loads, expected) in [
        (vec![(201, &small), (2_001, &large)], true),
        (vec![(200, &small), (2_001, &large)], false), // exactly at it is not above
        (vec![(201, &small), (9_999_999_999, &silent)], false),
        (vec![], false),
    ] {
        let loads: Vec<_> =
            loads.iter().map(|(tokens, profile)| (load(*tokens), *profile)).collect();
        let eligible = || loads.iter().map(|(load, profile)| (*load, *profile));
        assert_eq!(config.must_wait(eligible()), expected, "{loads:?}");
        let off = QueueConfig { threshold: None, ..config };
        assert!(!off.must_wait(eligible()));
    }
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let good = QueueConfig::default();
    assert_eq!(good.check(), Ok(()));
    assert_eq!(QueueConfig { threshold: None, ..good }.check(), Ok(()));
    for threshold in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = QueueConfig { threshold: Some(threshold), ..good }.check();
        assert_eq!(error.expect_err("bad").to_string(), "queue threshold must be more than 0");
    }
    assert!(QueueConfig { entries_max: 0, ..good }.check().is_err());
    assert_eq!(("fcfs".parse(), "wspt".parse()), (Ok(QueuePolicy::Fcfs), Ok(QueuePolicy::Wspt)));
    assert!("lifo".parse::<QueuePolicy>().is_err());
}

/// `priority_jump − arrival`: a sensitivity of 10 s equals an arrival 10 s earlier.
#[test]
fn fcfs_leaves_by_adjusted_arrival() {
    let mut queue = queue(QueuePolicy::Fcfs);
    for (at, name, jump) in [
        (0, "first", 0.0),
        (1, "second", 0.0),
        (10, "urgent", 9.5),
        (10, "late", 0.0),
        (10, "later", 0.0),
    ] {
        queue.push(wait(9_999, jump), name, secs(at)).expect("room");
    }
    assert_eq!(drain(&mut queue), ["first", "urgent", "second", "late", "later"]);
}

/// `(1 + priority_jump) / isl_tokens`.
#[test]
fn wspt_leaves_short_and_urgent_ones_first() {
    let mut queue = queue(QueuePolicy::Wspt);
    for (name, tokens, jump) in
        [("long", 1_000, 0.0), ("short", 100, 0.0), ("urgent", 1_000, 19.0), ("empty", 0, 0.0)]
    {
        queue.push(wait(tokens, jump), name, secs(0)).expect("room");
    }
    assert_eq!(queue.input_tokens(), 2_100);
    assert_eq!(drain(&mut queue), ["empty", "urgent", "short", "long"]);
    assert_eq!(queue.input_tokens(), 0);
}

#[test]
fn nobody_buys_more_than_an_hour() {
    let mut queue = queue(QueuePolicy::Fcfs);
    for (at, name, jump) in [
        (0, "first", 0.0),
        (1, "no number", f64::NAN),
        (2, "less than nothing", -5.0),
        (3_599, "endless", f64::INFINITY),
        (3_602, "too late", 1e300),
    ] {
        queue.push(wait(1, jump), name, secs(at)).expect("room");
    }
    let order = drain(&mut queue);
    assert_eq!(order, ["endless", "first", "no number", "less than nothing", "too late"]);
}

#[test]
fn a_lane_does_not_hold_up_others() {
    let mut queue = queue(QueuePolicy::Fcfs);
    let pinned = Wait { lane: Lane(7), ..wait(1, 0.0) };
    for (at, name, wait) in
        [(0, "pinned", pinned), (1, "free", wait(1, 0.0)), (2, "pinned too", pinned)]
    {
        queue.push(wait, name, secs(at)).expect("room");
    }
    let mut asked = Vec::new();
    let left = queue.next(secs(5), |name| {
        asked.push(*name);
        *name == "free"
    });
    assert_eq!(asked, ["pinned", "free"], "each lane once, by its first");
    let left = left.expect("one leaves");
    assert_eq!((left.item, left.waited), ("free", secs(4)));
    assert!(queue.is_clear(ALL) && !queue.is_clear(Lane(7)));
    assert_eq!(queue.next(secs(5), |_| false), None);
    assert_eq!(drain(&mut queue), ["pinned", "pinned too"]);
}

#[test]
fn waiting_is_bounded_told_and_ended() {
    let mut queue = Queue::new(QueueConfig { entries_max: 3, ..QueueConfig::default() });
    let patient = queue.push(wait(10, 0.0), "patient", secs(0)).expect("room");
    let limited = Wait { deadline: Some(secs(9)), ..wait(10, 0.0) };
    let hasty = queue.push(limited, "hasty", secs(1)).expect("room");
    let last = queue.push(wait(10, 0.0), "last", secs(2)).expect("room");
    assert_eq!(queue.push(wait(10, 0.0), "one more", secs(3)), Err(QueueFull("one more")));
    assert_eq!([patient, hasty, last].map(|at| queue.position(at)), [Some(0), Some(1), Some(2)]);
    assert_eq!(queue.waiting_time(last, secs(5)), Some(secs(3)));
    assert_eq!((queue.next_deadline(), queue.expire(secs(8))), (Some(secs(9)), vec![]));
    let expired = Released { ticket: hasty, item: "hasty", waited: secs(8) };
    assert_eq!(queue.expire(secs(9)), [expired]);
    assert_eq!((queue.position(hasty), queue.position(last)), (None, Some(1)));
    assert_eq!(queue.cancel(patient, secs(9)).map(|left| left.item), Some("patient"));
    assert_eq!(queue.cancel(patient, secs(9)), None);
    assert_eq!((queue.len(), queue.input_tokens(), queue.position(last)), (1, 10, Some(0)));
    assert_eq!(drain(&mut queue), ["last"]);
    assert!(queue.is_empty() && queue.next_deadline().is_none());
}

#[derive(Debug, Clone)]
enum Step {
    Push { lane: usize, tokens: u64, jump: u32, patience: Option<u64> },
    Next([bool; 3]),
    Cancel(usize),
    Expire,
    Pause(u64),
}

/// A request in the reference.
#[derive(Debug, Clone, Copy)]
struct Known {
    ticket: Ticket,
    lane: usize,
    priority: f64,
    deadline: Option<u64>,
    arrived: u64,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let push = (0_usize..3, 1_u64..50, 0_u32..4, proptest::option::of(0_u64..20));
    let push =
        push.prop_map(|(lane, tokens, jump, patience)| Step::Push { lane, tokens, jump, patience });
    let step = prop_oneof![
        6 => push,
        3 => any::<[bool; 3]>().prop_map(Step::Next),
        1 => (0_usize..50).prop_map(Step::Cancel),
        1 => Just(Step::Expire),
        3 => (0_u64..4).prop_map(Step::Pause),
    ];
    proptest::collection::vec(step, 0..100)
}

proptest! {
    /// The request that leaves is the first eligible one of an ordered list.
    #[test]
    fn the_queue_is_a_list_in_order(steps in steps(), is_wspt: bool) {
        let policy = if is_wspt { QueuePolicy::Wspt } else { QueuePolicy::Fcfs };
        let mut queue = Queue::new(QueueConfig { policy, entries_max: 12, ..QueueConfig::default() });
        // Ordered by when they leave, the first one first.
        let mut list: Vec<Known> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Push { lane, tokens, jump, patience } => {
                    let deadline = patience.map(|patience| now + patience);
                    let jump = f64::from(jump);
                    let wait = Wait {
                        lane: Lane(lane as u64),
                        input_tokens: tokens,
                        latency_sensitivity_secs: jump,
                        deadline: deadline.map(secs),
                    };
                    let pushed = queue.push(wait, lane, secs(now));
                    prop_assert_eq!(pushed.is_err(), list.len() == 12);
                    let Ok(ticket) = pushed else { continue };
                    let priority = match policy {
                        QueuePolicy::Fcfs => jump - now as f64,
                        QueuePolicy::Wspt => (1.0 + jump) / tokens as f64,
                    };
                    let at = list.iter().take_while(|known| known.priority >= priority).count();
                    list.insert(at, Known { ticket, lane, priority, deadline, arrived: now });
                }
                Step::Next(has_room) => {
                    let left = queue.next(secs(now), |lane| has_room[*lane]);
                    let expected = list.iter().position(|known| has_room[known.lane]);
                    let expected = expected.map(|at| list.remove(at));
                    let waited = expected.map(|known| secs(now - known.arrived));
                    prop_assert_eq!(left.as_ref().map(|left| left.waited), waited);
                    prop_assert_eq!(left.map(|left| left.ticket), expected.map(|known| known.ticket));
                }
                Step::Cancel(at) => {
                    if at < list.len() {
                        let gone = list.remove(at);
                        prop_assert!(queue.cancel(gone.ticket, secs(now)).is_some());
                        prop_assert!(queue.cancel(gone.ticket, secs(now)).is_none());
                    }
                }
                Step::Expire => {
                    let expired = queue.expire(secs(now)).len();
                    let before = list.len();
                    list.retain(|known| known.deadline.is_none_or(|deadline| deadline > now));
                    prop_assert_eq!(expired, before - list.len());
                }
                Step::Pause(secs) => now += secs,
            }
            prop_assert_eq!(queue.len(), list.len());
            for (at, known) in list.iter().enumerate() {
                let ahead = list[..at].iter().filter(|other| other.lane == known.lane).count();
                prop_assert_eq!(queue.position(known.ticket), Some(ahead));
            }
        }
    }
}
