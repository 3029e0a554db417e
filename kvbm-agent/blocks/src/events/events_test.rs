use super::*;
use crate::identity::BlockIdentity;
use crate::tier::BlockTier;
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

fn registration(tier: BlockTier, local: u64) -> Registration {
    Registration { tier, identity: BlockIdentity::first(LocalHash(local)) }
}

fn publish(events: &Arc<EventManager>, tier: BlockTier, local: u64) -> RegistrationHandle {
    events.prepare(registration(tier, local)).publish().expect("it is published")
}

#[test]
fn a_handle_that_does_not_publish_says_nothing() {
    let events = EventManager::new(10);
    drop(events.prepare(registration(BlockTier::Host, 1)));
    assert_eq!(events.stats(), EventStats::default());
}

#[test]
fn a_tier_registers_a_block_once() {
    let events = EventManager::new(10);
    let host = publish(&events, BlockTier::Host, 1);
    let again = events.prepare(*host.registration()).publish();
    assert_eq!(again.expect_err("twice"), PublishError::AlreadyRegistered);
    let _disk = publish(&events, BlockTier::Disk, 1);
    drop(host);
    let tiers = events.tiers(BlockIdentity::first(LocalHash(1)).sequence);
    assert_eq!(tiers.iter().collect::<Vec<_>>(), [BlockTier::Disk]);
}

#[test]
fn tiers_agree_on_what_a_hash_means() {
    let events = EventManager::new(10);
    let _host = publish(&events, BlockTier::Host, 1);
    let mut other = registration(BlockTier::Disk, 1);
    other.identity.local = LocalHash(2);
    let refused = events.prepare(other).publish();
    assert_eq!(refused.expect_err("a conflict"), PublishError::Conflict);
    assert_eq!(events.stats().held_blocks, 1);
}

#[test]
fn an_overflow_asks_for_an_image_until_one_is_taken() {
    let events = EventManager::new(2);
    let handles: Vec<_> = (0..3).map(|local| publish(&events, BlockTier::Host, local)).collect();
    let mut read = Vec::new();
    assert_eq!(events.read(10, &mut read), Err(Overflowed));
    drop(handles);
    assert_eq!(events.read(10, &mut read), Err(Overflowed));
    let held = publish(&events, BlockTier::Disk, 9);
    let image = events.image();
    assert_eq!(image.watermark, 7);
    assert_eq!(image.registrations, [*held.registration()]);
    let stats = events.stats();
    assert_eq!((stats.overflows, stats.dropped_events, stats.queued_events), (1, 7, 0));
    drop(held);
    events.read(10, &mut read).expect("the image is taken");
    assert_eq!((read[0].number, read[0].change), (8, Change::Remove));
}

#[test]
fn a_further_reader_takes_nothing_from_the_queue() {
    let events = EventManager::new(10);
    let held = publish(&events, BlockTier::Host, 1);
    drop(publish(&events, BlockTier::Host, 2));
    let seen = events.registrations();
    assert_eq!((seen.watermark, seen.registrations), (3, vec![*held.registration()]));
    let mut read = Vec::new();
    events.read(10, &mut read).expect("nothing is lost");
    assert_eq!(read.len(), 3);
}

#[test]
fn a_reader_is_woken_once_there_is_something() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let events = EventManager::new(10);
    assert!(!events.poll(&waker));
    let _first = publish(&events, BlockTier::Host, 1);
    let _second = publish(&events, BlockTier::Host, 2);
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
    assert!(events.poll(&waker));
}

#[test]
fn parents_stand_before_their_children_in_an_image() {
    let events = EventManager::new(10);
    let locals: Vec<_> = (1..5).map(LocalHash).collect();
    let mut chain: Vec<_> = BlockIdentity::chain(&locals).collect();
    chain.reverse();
    let handles: Vec<_> = chain
        .iter()
        .map(|identity| {
            let registration = Registration { tier: BlockTier::Host, identity: *identity };
            events.prepare(registration).publish().expect("it is published")
        })
        .collect();
    let positions: Vec<_> =
        events.image().registrations.iter().map(|at| at.identity.position).collect();
    assert_eq!(positions, [0, 1, 2, 3]);
    drop(handles);
}

#[derive(Debug, Clone)]
enum Step {
    Register(usize, u64),
    Drop(usize),
    Read(usize),
    Image,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..BlockTier::COUNT, 0..6u64).prop_map(|(tier, local)| Step::Register(tier, local)),
        4 => any::<usize>().prop_map(Step::Drop),
        2 => (0..5usize).prop_map(Step::Read),
        1 => Just(Step::Image),
    ];
    prop::collection::vec(step, 1..80)
}

/// State of a reader: the number of the last event of each registration.
#[derive(Debug, Default)]
struct Reader {
    last: u64,
    held: BTreeMap<(BlockTier, u64), Registration>,
}

impl Reader {
    fn key(registration: &Registration) -> (BlockTier, u64) {
        (registration.tier, registration.identity.sequence.0)
    }

    fn apply(&mut self, event: &BlockEvent) {
        assert_eq!(event.number, self.last + 1, "no number is left out");
        self.last = event.number;
        let key = Self::key(&event.registration);
        // Per hash, events are in order: a registration begins only if none exists, and ends only if one exists.
        match event.change {
            Change::Register => assert!(self.held.insert(key, event.registration).is_none()),
            Change::Remove => assert!(self.held.remove(&key).is_some()),
        }
    }

    fn replace(&mut self, image: Image) {
        assert!(image.watermark >= self.last);
        self.last = image.watermark;
        let held = image.registrations.into_iter().map(|at| (Self::key(&at), at));
        self.held = held.collect();
    }
}

proptest! {
    #[test]
    fn image_and_events_are_the_truth(room in 1usize..12, steps in steps()) {
        let events = EventManager::new(room);
        let mut handles: Vec<RegistrationHandle> = Vec::new();
        let mut reader = Reader::default();
        let mut read = Vec::new();
        for step in steps {
            match step {
                Step::Register(tier, local) => {
                    let registration = registration(BlockTier::ALL[tier], local);
                    let is_held = handles.iter().any(|at| *at.registration() == registration);
                    let published = events.prepare(registration).publish();
                    prop_assert_eq!(published.is_err(), is_held);
                    handles.extend(published.ok());
                }
                Step::Drop(at) if !handles.is_empty() => {
                    drop(handles.swap_remove(at % handles.len()));
                }
                Step::Drop(_) => {}
                Step::Read(max) => match events.read(max, &mut read) {
                    Ok(()) => read.drain(..).for_each(|event| reader.apply(&event)),
                    Err(Overflowed) => reader.replace(events.image()),
                },
                Step::Image => reader.replace(events.image()),
            }
        }
        match events.read(usize::MAX, &mut read) {
            Ok(()) => read.drain(..).for_each(|event| reader.apply(&event)),
            Err(Overflowed) => reader.replace(events.image()),
        }
        let truth: BTreeMap<_, _> =
            handles.iter().map(|at| (Reader::key(at.registration()), *at.registration())).collect();
        prop_assert_eq!(&reader.held, &truth);
        let stats = events.stats();
        prop_assert_eq!(stats.registers - stats.removes, handles.len() as u64);
    }
}
