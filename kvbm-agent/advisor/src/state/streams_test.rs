use super::*;
use crate::state::tree::BLOCK_COPIES;
use kvasir_proto::convert::StorageBlock;
use kvasir_proto::types::{PartitionKey, SequenceHash, WorkerId};
use proptest::prelude::*;
use std::collections::{BTreeMap as Map, VecDeque};

const HALF_LIFE: Duration = Duration::from_secs(60);

fn block(sequence: u64) -> StorageBlock {
    let prefix = (sequence > 0).then(|| SequenceHash(sequence - 1));
    StorageBlock { sequence: SequenceHash(sequence), prefix, bytes: 10, metadata: Map::new() }
}

fn address(worker: usize) -> WorkerAddress {
    let partition = PartitionKey::new("m", "").expect("names");
    WorkerAddress { partition, worker: WorkerId::new(&format!("w{worker}")).expect("a name") }
}

/// A simulated publisher of one location, with the blocks that it holds.
#[derive(Debug)]
struct Publisher {
    worker: usize,
    location: &'static str,
    incarnation: u128,
    sequence: u64,
    held: BTreeSet<u64>,
}

impl Publisher {
    fn batch(&mut self, content: StorageContent) -> StorageBatch {
        self.sequence += 1;
        StorageBatch {
            address: address(self.worker),
            location: self.location.to_owned(),
            incarnation: Incarnation(self.incarnation),
            sequence: self.sequence,
            content,
        }
    }

    fn toggle(&mut self, sequence: u64) -> StorageBatch {
        let change = if self.held.remove(&sequence) {
            StorageChange::Remove(block(sequence))
        } else {
            self.held.insert(sequence);
            StorageChange::Store(block(sequence))
        };
        self.batch(StorageContent::Changes(vec![change]))
    }

    /// Publishes an image in parts of two blocks.
    fn image(&mut self) -> Vec<StorageBatch> {
        let held: Vec<_> = self.held.iter().copied().collect();
        let parts: Vec<_> = if held.is_empty() { vec![&[][..]] } else { held.chunks(2).collect() };
        let last = parts.len() - 1;
        let part = |(at, part): (usize, &&[u64])| StorageImagePart {
            begins: at == 0,
            ends: at == last,
            blocks: part.iter().copied().map(block).collect(),
        };
        let parts: Vec<_> = parts.iter().enumerate().map(part).collect();
        parts.into_iter().map(|part| self.batch(StorageContent::Image(part))).collect()
    }

    fn restart(&mut self) {
        self.incarnation += 10;
        self.sequence = 0;
        self.held.clear();
    }
}

fn publishers() -> Vec<Publisher> {
    let new = |(worker, location)| Publisher {
        worker,
        location,
        incarnation: worker as u128,
        sequence: 0,
        held: BTreeSet::new(),
    };
    [(0, "host"), (0, "disk"), (1, "host")].map(new).into()
}

/// The tree's blocks of each place.
fn known(tree: &Tree) -> Map<(String, String), Vec<u64>> {
    let place = |at: super::super::tree::PlaceView<'_>| {
        let name = (at.address.worker.as_str().to_owned(), at.location.to_owned());
        (name, tree.blocks_of(at.id))
    };
    tree.places().map(place).collect()
}

#[test]
fn what_is_lacking_is_asked_for_once_in_a_while() {
    let mut tree = Tree::new(100, HALF_LIFE);
    let mut streams = Streams::default();
    let mut publisher = publishers().remove(0);
    let at = Duration::from_secs;
    let first = publisher.toggle(1);
    assert_eq!(streams.apply(&mut tree, &first, at(0)), Applied::Gap, "there was no image");
    assert_eq!(streams.due_requests(&tree, at(0), at(5)), [address(0)].into());
    assert!(streams.due_requests(&tree, at(4), at(5)).is_empty());
    assert_eq!(streams.due_requests(&tree, at(5), at(5)).len(), 1);
    for part in publisher.image() {
        assert_eq!(streams.apply(&mut tree, &part, at(6)), Applied::Taken);
    }
    assert_eq!(streams.apply(&mut tree, &first, at(6)), Applied::Stale);
    assert!(streams.due_requests(&tree, at(60), at(5)).is_empty());
    let _lost = publisher.toggle(2);
    let next = publisher.toggle(3);
    assert_eq!(streams.apply(&mut tree, &next, at(60)), Applied::Gap);
    assert_eq!(streams.count(StreamState::Lacking), 1);
    assert_eq!(streams.expire(&mut tree, at(70), at(10)), 0);
    assert_eq!(streams.expire(&mut tree, at(71), at(10)), 1);
    assert!(tree.is_empty() && known(&tree).is_empty());
}

#[test]
fn what_there_was_no_room_for_is_asked_for_once_there_is() {
    let mut tree = Tree::new(10, HALF_LIFE);
    let mut streams = Streams::default();
    let mut publisher = publishers().remove(0);
    let second = Duration::from_secs(1);
    publisher.held = (0..12).collect();
    for part in publisher.image() {
        streams.apply(&mut tree, &part, Duration::ZERO);
    }
    assert_eq!((tree.len(), tree.refused()), (10, 2));
    assert!(streams.due_requests(&tree, second, second).is_empty());
    for sequence in 0..3 {
        let removed = publisher.toggle(sequence);
        streams.apply(&mut tree, &removed, second);
    }
    assert_eq!(streams.due_requests(&tree, second, second).len(), 1);
    for part in publisher.image() {
        streams.apply(&mut tree, &part, second);
    }
    assert_eq!(tree.len(), 9);
    assert!(streams.due_requests(&tree, second * 9, second).is_empty());
}

#[test]
fn copies_of_the_same_blocks_are_bounded_too() {
    let mut tree = Tree::new(10, HALF_LIFE);
    let places: Vec<_> =
        (0..9).map(|worker| tree.place(&address(worker), "disk").expect("few")).collect();
    for (place, sequence) in places.iter().flat_map(|at| (0..10).map(move |block| (*at, block))) {
        tree.store(place, &block(sequence), Duration::ZERO);
    }
    let copies: usize = tree.places().map(|at| at.blocks).sum();
    assert_eq!((tree.len(), copies, tree.refused()), (10, 10 * BLOCK_COPIES, 50));
    assert!(tree.is_partial(places[8]) && !tree.has_room(0));
    tree.store(places[0], &block(3), Duration::ZERO);
    assert_eq!(tree.refused(), 50, "a copy that is there already needs no room");
    places.iter().for_each(|place| tree.forget(*place));
    assert!(tree.is_empty() && tree.has_room(0));
}

#[derive(Debug, Clone)]
enum Step {
    Toggle(usize, u64),
    Image(usize),
    Restart(usize),
}

/// A step, and the fate of its messages: delivered, lost, duplicated, or delayed by a number of messages.
fn steps() -> impl Strategy<Value = Vec<(Step, u8, usize)>> {
    let step = prop_oneof![
        12 => (0..3_usize, 0..9_u64).prop_map(|(at, sequence)| Step::Toggle(at, sequence)),
        2 => (0..3_usize).prop_map(Step::Image),
        1 => (0..3_usize).prop_map(Step::Restart),
    ];
    prop::collection::vec((step, 0..12_u8, 0..6_usize), 0..150)
}

proptest! {
    /// Messages are lost, delayed or duplicated, and publishers restart. A place in state `Exact` equals its publisher.
    /// Once the lacking publishers have sent an image, all places do.
    #[test]
    fn who_lacks_nothing_is_known_exactly(steps in steps()) {
        let mut tree = Tree::new(1_000, HALF_LIFE);
        let mut streams = Streams::default();
        let mut publishers = publishers();
        let mut wire: VecDeque<StorageBatch> = VecDeque::new();
        for (step, fate, late) in steps {
            let sent = match step {
                Step::Toggle(at, sequence) => vec![publishers[at].toggle(sequence)],
                Step::Image(at) => publishers[at].image(),
                Step::Restart(at) => { publishers[at].restart(); publishers[at].image() }
            };
            for message in sent {
                match fate {
                    0 => {}
                    1 => { wire.push_back(message.clone()); wire.push_back(message); }
                    // Messages of one location keep their order unless they are late.
                    2 => wire.insert(wire.len().saturating_sub(late), message),
                    _ => wire.push_back(message),
                }
            }
            while wire.len() > 6 {
                let message = wire.pop_front().expect("one");
                streams.apply(&mut tree, &message, Duration::ZERO);
            }
        }
        for message in wire {
            streams.apply(&mut tree, &message, Duration::ZERO);
        }
        // An empty batch of each publisher shows whether its last messages were lost.
        for publisher in &mut publishers {
            let quiet = publisher.batch(StorageContent::Changes(Vec::new()));
            streams.apply(&mut tree, &quiet, Duration::ZERO);
        }
        let truth: Map<_, Vec<u64>> = publishers
            .iter()
            .map(|at| ((format!("w{}", at.worker), at.location.to_owned()), at.held.iter().copied().collect()))
            .collect();
        for place in tree.places() {
            if streams.state(place.id) == Some(StreamState::Exact) {
                let name = (place.address.worker.as_str().to_owned(), place.location.to_owned());
                prop_assert_eq!(&tree.blocks_of(place.id), &truth[&name]);
            }
        }
        let asked = streams.due_requests(&tree, Duration::ZERO, Duration::ZERO);
        let mut lacking = publishers;
        lacking.retain(|at| asked.contains(&address(at.worker)));
        for publisher in &mut lacking {
            for part in publisher.image() {
                streams.apply(&mut tree, &part, Duration::ZERO);
            }
        }
        prop_assert_eq!(known(&tree), truth);
        let all: BTreeSet<_> = known(&tree).into_values().flatten().collect();
        prop_assert_eq!(tree.len(), all.len());
        let blocks: usize = tree.places().map(|at| at.blocks).sum();
        let bytes: u64 = tree.places().map(|at| at.bytes).sum();
        prop_assert_eq!(bytes, blocks as u64 * 10);
    }
}
