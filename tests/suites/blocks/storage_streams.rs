//! The example subscriber of storage events, without a network: whatever messages are lost, it ends with the
//! publishers' blocks.

use crate::storage::example::{Place, StorageIndex};
use kvasir_proto::convert::{
    StorageBatch, StorageBlock, StorageChange, StorageContent, StorageImagePart, WorkerAddress,
};
use kvasir_proto::types::{Incarnation, PartitionKey, SequenceHash, WorkerId};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

fn block(sequence: u64) -> StorageBlock {
    let prefix = (sequence > 0).then(|| SequenceHash(sequence - 1));
    StorageBlock { sequence: SequenceHash(sequence), prefix, bytes: 10, metadata: BTreeMap::new() }
}

fn address(worker: usize) -> WorkerAddress {
    let partition = PartitionKey::new("m", "").expect("names");
    WorkerAddress { partition, worker: WorkerId::new(&format!("w{worker}")).expect("a name") }
}

/// A simulated publisher of one location, with its blocks.
#[derive(Debug)]
struct Publisher {
    place: Place,
    incarnation: u128,
    sequence: u64,
    blocks: BTreeSet<u64>,
}

impl Publisher {
    fn new(worker: usize, location: &str) -> Self {
        let place = Place { address: address(worker), location: location.to_owned() };
        Self { place, incarnation: 1, sequence: 0, blocks: BTreeSet::new() }
    }

    fn batch(&mut self, content: StorageContent) -> StorageBatch {
        self.sequence += 1;
        StorageBatch {
            address: self.place.address.clone(),
            location: self.place.location.clone(),
            incarnation: Incarnation(self.incarnation),
            sequence: self.sequence,
            content,
        }
    }

    fn toggle(&mut self, sequence: u64) -> StorageBatch {
        let change = if self.blocks.remove(&sequence) {
            StorageChange::Remove(block(sequence))
        } else {
            self.blocks.insert(sequence);
            StorageChange::Store(block(sequence))
        };
        self.batch(StorageContent::Changes(vec![change]))
    }

    /// Publishes an image in parts of two blocks.
    fn image(&mut self) -> Vec<StorageBatch> {
        let blocks: Vec<_> = self.blocks.iter().copied().map(block).collect();
        let empty = vec![&[][..]];
        let parts = if blocks.is_empty() { empty } else { blocks.chunks(2).collect() };
        let last = parts.len() - 1;
        let part = |(at, blocks): (usize, &&[StorageBlock])| {
            let part =
                StorageImagePart { begins: at == 0, ends: at == last, blocks: blocks.to_vec() };
            self.batch(StorageContent::Image(part))
        };
        parts.iter().enumerate().map(part).collect()
    }

    fn restart(&mut self) {
        self.incarnation += 1;
        self.sequence = 0;
        self.blocks.clear();
    }
}

/// The blocks of the places that the index knows completely.
fn known(index: &StorageIndex) -> BTreeMap<Place, BTreeSet<u64>> {
    let exact = index.places().filter(|(_, _, is_exact)| *is_exact);
    exact
        .map(|(place, blocks, _)| (place.clone(), blocks.keys().map(|hash| hash.0).collect()))
        .collect()
}

#[test]
fn missing_batches_are_requested_and_silent_places_expire() {
    let mut index = StorageIndex::default();
    let mut publisher = Publisher::new(0, "host");
    let at = Duration::from_millis;
    let first = publisher.toggle(1);
    index.apply(first.clone(), at(0));
    assert!(known(&index).is_empty(), "there was no image");
    assert_eq!(index.due_requests(at(0)), [address(0)].into());
    assert!(index.due_requests(at(999)).is_empty(), "at most one request a second");
    assert_eq!(index.due_requests(at(1_000)).len(), 1);
    publisher.image().into_iter().for_each(|part| index.apply(part, at(2_000)));
    index.apply(first, at(2_000));
    assert!(index.due_requests(at(9_000)).is_empty(), "a duplicate is no gap");
    let _lost = publisher.toggle(2);
    index.apply(publisher.toggle(3), at(9_000));
    assert_eq!(index.due_requests(at(9_000)).len(), 1);
    index.expire(at(69_000));
    assert_eq!(index.entries(), 2);
    index.expire(at(69_001));
    assert_eq!(index.entries(), 0);
}

#[test]
fn the_report_names_the_least_recently_used_leaf() {
    let mut index = StorageIndex::default();
    let mut host = Publisher::new(0, "host");
    let mut disk = Publisher::new(1, "disk");
    let at = Duration::from_secs;
    host.image().into_iter().chain(disk.image()).for_each(|part| index.apply(part, at(0)));
    // Block 1 continues block 0, and block 2 continues block 1: block 0 is the oldest, but no leaf.
    (0..=2).for_each(|sequence| index.apply(host.toggle(sequence), at(1 + sequence)));
    index.apply(host.toggle(5), at(4));
    index.apply(disk.toggle(2), at(5));
    let _lost = disk.batch(StorageContent::Changes(Vec::new()));
    index.apply(disk.toggle(6), at(6));
    let expected = "\
        w0 (model m) host: 4 blocks, 40 bytes; \
        least recently used leaf: 0000000000000002, unused for 7 s, copies: 2\n\
        w1 (model m) disk: 1 blocks, 10 bytes, incomplete; \
        least recently used leaf: 0000000000000002, unused for 5 s, copies: 2\n";
    assert_eq!(index.report(at(10)), expected);
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
    /// Messages are lost, delayed or duplicated, and publishers restart. A place without missing batches equals its
    /// publisher. Once the requested publishers have sent an image, all places do.
    #[test]
    fn a_place_without_missing_batches_is_exact(steps in steps()) {
        let mut index = StorageIndex::default();
        let mut publishers = [(0, "host"), (0, "disk"), (1, "host")].map(|(worker, location)| Publisher::new(worker, location));
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
                    2 => wire.insert(wire.len().saturating_sub(late), message),
                    _ => wire.push_back(message),
                }
            }
            while wire.len() > 6 {
                index.apply(wire.pop_front().expect("one"), Duration::ZERO);
            }
        }
        wire.into_iter().for_each(|message| index.apply(message, Duration::ZERO));
        // An empty batch of each publisher shows whether its last messages were lost.
        for publisher in &mut publishers {
            let heartbeat = publisher.batch(StorageContent::Changes(Vec::new()));
            index.apply(heartbeat, Duration::ZERO);
        }
        let truth: BTreeMap<_, _> = publishers.iter().map(|at| (at.place.clone(), at.blocks.clone())).collect();
        for (place, blocks) in known(&index) {
            prop_assert_eq!(&blocks, &truth[&place]);
        }
        let requested = index.due_requests(Duration::from_secs(1));
        for publisher in publishers.iter_mut().filter(|at| requested.contains(&at.place.address)) {
            publisher.image().into_iter().for_each(|part| index.apply(part, Duration::ZERO));
        }
        let blocks: usize = truth.values().map(BTreeSet::len).sum();
        prop_assert_eq!(known(&index), truth);
        prop_assert_eq!(index.entries(), blocks + publishers.len());
    }
}
