use super::*;
use kvasir_blocks::events::{Registration, RegistrationHandle};
use kvasir_blocks::{BlockIdentity, BlockTier, Change, EventManager};
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const INTERVAL: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn events(numbers: impl IntoIterator<Item = u64>) -> Vec<BlockEvent> {
    let event = |number| {
        let identity = BlockIdentity::first(LocalHash(number));
        let registration = Registration { tier: BlockTier::Host, identity };
        BlockEvent { number, change: Change::Register, registration }
    };
    numbers.into_iter().map(event).collect()
}

/// A queue after its first image and first round.
fn begun() -> Waiting {
    let mut waiting = Waiting::new(INTERVAL, STORAGE_QUEUED_EVENTS_MAX);
    assert_eq!(waiting.next(at(0)), Work::Image);
    waiting.image_taken(0);
    let round = Work::Events { events: Vec::new(), ends_round: true };
    assert_eq!(waiting.next(at(0)), round);
    waiting
}

#[test]
fn events_wait_for_the_interval() {
    let mut waiting = begun();
    waiting.push(&events(1..=2));
    assert_eq!((waiting.next(at(9)), waiting.next_at()), (Work::Nothing, at(10)));
    waiting.push(&events([3]));
    let all = Work::Events { events: events(1..=3), ends_round: true };
    assert_eq!(waiting.next(at(11)), all);
    assert_eq!((waiting.next(at(20)), waiting.next_at()), (Work::Nothing, at(21)));
}

#[test]
fn a_full_batch_does_not_wait() {
    let mut waiting = begun();
    let full = events(1..=STORAGE_BATCH_EVENTS as u64);
    waiting.push(&full);
    assert_eq!(waiting.next_at(), Duration::ZERO);
    let now = Work::Events { events: full, ends_round: false };
    assert_eq!(waiting.next(at(1)), now);
    assert_eq!((waiting.next(at(1)), waiting.next_at()), (Work::Nothing, at(10)));
}

#[test]
fn too_many_events_are_replaced_by_an_image() {
    let mut waiting = Waiting::new(INTERVAL, 3);
    assert_eq!(waiting.next(at(0)), Work::Image);
    waiting.image_taken(5);
    waiting.push(&events(4..=8));
    assert_eq!(waiting.len(), 3, "what the image has is left out");
    waiting.push(&events([9]));
    assert_eq!((waiting.len(), waiting.overflows(), waiting.dropped_events()), (0, 1, 4));
    waiting.push(&events([10]));
    assert_eq!(waiting.dropped_events(), 5);
    let quiet = Work::Events { events: Vec::new(), ends_round: true };
    assert_eq!(waiting.next(at(1)), quiet, "a sign of life comes even so");
    assert_eq!((waiting.next(at(9)), waiting.next_at()), (Work::Nothing, at(10)));
    assert_eq!(waiting.next(at(10)), Work::Image, "at most one in an interval");
}

#[test]
fn at_the_end_an_image_that_is_wanted_comes_at_once() {
    let mut waiting = begun();
    waiting.push(&events([1]));
    waiting.demand_image();
    assert_eq!(waiting.next(at(1)), Work::Nothing, "at most one in an interval");
    waiting.hurry();
    assert_eq!(waiting.next(at(1)), Work::Image, "it has what was dropped");
}

#[test]
fn what_the_last_image_has_cannot_be_lost() {
    let mut waiting = Waiting::new(INTERVAL, 3);
    assert_eq!(waiting.next(at(0)), Work::Image);
    waiting.image_taken(5);
    waiting.lost(5);
    assert!(!matches!(waiting.next(at(60)), Work::Image));
    waiting.lost(6);
    assert_eq!(waiting.next(at(60)), Work::Image);
}

#[test]
fn what_waits_is_due_at_the_end() {
    let mut waiting = begun();
    waiting.push(&events([1]));
    waiting.hurry();
    assert!(
        matches!(waiting.next(at(1)), Work::Events { events, ends_round: true } if events.len() == 1)
    );
}

#[derive(Debug, Clone)]
enum Step {
    Change(usize, usize),
    Tell(usize),
    Publish(u64),
    Demand,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..8_usize, 1..4_usize).prop_map(|(block, tier)| Step::Change(block, tier)),
        3 => (0..9_usize).prop_map(Step::Tell),
        3 => (0..12_u64).prop_map(Step::Publish),
        1 => Just(Step::Demand),
    ];
    prop::collection::vec(step, 0..200)
}

type Held = BTreeSet<(BlockTier, u64)>;

fn key(registration: &Registration) -> (BlockTier, u64) {
    (registration.tier, registration.identity.sequence.0)
}

/// Publishes all due work at `now` to a subscriber with the blocks `known`.
fn publish(waiting: &mut Waiting, manager: &EventManager, now: Duration, known: &mut Held) {
    loop {
        match waiting.next(now) {
            Work::Image => {
                let image = manager.registrations();
                waiting.image_taken(image.watermark);
                *known = image.registrations.iter().map(key).collect();
            }
            Work::Events { events, ends_round } => {
                for event in events {
                    let key = key(&event.registration);
                    match event.change {
                        Change::Register => assert!(known.insert(key), "stored twice"),
                        Change::Remove => assert!(known.remove(&key), "removed twice"),
                    }
                }
                if ends_round {
                    return;
                }
            }
            Work::Nothing => return,
        }
    }
}

proptest! {
    /// However late changes are added and published, a subscriber ends with the registered blocks, and receives no
    /// change twice.
    #[test]
    fn a_subscriber_ends_with_what_is_registered(
        events_max in 1..12_usize,
        queued_max in 1..12_usize,
        steps in steps(),
    ) {
        let locals: Vec<_> = (0..8).map(LocalHash).collect();
        let chain: Vec<_> = BlockIdentity::chain(&locals).collect();
        let manager = EventManager::new(queued_max);
        let mut handles: BTreeMap<(usize, usize), RegistrationHandle> = BTreeMap::new();
        let mut waiting = Waiting::new(INTERVAL, events_max);
        let mut known = Held::new();
        let mut now = Duration::ZERO;
        let tell = |waiting: &mut Waiting, max| {
            let mut events = Vec::new();
            match manager.read(max, &mut events) {
                Ok(()) => waiting.push(&events),
                Err(_overflowed) => waiting.lost(manager.image().watermark),
            }
        };
        for step in steps {
            match step {
                Step::Change(block, tier) => {
                    if handles.remove(&(block, tier)).is_none() {
                        let registration =
                            Registration { tier: BlockTier::ALL[tier], identity: chain[block] };
                        let handle = manager.prepare(registration).publish().expect("it is new");
                        handles.insert((block, tier), handle);
                    }
                }
                Step::Tell(max) => tell(&mut waiting, max),
                Step::Publish(seconds) => {
                    now += at(seconds);
                    publish(&mut waiting, &manager, now, &mut known);
                }
                Step::Demand => waiting.demand_image(),
            }
            prop_assert!(waiting.len() <= events_max);
        }
        tell(&mut waiting, usize::MAX);
        publish(&mut waiting, &manager, now + INTERVAL, &mut known);
        publish(&mut waiting, &manager, now + INTERVAL * 2, &mut known);
        let truth: Held = manager.registrations().registrations.iter().map(key).collect();
        prop_assert_eq!(known, truth);
    }
}
