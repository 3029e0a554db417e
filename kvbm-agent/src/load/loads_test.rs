use super::{Known, Loads, Totals};
use kvasir_proto::types::{DpRank, WorkerMetrics};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::{prop_assert, prop_assert_eq, proptest};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

const STALE_AFTER: Duration = Duration::from_secs(30);

fn loads() -> Loads {
    Loads::new(Totals::default(), STALE_AFTER)
}

fn waiting(requests: u64) -> WorkerMetrics {
    WorkerMetrics { num_requests_waiting: Some(requests), ..WorkerMetrics::UNKNOWN }
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn the_last_report_counts_and_only_changes_are_sent() {
    let mut loads = loads();
    let start = Instant::now();
    let say = |loads: &mut Loads, rank, metrics, at| {
        loads.publish(rank, metrics, Duration::ZERO, start + seconds(at)).expect("in range")
    };
    assert!(say(&mut loads, 3, waiting(1), 0) && say(&mut loads, 0, waiting(1), 1));
    let seen = loads.version();
    assert!(!say(&mut loads, 3, waiting(1), 2), "it is the same");
    assert_eq!(loads.since(seen, start + seconds(2)), []);
    assert!(say(&mut loads, 0, waiting(2), 3));
    let now = start + seconds(5);
    let (zero, three) = (
        Known { rank: 0, metrics: waiting(2), age: seconds(2) },
        Known { rank: 3, metrics: waiting(1), age: seconds(3) },
    );
    assert_eq!((loads.since(seen, now), loads.since(0, now)), (vec![zero], vec![zero, three]));
}

#[test]
fn what_is_not_reported_again_is_dropped() {
    let mut loads = loads();
    let start = Instant::now();
    assert_eq!(loads.next_expiry(), None);
    loads.publish(0, waiting(1), Duration::ZERO, start).expect("in range");
    loads.publish(1, waiting(1), seconds(10), start).expect("in range");
    assert_eq!(loads.next_expiry(), Some(start + seconds(20)));
    assert!(!loads.expire(start + Duration::from_millis(19_999)));
    let seen = loads.version();
    let at = start + seconds(20);
    assert!(loads.expire(at) && !loads.expire(at));
    let unknown = Known { rank: 1, metrics: WorkerMetrics::UNKNOWN, age: seconds(30) };
    assert_eq!(loads.since(seen, at), [unknown]);
    // It was reported again in time.
    loads.publish(0, waiting(1), Duration::ZERO, at).expect("in range");
    assert_eq!(loads.next_expiry(), Some(at + STALE_AFTER));
    assert!(!loads.expire(start + seconds(30)) && loads.expire(at + STALE_AFTER));
    assert_eq!(loads.next_expiry(), None);
    // An equal report after the expiry is a change again.
    assert!(loads.publish(0, waiting(1), Duration::ZERO, at + STALE_AFTER).expect("in range"));
    // Older than `stale_after` on arrival: expires immediately.
    loads.publish(5, waiting(1), Duration::MAX, at).expect("in range");
    assert_eq!(loads.next_expiry(), Some(at));
    assert!(loads.expire(at));
}

#[test]
fn totals_are_filled_in_and_fit() {
    let totals = Totals { request_slots: Some(8), kv_blocks: Some(100) };
    let mut loads = Loads::new(totals, STALE_AFTER);
    let now = Instant::now();
    let reported = WorkerMetrics { kv_total_blocks: Some(50), ..waiting(1) };
    loads.publish(0, reported, Duration::ZERO, now).expect("in range");
    let known = loads.since(0, now).remove(0).metrics;
    assert_eq!((known.request_total_slots, known.kv_total_blocks), (Some(8), Some(50)));
    let reported = WorkerMetrics { request_active_slots: Some(9), ..reported };
    let error = loads.publish(0, reported, Duration::ZERO, now).expect_err("more than there is");
    assert_eq!(error.to_string(), "request_active_slots is 9, must be 0 to 8");
    let error = loads.publish(1_024, waiting(1), Duration::ZERO, now).expect_err("no rank");
    assert_eq!(error.to_string(), "dp_rank is 1024, must be 0 to 1023");
    assert_eq!(loads.since(0, now).remove(0).metrics, known);
}

#[derive(Debug, Clone)]
enum Move {
    Say(DpRank, u64, u64),
    Wait(u64),
    Expire,
    Read(usize),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        (0..4_u32, 0..3_u64, 0..40_u64).prop_map(|(rank, load, age)| Move::Say(rank, load, age)),
        (0..20_u64).prop_map(Move::Wait),
        Just(Move::Expire),
        any::<proptest::sample::Index>().prop_map(|at| Move::Read(at.index(3))),
    ];
    vec(one, 1..80)
}

proptest! {
    /// After each read, a reader has the current loads, however often it reads. A read returns only ranks that have
    /// changed since the last one.
    #[test]
    fn readers_know_the_latest(moves in moves()) {
        let start = Instant::now();
        let mut loads = loads();
        let mut now = start;
        // Time and value of each rank's last report; unknown once it has expired.
        let mut truth: BTreeMap<DpRank, (WorkerMetrics, u64)> = BTreeMap::new();
        let mut readers = vec![(0_u64, BTreeMap::new()); 3];
        let mut clock = 100;
        for at in moves {
            match at {
                Move::Say(rank, load, age) => {
                    loads.publish(rank, waiting(load), seconds(age), now).expect("in range");
                    truth.insert(rank, (waiting(load), clock - age));
                }
                Move::Wait(time) => {
                    clock += time;
                    now += seconds(time);
                }
                Move::Expire => {
                    loads.expire(now);
                    for (metrics, since) in truth.values_mut() {
                        if clock - *since >= 30 {
                            *metrics = WorkerMetrics::UNKNOWN;
                        }
                    }
                }
                Move::Read(reader) => {
                    let (version, known) = &mut readers[reader];
                    let news = loads.since(*version, now);
                    prop_assert!(news.is_sorted_by_key(|known| known.rank));
                    for Known { rank, metrics, age } in news {
                        known.insert(rank, metrics);
                        prop_assert_eq!(age, seconds(clock - truth[&rank].1));
                    }
                    *version = loads.version();
                    let latest = truth.iter().map(|(&rank, &(metrics, _))| (rank, metrics));
                    prop_assert_eq!(&*known, &latest.collect::<BTreeMap<_, _>>());
                    prop_assert!(loads.since(*version, now).is_empty());
                }
            }
            let known = truth.values().filter(|(metrics, _)| *metrics != WorkerMetrics::UNKNOWN);
            let first = known.map(|&(_, since)| since + 30).min();
            let expiry = loads.next_expiry().map(|at| at.saturating_duration_since(start));
            // An overdue load expires when it is reported.
            let due = first.map(|first| first.saturating_sub(100));
            prop_assert!(expiry.is_some() == due.is_some());
            if let (Some(expiry), Some(due)) = (expiry, due) {
                prop_assert!(expiry >= seconds(due) && (expiry == seconds(due) || expiry <= now - start));
            }
        }
    }
}
