//! Tests which groups count, for all statements of engines.

use super::normalise_test::*;
use super::*;
use crate::decode::{RawRemoved, RawStored};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;

#[test]
fn the_main_group_is_the_first_of_a_main_kind() {
    use DropReason::{OtherGroup, OtherMainGroup};
    type Step = (Option<u32>, Option<&'static str>, Option<DropReason>);
    let check = |steps: &[Step]| {
        let mut normaliser = vllm();
        for (index, &(group, kind, expected)) in steps.iter().enumerate() {
            let place = Place { group, kind, ..Place::default() };
            let out = store(&mut normaliser, RawStored { place, ..stored(None, &[1]) });
            assert_eq!(reasons(&out).first().map(|drop| drop.0), expected, "{steps:?} {index}");
        }
    };
    // Without a stated kind: nil and 0 are the main group.
    check(&[(None, None, None), (Some(0), None, None), (Some(1), None, Some(OtherGroup))]);
    // A kind is stored for its group, because removals do not state it.
    check(&[
        (Some(0), Some("sliding_window"), Some(OtherGroup)),
        (Some(1), Some("full_attention"), None),
        (Some(0), None, Some(OtherGroup)),
        (Some(1), None, None),
        (Some(2), None, Some(OtherGroup)),
    ]);
    // Of two main kinds the first counts.
    check(&[
        (Some(1), Some("MLA_attention"), None),
        (Some(0), Some("sink_full_attention"), Some(OtherMainGroup)),
        (Some(0), None, Some(OtherMainGroup)),
        (Some(1), None, None),
    ]);
    // Group 0 is no longer presumed once another group is the main one.
    check(&[(Some(3), Some("full_attention"), None), (Some(0), None, Some(OtherGroup))]);
    for kind in ["mamba", "chunked_local_attention", "cross_attention", "unknown", ""] {
        check(&[(Some(0), Some(kind), Some(OtherGroup)), (Some(0), None, Some(OtherGroup))]);
    }
}

#[test]
fn the_number_of_groups_learned_is_limited() {
    let mut groups = Groups::default();
    for group in 0..10_000 {
        let place = Place { group: Some(group), kind: Some("mamba"), ..Place::default() };
        assert_eq!(groups.check_stored(&place), Err(DropReason::OtherGroup));
    }
    assert_eq!(groups.left_out(), place::GROUPS_MAX);
}

/// An event of block 1, its stated group and kind, and the expected reason to drop it.
type Step = (Announced, Option<u32>, Option<&'static str>, Option<DropReason>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Announced {
    Stored,
    Removed,
}

fn announce(
    normaliser: &mut Normaliser,
    announced: Announced,
    name: u64,
    (group, kind): (Option<u32>, Option<&'static str>),
) -> Normalised {
    let place = Place { group, kind, ..Place::default() };
    match announced {
        Announced::Stored => store(normaliser, RawStored { place, ..stored(None, &[name]) }),
        Announced::Removed => remove(normaliser, RawRemoved { place, ..removed(&[name]) }),
    }
}

#[test]
fn a_contradiction_is_rejected_and_removals_go_on() {
    use Announced::{Removed, Stored};
    use DropReason::{GroupKind, OtherGroup, OtherMainGroup, PresumedGroup};
    const FULL: Option<&str> = Some("full_attention");
    const OTHER: Option<&str> = Some("sliding_window");
    const UNKNOWN: Option<&str> = Some("unknown");
    let check = |steps: &[Step]| {
        let mut normaliser = vllm();
        for (index, &(announced, group, kind, expected)) in steps.iter().enumerate() {
            let out = announce(&mut normaliser, announced, 1, (group, kind));
            let reason = reasons(&out).first().map(|drop| drop.0);
            assert_eq!(reason, expected, "{steps:?} {index}");
            assert_eq!(out.is_lossy(), expected == Some(PresumedGroup), "{steps:?} {index}");
        }
    };
    for kind in [OTHER, UNKNOWN] {
        for group in [None, Some(0), Some(3)] {
            // The main group never changes.
            check(&[
                (Stored, group, FULL, None),
                (Stored, group, kind, Some(GroupKind)),
                (Removed, group, None, None),
                (Removed, group, kind, None),
                (Stored, group, None, None),
            ]);
            // Another group may turn out to be the main one. Its excluded blocks are missing.
            check(&[
                (Stored, group, kind, Some(OtherGroup)),
                (Removed, group, None, Some(OtherGroup)),
                (Stored, group, FULL, Some(GroupKind)),
                (Stored, group, FULL, None),
                (Removed, group, None, None),
            ]);
        }
        for group in [None, Some(0)] {
            // Blocks counted as the main group's belong to another group: all blocks are suspect.
            check(&[
                (Stored, group, None, None),
                (Removed, group, None, None),
                (Stored, group, kind, Some(PresumedGroup)),
                (Stored, group, kind, Some(OtherGroup)),
                (Removed, group, None, Some(OtherGroup)),
                (Stored, Some(1), FULL, None),
            ]);
        }
    }
    check(&[
        (Stored, Some(0), None, None),
        (Stored, Some(1), FULL, Some(PresumedGroup)),
        (Stored, Some(1), FULL, None),
        (Removed, Some(0), None, Some(OtherGroup)),
        (Removed, Some(1), None, None),
    ]);
    // Blocks excluded while the group's kind was unknown are missing.
    check(&[
        (Stored, Some(1), None, Some(OtherGroup)),
        (Stored, Some(1), FULL, Some(GroupKind)),
        (Stored, Some(1), FULL, None),
    ]);
    // No blocks of a second main group were accepted, so none can be missing.
    check(&[
        (Stored, Some(1), FULL, None),
        (Stored, Some(0), FULL, Some(OtherMainGroup)),
        (Stored, Some(0), OTHER, Some(OtherMainGroup)),
        (Removed, Some(0), None, Some(OtherMainGroup)),
        (Stored, Some(1), None, None),
    ]);
    // Events without a group come from a connector, which does not number groups.
    check(&[
        (Stored, Some(1), FULL, None),
        (Stored, None, FULL, None),
        (Stored, None, OTHER, Some(PresumedGroup)),
        (Removed, None, None, Some(OtherGroup)),
    ]);
}

/// Copies in an index with copy counts, after the events of a normaliser.
#[derive(Debug, Default)]
struct Index(BTreeMap<u64, u64>);

impl Index {
    fn apply(&mut self, out: &Normalised) {
        for event in &out.events {
            match event {
                KvEvent::Stored { blocks, .. } => {
                    blocks.iter().for_each(|block| *self.0.entry(block.name.0).or_default() += 1);
                }
                KvEvent::Removed { names, .. } => {
                    for name in names {
                        let copies = self.0.entry(name.0).or_default();
                        *copies = copies.saturating_sub(1);
                    }
                }
                KvEvent::Cleared | KvEvent::ClearedTier(_) => self.0.clear(),
                KvEvent::StoredNames { .. } | KvEvent::Gone { .. } => {
                    panic!("not among the events: {event:?}")
                }
            }
        }
        if out.is_lossy() {
            // Suspect blocks are dropped in the end.
            self.0.clear();
        }
    }
}

type Event = (Announced, u64, Option<u32>, Option<&'static str>);

fn any_event() -> impl Strategy<Value = Event> {
    let kinds = vec![
        None,
        None,
        Some("full_attention"),
        Some("mla_attention"),
        Some("mamba"),
        Some("unknown"),
    ];
    let announced = prop_oneof![Just(Announced::Stored), Just(Announced::Removed)];
    (announced, 1_u64..4, select(vec![None, Some(0), Some(1), Some(2)]), select(kinds))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_096))]

    /// For all kinds that an engine states, a block is held at most as often as in the groups that count. It
    /// is therefore gone once it was removed from these groups. Blocks are missing only if events were
    /// rejected.
    #[test]
    fn no_block_outlives_its_removal(events in vec(any_event(), 1..60)) {
        let mut normaliser = vllm();
        let mut engine: BTreeMap<(u64, Option<u32>), u64> = BTreeMap::new();
        let mut index = Index::default();
        let mut rejected = false;
        for (announced, name, group, kind) in events {
            let copies = engine.entry((name, group)).or_default();
            match announced {
                Announced::Stored => *copies += 1,
                Announced::Removed if *copies > 0 => *copies -= 1,
                // Engines remove only blocks that they have.
                Announced::Removed => continue,
            }
            let out = announce(&mut normaliser, announced, name, (group, kind));
            rejected |= out.drops.iter().any(|(reason, _)| reason.kind() == DropKind::Rejected);
            index.apply(&out);
            for name in 1..4 {
                let held = index.0.get(&name).copied().unwrap_or(0);
                let of_name = engine.iter().filter(|((of, _), _)| *of == name);
                let counting =
                    of_name.filter(|((_, group), _)| normaliser.groups.check_removed(*group).is_ok());
                let copies: u64 = counting.map(|(_, copies)| copies).sum();
                prop_assert!(held <= copies, "{held} copies of {name} are held, there are {copies}");
                prop_assert!(rejected || held == copies, "{held} of {copies} copies of {name} are held");
            }
        }
    }
}
