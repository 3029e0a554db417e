//! Compares each policy with a model that scans all blocks.

use super::*;
use crate::identity::BlockIdentity;
use kvasir_proto::types::LocalHash;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const BLOCKS: u32 = 24;

/// Blocks of a tree: block `n` continues block `n / 2`, so any block may come before its parent.
fn identity(number: u32) -> BlockIdentity {
    let mut path = Vec::new();
    let mut at = number + 1;
    while at > 0 {
        path.push(LocalHash(at.into()));
        at /= 2;
    }
    path.reverse();
    BlockIdentity::chain(&path).last().expect("a path")
}

fn entry(number: u32, priority: u8) -> InactiveEntry {
    InactiveEntry { slot: SlotId(number), identity: identity(number), priority: Priority(priority) }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Registers a new block, or activates and releases a registered one.
    Toggle(u32, u8),
    Unregister(u32),
    Evict(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..BLOCKS, 0..3u8).prop_map(|(number, priority)| Step::Toggle(number, priority)),
        1 => (0..BLOCKS).prop_map(Step::Unregister),
        3 => (1..5usize).prop_map(Step::Evict),
    ];
    prop::collection::vec(step, 1..150)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Used,
    Inactive { priority: u8, since: u64 },
}

/// Model: the registered blocks as a plain list.
#[derive(Debug, Clone, Default)]
struct Model {
    blocks: BTreeMap<u32, Place>,
    clock: u64,
}

impl Model {
    fn is_leaf(&self, number: u32) -> bool {
        let sequence = identity(number).sequence;
        !self.blocks.keys().any(|other| identity(*other).parent == Some(sequence))
    }

    /// The next block to evict.
    fn victim(&self, only_leaves: bool) -> Option<u32> {
        let inactive = self.blocks.iter().filter_map(|(number, place)| match place {
            Place::Used => None,
            Place::Inactive { priority, since } => Some((*priority, *since, *number)),
        });
        let may_go = inactive.filter(|(_, _, number)| !only_leaves || self.is_leaf(*number));
        may_go.min().map(|(_, _, number)| number)
    }

    fn inactive(&self) -> usize {
        self.blocks.values().filter(|place| **place != Place::Used).count()
    }
}

/// Runs steps on policy and model, and compares every eviction. `only_leaves` is the policy's rule.
fn equals_the_model(mut index: Box<dyn InactiveIndex>, only_leaves: bool, steps: &[Step]) {
    let mut model = Model::default();
    for step in steps {
        match *step {
            Step::Toggle(number, priority) => match model.blocks.get(&number).copied() {
                None => {
                    index.registered(&identity(number));
                    index.touched(identity(number).sequence);
                    model.blocks.insert(number, Place::Used);
                }
                Some(Place::Used) => {
                    model.clock += 1;
                    index.insert(entry(number, priority));
                    let place = Place::Inactive { priority, since: model.clock };
                    model.blocks.insert(number, place);
                }
                Some(Place::Inactive { priority, .. }) => {
                    index.remove(&entry(number, priority));
                    model.blocks.insert(number, Place::Used);
                }
            },
            Step::Unregister(number) => {
                if model.blocks.get(&number) == Some(&Place::Used) {
                    index.unregistered(&identity(number));
                    model.blocks.remove(&number);
                }
            }
            Step::Evict(count) => {
                let mut after = model.clone();
                let mut expected = Vec::new();
                while expected.len() < count {
                    let Some(number) = after.victim(only_leaves) else { break };
                    after.blocks.remove(&number);
                    expected.push(SlotId(number));
                }
                let mut slots = Vec::new();
                if expected.len() == count {
                    assert!(index.evict(count, &mut slots));
                    assert_eq!(slots, expected);
                    model = after;
                } else {
                    assert!(!index.evict(count, &mut slots), "all or nothing");
                    assert_eq!(slots, []);
                }
            }
        }
        assert_eq!(index.len(), model.inactive());
        assert_eq!(index.is_empty(), model.inactive() == 0);
    }
}

proptest! {
    #[test]
    fn lru_evicts_what_was_unused_for_longest(steps in steps()) {
        equals_the_model(EvictionPolicy::Lru.index(BLOCKS), false, &steps);
    }

    #[test]
    fn lineage_evicts_the_oldest_leaf_and_never_a_parent(steps in steps()) {
        equals_the_model(EvictionPolicy::Lineage.index(BLOCKS), true, &steps);
    }

    /// If all blocks have equal use counts, there is one frequency tier, which is an LRU.
    #[test]
    fn tiny_lfu_among_equals_is_lru(steps in steps()) {
        // The sketch is so large, and the blocks so few, that no estimate reaches three.
        let steps: Vec<_> = {
            let mut seen = BTreeMap::<u32, u32>::new();
            steps.into_iter().filter(|step| match step {
                Step::Toggle(number, _) => { let n = seen.entry(*number).or_default(); *n += 1; *n <= 4 }
                Step::Unregister(_) => false,
                Step::Evict(_) => true,
            }).collect()
        };
        equals_the_model(Box::new(TinyLfu::new(4_096)), false, &steps);
    }

    /// The evicted block has the lowest priority and, within it, is not warmer than the remaining blocks.
    #[test]
    fn tiny_lfu_evicts_the_coldest(uses in prop::collection::vec((0..BLOCKS, 1..20u8), 1..60)) {
        let mut index = TinyLfu::new(BLOCKS);
        let mut sketch = FrequencySketch::new(BLOCKS);
        let mut numbers = BTreeSet::new();
        for (number, times) in &uses {
            for _ in 0..*times {
                index.touched(identity(*number).sequence);
                sketch.record(identity(*number).sequence);
            }
            numbers.insert(*number);
        }
        let tier = |number: u32| {
            let count = sketch.estimate(identity(number).sequence);
            [3, 8, 15].iter().filter(|least| count >= **least).count()
        };
        for number in &numbers {
            index.insert(entry(*number, u8::try_from(number % 2).expect("small")));
        }
        let mut order = Vec::new();
        let mut slots = Vec::new();
        while index.evict(1, &mut slots) {
            let number = slots.pop().expect("a slot").0;
            order.push((number % 2, tier(number)));
        }
        prop_assert!(order.is_sorted(), "{:?}", order);
        prop_assert_eq!(order.len(), numbers.len());
    }

    /// A few uses halve each word at most once.
    #[test]
    fn a_sketch_underestimates_only_by_age(hashes in prop::collection::vec(0..40u64, 1..300)) {
        let mut sketch = FrequencySketch::new(1_000);
        let mut counts = BTreeMap::<u64, u64>::new();
        for hash in hashes {
            sketch.record(SequenceHash(hash));
            *counts.entry(hash).or_default() += 1;
        }
        for (hash, count) in counts {
            prop_assert!(u64::from(sketch.estimate(SequenceHash(hash))) >= count.min(15) / 2);
        }
    }

    #[test]
    fn lists_are_queues(steps in prop::collection::vec((0..12u32, 0..70u32), 1..200)) {
        let mut lists = ClassLists::new(12, 70);
        let mut model: Vec<(u32, SlotId)> = Vec::new();
        for (slot, class) in steps {
            let slot = SlotId(slot);
            let was = model.iter().position(|(_, at)| *at == slot);
            prop_assert_eq!(lists.remove(slot), was.is_some());
            match was {
                Some(at) => { model.remove(at); }
                None => { lists.push_back(class, slot); model.push((class, slot)); }
            }
            let lowest = model.iter().map(|(class, _)| *class).min();
            prop_assert_eq!(lists.lowest(), lowest);
            prop_assert_eq!(lists.len(), model.len());
            for class in model.iter().map(|(class, _)| *class).collect::<BTreeSet<_>>() {
                let of: Vec<_> = model.iter().filter(|(at, _)| *at == class).collect();
                prop_assert_eq!(lists.front(class), of.first().map(|(_, slot)| *slot));
                prop_assert_eq!(lists.last_slot(class), of.last().map(|(_, slot)| *slot));
            }
        }
    }
}

/// After ten uses of each block, the counts of a burst are halved; then again.
#[test]
fn counts_age() {
    let mut sketch = FrequencySketch::new(64);
    let hot = SequenceHash(1);
    for _ in 0..15 {
        sketch.record(hot);
    }
    assert_eq!(sketch.estimate(hot), 15);
    for round in 0..4 {
        for other in 0..640u64 {
            // Uses of other hashes, far apart, each once.
            sketch.record(SequenceHash(
                (round * 640 + other + 2).wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ));
        }
    }
    assert!(sketch.estimate(hot) < 8, "{}", sketch.estimate(hot));
}

/// A block that was warm and has cooled down is evicted, although newer blocks are equally cold.
#[test]
fn warm_blocks_cool_down() {
    let mut index = TinyLfu::new(BLOCKS);
    for _ in 0..15 {
        index.touched(identity(0).sequence);
    }
    index.insert(entry(0, 0));
    for other in 0..20_000u64 {
        index.touched(SequenceHash(other.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    }
    let mut slots = Vec::new();
    for number in 1..BLOCKS {
        index.insert(entry(number, 0));
    }
    assert!(index.evict(index.len(), &mut slots));
    let place = slots.iter().position(|slot| *slot == SlotId(0)).expect("it went");
    assert!(place < BLOCKS as usize, "{place}");
    assert_eq!(slots.len(), BLOCKS as usize);
}

/// A single use of many blocks does not evict blocks that are used repeatedly.
#[test]
fn a_scan_does_not_flush_tiny_lfu() {
    let mut index = TinyLfu::new(BLOCKS);
    for _ in 0..4 {
        index.touched(identity(0).sequence);
    }
    index.insert(entry(0, 0));
    let mut slots = Vec::new();
    for number in 1..BLOCKS {
        index.touched(identity(number).sequence);
        index.insert(entry(number, 0));
        if number > 8 {
            assert!(index.evict(1, &mut slots));
        }
    }
    assert!(!slots.contains(&SlotId(0)), "{slots:?}");
}

/// Hashes reported by engines may form a cycle; positions can't.
#[test]
fn a_circle_of_parents_is_evicted_all_the_same() {
    let of = |sequence, parent, position| BlockIdentity {
        sequence: SequenceHash(sequence),
        parent: Some(SequenceHash(parent)),
        local: LocalHash(1),
        position,
    };
    let first = of(1, 2, 1);
    let second = of(2, 1, 2);
    let mut index = Lineage::new();
    for (slot, identity) in [(0, first), (1, second)] {
        index.registered(&identity);
        index.insert(InactiveEntry { slot: SlotId(slot), identity, priority: Priority(0) });
    }
    let mut slots = Vec::new();
    assert!(index.evict(2, &mut slots));
    assert_eq!(slots, [SlotId(1), SlotId(0)]);
}

/// After all blocks are gone, a lineage has no state left.
#[test]
fn nothing_is_left_of_a_lineage() {
    let mut index = Lineage::new();
    for number in (0..BLOCKS).rev() {
        index.registered(&identity(number));
        index.insert(entry(number, 0));
    }
    let mut slots = Vec::new();
    assert!(index.evict(BLOCKS as usize, &mut slots));
    assert!(format!("{index:?}").contains("nodes: {}, leaves: {}, inactive: 0"), "{index:?}");
}
