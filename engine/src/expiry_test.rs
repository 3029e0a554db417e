use super::*;
use kvasir_proto::types::{LocalHash, StoredBlock};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const TTL: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn expiry(blocks_max: usize) -> Expiry {
    let all = HeldBytes::new(EXPIRING_BYTES_MAX, blocks_max * EXPIRING_BLOCK_BYTES);
    Expiry::new(HeldBytes::share(Arc::new(all)))
}

fn stored(tier: Tier, names: &[u64]) -> KvEvent {
    let block = |&name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
    KvEvent::Stored { parent: None, tier, blocks: names.iter().map(block).collect() }
}

fn stored_names(tier: Tier, names: &[u64]) -> KvEvent {
    KvEvent::StoredNames { tier, names: names.iter().copied().map(BlockName).collect() }
}

fn gone(tier: Tier, names: &[u64]) -> KvEvent {
    KvEvent::Gone { tier, names: names.iter().copied().map(BlockName).collect() }
}

fn removed(tier: Tier, names: &[u64]) -> KvEvent {
    KvEvent::Removed { tier, names: names.iter().copied().map(BlockName).collect() }
}

/// A rank, the events at it, and the indexes of events with a time to live.
type Batch = (DpRank, Vec<KvEvent>, Vec<(usize, Duration)>);

/// Creates a batch of these events. The ones with a time to live expire.
fn batch(rank: DpRank, events: &[(KvEvent, Option<Duration>)]) -> Batch {
    let expiring = events.iter().enumerate().filter_map(|(at, (_, ttl))| Some((at, (*ttl)?)));
    (rank, events.iter().map(|(event, _)| event.clone()).collect(), expiring.collect())
}

fn note(expiry: &mut Expiry, (rank, events, expiring): &Batch, now: Duration, age: Duration) {
    expiry.note(*rank, events, expiring, now, age);
}

fn expired(rank: DpRank, event: KvEvent, early: u64) -> Expired {
    Expired { rank, event, early }
}

#[test]
fn a_replay_gives_old_blocks_no_new_time() {
    let mut expiry = expiry(EXPIRING_BLOCKS_MAX);
    let host = |name| batch(0, &[(stored(Tier::Host, &[name]), Some(TTL))]);
    note(&mut expiry, &host(1), at(100), at(60));
    note(&mut expiry, &host(2), at(100), at(4));
    assert_eq!(expiry.next(at(100)), Some(expired(0, gone(Tier::Host, &[1]), 0)));
    assert_eq!((expiry.next(at(105)), expiry.deadline()), (None, Some(at(106))));
    // Announced again, then once more by a replay with a slow clock.
    note(&mut expiry, &host(2), at(105), at(0));
    note(&mut expiry, &host(2), at(106), at(60));
    assert_eq!(expiry.deadline(), Some(at(115)));
}

#[test]
fn the_age_of_a_batch_is_by_its_time_stamp_if_that_is_a_time_of_day() {
    let now = UNIX_EPOCH + at(1_700_000_000);
    let age_of = |seconds: f64| age(seconds.to_bits(), now);
    assert_eq!(age_of(1_699_999_990.0), at(10));
    assert_eq!(age_of(1_700_000_000.0), at(0));
    let ahead_or_none = [1_700_000_060.0, 0.0, 12_345.6, -1.0, f64::MAX, f64::NAN, f64::INFINITY];
    for seconds in ahead_or_none.into_iter().chain([f64::NEG_INFINITY, -0.0, f64::MIN_POSITIVE]) {
        assert_eq!(age_of(seconds), at(0), "{seconds}");
    }
}

#[test]
fn sources_share_what_deadlines_may_take() {
    let all = Arc::new(HeldBytes::new(10 * EXPIRING_BLOCK_BYTES, 8 * EXPIRING_BLOCK_BYTES));
    let [mut one, mut other] = [(); 2].map(|()| Expiry::new(HeldBytes::share(Arc::clone(&all))));
    let host = |names: &[u64]| batch(0, &[(stored(Tier::Host, names), Some(TTL))]);
    note(&mut one, &host(&[1, 2, 3, 4, 5, 6]), at(0), at(0));
    assert_eq!(one.next(at(0)), None);
    note(&mut other, &host(&[1, 2, 3, 4, 5]), at(0), at(0));
    assert_eq!(other.next(at(0)), Some(expired(0, gone(Tier::Host, &[1]), 1)));
    assert_eq!((other.next(at(0)), all.bytes()), (None, 10 * EXPIRING_BLOCK_BYTES));
    one.clear();
    drop(other);
    assert_eq!(all.bytes(), 0);
}

#[test]
fn a_batch_of_more_blocks_than_may_wait_is_bounded_while_it_is_read() {
    let mut expiry = expiry(8);
    let events: Vec<_> = (0..10_u64)
        .map(|at| (stored(Tier::Host, &[4 * at, 4 * at + 1, 4 * at + 2, 4 * at + 3]), Some(TTL)))
        .collect();
    note(&mut expiry, &batch(0, &events), at(0), at(0));
    assert_eq!((expiry.queue.len(), expiry.deadline()), (8, Some(at(0))));
    let first: Vec<u64> = (0..32).collect();
    assert_eq!(expiry.next(at(0)), Some(expired(0, gone(Tier::Host, &first), 32)));
    assert_eq!(expiry.next(at(0)), None);
    assert_eq!(
        expiry.next(at(10)),
        Some(expired(0, gone(Tier::Host, &(32..40).collect::<Vec<_>>()), 0))
    );
}

#[test]
fn a_block_leaves_when_it_was_not_announced_for_so_long() {
    let mut expiry = expiry(EXPIRING_BLOCKS_MAX);
    let host = (stored(Tier::Host, &[1, 2]), Some(TTL));
    note(&mut expiry, &batch(3, &[host, (stored(Tier::Device, &[1]), None)]), at(0), at(0));
    note(&mut expiry, &batch(3, &[(stored_names(Tier::Host, &[2]), Some(TTL))]), at(4), at(0));
    assert_eq!(expiry.deadline(), Some(at(10)));
    assert_eq!(expiry.next(at(9)), None);
    assert_eq!(expiry.next(at(10)), Some(expired(3, gone(Tier::Host, &[1]), 0)));
    assert_eq!(expiry.next(at(10)), None);
    assert_eq!(expiry.deadline(), Some(at(14)));
    assert_eq!(expiry.next(at(60)), Some(expired(3, gone(Tier::Host, &[2]), 0)));
    assert_eq!((expiry.next(at(60)), expiry.deadline()), (None, None));
}

#[test]
fn what_is_removed_otherwise_has_no_deadline() {
    let mut expiry = expiry(EXPIRING_BLOCKS_MAX);
    let all = (stored(Tier::Host, &[1, 2, 3]), Some(TTL));
    note(&mut expiry, &batch(0, std::slice::from_ref(&all)), at(0), at(0));
    note(&mut expiry, &batch(1, &[(stored(Tier::Disk, &[1]), Some(TTL))]), at(0), at(0));
    note(
        &mut expiry,
        &batch(0, &[(gone(Tier::Host, &[1]), None), (gone(Tier::Disk, &[2]), None)]),
        at(1),
        at(0),
    );
    // Another copy may remain.
    note(&mut expiry, &batch(0, &[(removed(Tier::Host, &[2]), None)]), at(1), at(0));
    assert_eq!(expiry.next(at(10)), Some(expired(0, gone(Tier::Host, &[2, 3]), 0)));
    assert_eq!(expiry.next(at(10)), Some(expired(1, gone(Tier::Disk, &[1]), 0)));
    // Within one batch, in its order.
    let again = [all.clone(), (KvEvent::Cleared, None), (stored(Tier::Host, &[4]), Some(TTL))];
    note(&mut expiry, &batch(0, &again), at(20), at(0));
    assert_eq!(expiry.next(at(30)), Some(expired(0, gone(Tier::Host, &[4]), 0)));
    note(&mut expiry, &batch(0, &[all]), at(40), at(0));
    expiry.clear();
    assert_eq!((expiry.next(at(60)), expiry.deadline()), (None, None));
}

#[test]
fn too_many_make_room_early_and_parts_are_bounded() {
    let mut expiry = expiry(EXPIRED_BLOCKS_MAX + 1);
    let names: Vec<_> = (0..EXPIRED_BLOCKS_MAX as u64 + 1).collect();
    note(&mut expiry, &batch(0, &[(stored(Tier::Host, &names), Some(TTL))]), at(0), at(0));
    assert_eq!(expiry.next(at(1)), None);
    let late = [(stored(Tier::Host, &[90_000, 90_001]), Some(2 * TTL))];
    note(&mut expiry, &batch(0, &late), at(1), at(0));
    assert_eq!(expiry.next(at(1)), Some(expired(0, gone(Tier::Host, &[0, 1]), 2)));
    assert_eq!(expiry.next(at(1)), None);
    let sizes: Vec<_> =
        std::iter::from_fn(|| expiry.next(at(10))).map(|part| part.event.operations()).collect();
    assert_eq!(sizes, [EXPIRED_BLOCKS_MAX - 1]);
    assert_eq!(expiry.deadline(), Some(at(21)));
}

#[derive(Debug, Clone)]
enum Op {
    Note(DpRank, Vec<(KvEvent, Option<Duration>)>),
    Pass(u64),
    Clear,
}

fn event() -> impl Strategy<Value = (KvEvent, Option<Duration>)> {
    let tier = || prop_oneof![Just(Tier::Host), Just(Tier::Disk)];
    let names = || prop::collection::vec(0_u64..6, 1..4);
    let ttl = || prop::option::of((1_u64..5).prop_map(at));
    prop_oneof![
        4 => (tier(), names(), ttl()).prop_map(|(tier, names, ttl)| (stored(tier, &names), ttl)),
        2 => (tier(), names(), ttl()).prop_map(|(tier, names, ttl)| (stored_names(tier, &names), ttl)),
        2 => (tier(), names()).prop_map(|(tier, names)| (gone(tier, &names), None)),
        1 => (tier(), names()).prop_map(|(tier, names)| (removed(tier, &names), None)),
        1 => Just((KvEvent::Cleared, None)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0_u32..2, prop::collection::vec(event(), 0..4)).prop_map(|(rank, events)| Op::Note(rank, events)),
        4 => (0_u64..4).prop_map(Op::Pass),
        1 => Just(Op::Clear),
    ]
}

fn later(
    model: &mut BTreeMap<(DpRank, Tier, BlockName), Duration>,
    key: (DpRank, Tier, BlockName),
    deadline: Duration,
) {
    let known = model.entry(key).or_insert(deadline);
    *known = deadline.max(*known);
}

proptest! {
    /// Compares with a plain map from blocks to deadlines.
    #[test]
    fn blocks_leave_when_they_are_due_and_not_before(ops in prop::collection::vec(op(), 1..40)) {
        let mut expiry = expiry(EXPIRING_BLOCKS_MAX);
        let mut model = BTreeMap::new();
        let mut now = at(0);
        for op in ops {
            match op {
                Op::Note(rank, events) => {
                    note(&mut expiry, &batch(rank, &events), now, at(0));
                    for (event, ttl) in events {
                        match (event, ttl) {
                            (KvEvent::Stored { tier, blocks, .. }, Some(ttl)) => {
                                blocks.iter().for_each(|at| later(&mut model, (rank, tier, at.name), now + ttl));
                            }
                            (KvEvent::StoredNames { tier, names }, Some(ttl)) => {
                                names.iter().for_each(|&name| later(&mut model, (rank, tier, name), now + ttl));
                            }
                            (KvEvent::Gone { tier, names }, _) => {
                                model.retain(|(of, at, name), _| (*of, *at) != (rank, tier) || !names.contains(name));
                            }
                            (KvEvent::Cleared, _) => model.retain(|(of, ..), _| *of != rank),
                            _ => {}
                        }
                    }
                }
                Op::Pass(seconds) => now += at(seconds),
                Op::Clear => {
                    expiry.clear();
                    model.clear();
                }
            }
            let mut left = Vec::new();
            while let Some(Expired { rank, event, early }) = expiry.next(now) {
                prop_assert_eq!(early, 0);
                let KvEvent::Gone { tier, names } = event else { panic!("not {event:?}") };
                left.extend(names.into_iter().map(|name| (rank, tier, name)));
            }
            left.sort_unstable();
            let due: Vec<_> = model.extract_if(.., |_, deadline| *deadline <= now).map(|(at, _)| at).collect();
            prop_assert_eq!(left, due);
            prop_assert_eq!(expiry.deadline(), model.values().min().copied());
        }
    }
}
