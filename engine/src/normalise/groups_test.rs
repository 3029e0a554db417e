//! Tests which groups count, for all statements of engines.

use super::normalise_test::*;
use super::*;
use crate::decode::{RawMoved, RawRemoved, RawStored};
use kvasir_proto::types::{Group, GroupKind};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;

#[test]
fn the_main_group_is_the_first_of_a_main_kind() {
    use DropReason::UnknownGroup;
    type Step = (Option<u32>, Option<&'static str>, Option<DropReason>);
    let check = |steps: &[Step]| {
        let mut normaliser = vllm();
        for (index, &(group, kind, expected)) in steps.iter().enumerate() {
            let place = Place { group, kind, ..Place::default() };
            let out =
                store(&mut normaliser, RawStored { place, window: Some(8), ..stored(None, &[1]) });
            assert_eq!(reasons(&out).first().map(|drop| drop.0), expected, "{steps:?} {index}");
        }
    };
    // Without a stated kind: nil and 0 are the main group.
    check(&[(None, None, None), (Some(0), None, None), (Some(1), None, Some(UnknownGroup))]);
    // A kind is stored for its group, because removals do not state it.
    check(&[
        (Some(0), Some("sliding_window"), None),
        (Some(1), Some("full_attention"), None),
        (Some(0), None, None),
        (Some(1), None, None),
        (Some(2), None, Some(UnknownGroup)),
    ]);
    // Of two main kinds the first is the main group, and the second a further one.
    check(&[
        (Some(1), Some("MLA_attention"), None),
        (Some(0), Some("sink_full_attention"), None),
        (Some(0), None, None),
        (Some(1), None, None),
    ]);
    // Group 0 is no longer presumed once another group is the main one.
    check(&[(Some(3), Some("full_attention"), None), (Some(0), None, Some(UnknownGroup))]);
    for kind in ["mamba", "chunked_local_attention"] {
        check(&[(Some(0), Some(kind), None), (Some(0), None, None)]);
    }
    for kind in ["cross_attention", "unknown", ""] {
        check(&[(Some(0), Some(kind), Some(UnknownGroup)), (Some(0), None, Some(UnknownGroup))]);
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
    group: Option<u32>,
    kind: Option<&'static str>,
) -> Normalised {
    let place = Place { group, kind, ..Place::default() };
    match announced {
        Announced::Stored => {
            store(normaliser, RawStored { place, window: Some(8), ..stored(None, &[name]) })
        }
        Announced::Removed => remove(normaliser, RawRemoved { place, ..removed(&[name]) }),
    }
}

#[test]
fn a_contradiction_is_rejected_and_removals_go_on() {
    use Announced::{Removed, Stored};
    use DropReason::{GroupKind, OtherGroup, PresumedGroup, UnknownGroup};
    const FULL: Option<&str> = Some("full_attention");
    const OTHER: Option<&str> = Some("sliding_window");
    const UNKNOWN: Option<&str> = Some("unknown");
    let check = |steps: &[Step]| {
        let mut normaliser = vllm();
        for (index, &(announced, group, kind, expected)) in steps.iter().enumerate() {
            let out = announce(&mut normaliser, announced, 1, group, kind);
            let reason = reasons(&out).first().map(|drop| drop.0);
            assert_eq!(reason, expected, "{steps:?} {index}");
            assert_eq!(out.is_lossy(), expected == Some(PresumedGroup), "{steps:?} {index}");
        }
    };
    // A group of a known kind is indexed as a further group.
    let unknown = (UNKNOWN, Some(UnknownGroup), Some(OtherGroup));
    for (kind, store, removal) in [(OTHER, None, None), unknown] {
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
                (Stored, group, kind, store),
                (Removed, group, None, removal),
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
                (Stored, group, kind, store),
                (Removed, group, None, removal),
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
        (Stored, Some(1), None, Some(UnknownGroup)),
        (Stored, Some(1), FULL, Some(GroupKind)),
        (Stored, Some(1), FULL, None),
    ]);
    // A second main group is a further group, whose kind may change.
    check(&[
        (Stored, Some(1), FULL, None),
        (Stored, Some(0), FULL, None),
        (Stored, Some(0), OTHER, None),
        (Removed, Some(0), None, None),
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
            let out = announce(&mut normaliser, announced, name, group, kind);
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

// === further groups ===

/// Places, windows and tokens of further groups.
fn place_of(group: u32, kind: &'static str) -> Place<'static> {
    Place { group: Some(group), kind: Some(kind), ..Place::default() }
}

fn names_of(event: &KvEvent) -> Vec<u64> {
    match event {
        KvEvent::Stored { blocks, .. } => blocks.iter().map(|block| block.name.0).collect(),
        KvEvent::StoredNames { names, .. }
        | KvEvent::Removed { names, .. }
        | KvEvent::Gone { names, .. } => names.iter().map(|name| name.0).collect(),
        KvEvent::Cleared | KvEvent::ClearedTier(_) => vec![],
    }
}

fn in_group(group: u32, names: &[u64]) -> Vec<u64> {
    names.iter().map(|&name| Group::name(group, BlockName(name)).0).collect()
}

#[test]
fn further_groups_are_declared_and_indexed_under_their_own_names() {
    let mut normaliser = vllm();
    let window = place_of(1, "sliding_window");
    let sparse = RawStored { place: window, window: Some(7), ..stored(None, &[1, 2, 3]) };
    let names = vec![BlockName(2), BlockName(3)];
    let out = store(&mut normaliser, RawStored { names, ..sparse.clone() });
    let group = Group { number: 1, kind: GroupKind::Window, block_size: 2, unit: 2, window: 7 };
    let declared =
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![group.declaration()] };
    assert_eq!(out.events.first(), Some(&declared));
    assert_eq!(out.events.get(1).map(names_of), Some(in_group(1, &[2, 3])));
    assert_eq!(normaliser.learned().groups, [group]);
    // Only the window is known: no block has a known position.
    assert!(out.reasons().iter().any(|at| at.0 == Reason::UnknownContent));
    let out = store(&mut normaliser, stored(None, &[1, 2, 3]));
    assert_eq!(out.events.len(), 1, "it is declared once");

    let place = Place { group: Some(1), ..Place::default() };
    let out = remove(&mut normaliser, RawRemoved { place, ..removed(&[3]) });
    assert_eq!(out.events.iter().map(names_of).collect::<Vec<_>>(), [in_group(1, &[3])]);

    // A clear also drops the declaration, which comes again before the next store.
    let out = normalise_of_rank(&mut normaliser, None, RawEvent::Cleared(Place::default()));
    assert_eq!(out.events, [KvEvent::Cleared]);
    let out = store(&mut normaliser, stored(None, &[1, 2, 3]));
    assert_eq!((out.events.len(), out.events.first()), (2, Some(&declared)));
    // So does the index after a loss, unless the groups are declared since.
    normaliser.doubt_blocks();
    let out = store(&mut normaliser, stored(None, &[1, 2, 3]));
    assert_eq!(out.events.first(), Some(&declared));
    // After a restart, the group is known and declared again.
    let learned = (**normaliser.learned()).clone();
    let mut resumed = vllm();
    resumed.resume(learned, [], &[0]);
    let out = remove(&mut resumed, RawRemoved { place, ..removed(&[2]) });
    assert_eq!(out.events.iter().map(names_of).collect::<Vec<_>>(), [in_group(1, &[2])]);
    let out = store(&mut resumed, stored(None, &[1, 2, 3]));
    assert_eq!(out.events.first(), Some(&declared));
}

/// vLLM announces group 0 first, which may be one of a sliding window.
#[test]
fn stores_of_further_groups_come_after_those_of_the_main_group() {
    let mut normaliser = vllm();
    let window = place_of(0, "sliding_window");
    let full = place_of(1, "full_attention");
    let store_in = |place, names: &[u64]| {
        let store = RawStored { place, window: Some(8), ..stored(None, names) };
        RawEvent::Stored(Box::new(store))
    };
    let remove_in =
        |place, names: &[u64]| RawEvent::Removed(RawRemoved { place, ..removed(names) });
    let moved = RawEvent::Moved(RawMoved {
        names: vec![BlockName(2)],
        from: Some("GPU"),
        place: Place { medium: Some("CPU"), ..window },
    });
    let on_cpu = Place { medium: Some("CPU"), ..Place::default() };
    let events = vec![
        store_in(window, &[1]),
        store_in(window, &[2]),
        store_in(full, &[1]),
        remove_in(window, &[1]),
        store_in(window, &[3]),
        store_in(full, &[3]),
        moved,
        store_in(window, &[4]),
        RawEvent::Cleared(on_cpu),
        store_in(window, &[5]),
        RawEvent::Cleared(Place::default()),
    ];
    let out = normaliser.normalise(Batch { ts_bits: 0, rank: None, events });
    let is_declaration = |event: &KvEvent| matches!(event, KvEvent::Stored { blocks, .. } if Group::of_declaration(blocks[0]).is_some());
    let found: Vec<_> = out
        .events
        .iter()
        .filter(|event| !is_declaration(event))
        .map(|event| (kind_of(event), names_of(event)))
        .collect();
    let grouped = |name| in_group(0, &[name]);
    let expected = [
        ("stored", vec![1]),
        ("stored", grouped(1)),
        ("stored", grouped(2)),
        ("removed", grouped(1)),
        ("stored", vec![3]),
        ("stored", grouped(3)),
        ("names", grouped(2)),
        ("removed", grouped(2)),
        ("stored", grouped(4)),
        ("cleared", vec![]),
        ("stored", grouped(5)),
        ("cleared", vec![]),
    ];
    assert_eq!(found, expected);
}

fn kind_of(event: &KvEvent) -> &'static str {
    match event {
        KvEvent::Stored { .. } => "stored",
        KvEvent::StoredNames { .. } => "names",
        KvEvent::Removed { .. } | KvEvent::Gone { .. } => "removed",
        KvEvent::Cleared | KvEvent::ClearedTier(_) => "cleared",
    }
}

#[test]
fn a_group_that_cannot_be_indexed_makes_the_source_doubtful() {
    let mut normaliser = vllm();
    for (kind, window) in [("sliding_window", None), ("cross_attention", Some(8))] {
        let place = place_of(1, kind);
        let out = store(&mut normaliser, RawStored { place, window, ..stored(None, &[1]) });
        assert_eq!(reasons(&out), [(DropReason::UnknownGroup, 1)], "{kind}");
        assert_eq!(out.reasons().first().map(|at| at.0), Some(Reason::UnannouncedGroups));
    }
    // Each batch states it, because a clear ends earlier reasons.
    normalise_of_rank(&mut normaliser, None, RawEvent::Cleared(Place::default()));
    let place = place_of(0, "full_attention");
    let out = store(&mut normaliser, RawStored { place, ..stored(None, &[1]) });
    assert_eq!(out.reasons().first().map(|at| at.0), Some(Reason::UnannouncedGroups));
}

#[test]
fn a_group_before_an_announced_one_exists() {
    let mut normaliser = vllm();
    let stored_in = |normaliser: &mut Normaliser, place| {
        let out = store(normaliser, RawStored { place, window: Some(8), ..stored(None, &[1]) });
        out.reasons().first().map(|at| at.0)
    };
    let main = place_of(1, "full_attention");
    assert_eq!(stored_in(&mut normaliser, main), Some(Reason::UnannouncedGroups));
    assert_eq!(stored_in(&mut normaliser, place_of(0, "sliding_window")), None);
    assert_eq!(stored_in(&mut normaliser, main), None);
}

#[test]
fn sizes_of_a_group_are_the_largest_block_and_the_common_divisor() {
    let mut normaliser = vllm();
    for (block_size, expected) in [(4, (4, 4)), (16, (16, 4)), (6, (16, 2))] {
        let place = place_of(2, "mamba");
        store(&mut normaliser, RawStored { place, block_size, ..stored(None, &[1]) });
        let known = normaliser.learned().groups.first().map(|at| (at.block_size, at.unit));
        assert_eq!(known, Some(expected));
    }
}
