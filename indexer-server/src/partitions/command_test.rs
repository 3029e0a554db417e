use super::*;
use crate::partitions::STEP_OPERATIONS_MAX;
use kvasir_index::Limits;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, LocalHash, SourceState, SourceStatus, StoredBlock,
    Tier, WorkerId,
};
use std::collections::BTreeMap;
use std::iter;

fn index() -> (Index, SourceId) {
    let mut index = Index::new(Limits::default());
    let worker = WorkerId::new("w").expect("a valid id");
    let source = index.add_source(&worker, "s", 0, CopyMode::Set).expect("a first source");
    (index, source)
}

fn stored(count: u64) -> KvEvent {
    let blocks = (1..=count).map(|at| StoredBlock { name: BlockName(at), local: LocalHash(at) });
    KvEvent::Stored { parent: None, tier: Tier::Device, blocks: blocks.collect() }
}

fn status() -> SourceStatus {
    let applied = Cursor { incarnation: Incarnation(7), sequence: 9, fingerprint: None };
    SourceStatus { state: SourceState::Exact, applied: Some(applied), ..SourceStatus::default() }
}

/// Runs work to its end, as if a reader came in each step. Returns the number of steps.
fn run(index: &mut Index, work: &mut Work) -> usize {
    let steps = iter::repeat_with(|| {
        let done = work.step(index, &mut { STEP_OPERATIONS_MAX });
        if !done {
            work.pause(index);
        }
        done
    });
    steps.take_while(|done| !done).count() + 1
}

fn apply(source: SourceId, events: Vec<KvEvent>) -> Work {
    let batch = IndexBatch { rank: 0, events, names: Vec::new() };
    Work::Apply(Apply::new(source, batch, status(), None))
}

fn applied(work: &Work) -> &Applied {
    match work {
        Work::Apply(apply) => &apply.done,
        Work::Brief(_) | Work::Sweep(_) | Work::Cut(_) | Work::Restore(_) => {
            panic!("not an apply")
        }
    }
}

#[test]
fn a_long_event_is_applied_in_steps_and_stays_one_chain() {
    let (mut index, source) = index();
    let mut work = apply(source, vec![stored(5_000)]);
    assert_eq!(run(&mut index, &mut work), 5_000_usize.div_ceil(STEP_OPERATIONS_MAX));
    assert_eq!(applied(&work).counts, BlockCounts { applied: 5_000, ..BlockCounts::default() });
    assert_eq!((index.stats().pairs, index.stats().parked), (5_000, 0));
    assert_eq!(index.status(source), Some(&status()));
    index.validate().expect("a sound index");
}

#[test]
fn the_status_is_set_with_the_last_event_and_not_before() {
    let (mut index, source) = index();
    let mut work = apply(source, vec![stored(STEP_OPERATIONS_MAX as u64), stored(2_000)]);
    assert!(!work.step(&mut index, &mut { STEP_OPERATIONS_MAX }));
    assert_eq!(index.status(source), Some(&SourceStatus::default()));
    work.pause(&mut index);
    run(&mut index, &mut work);
    assert_eq!(index.status(source), Some(&status()));
}

#[test]
fn a_clear_is_one_operation_in_many_steps() {
    let (mut index, source) = index();
    run(&mut index, &mut apply(source, vec![stored(5_000)]));
    let mut work = apply(source, vec![KvEvent::Cleared, KvEvent::Cleared, stored(1)]);
    assert!(run(&mut index, &mut work) >= 4);
    assert_eq!(applied(&work).counts, BlockCounts { applied: 2, noop: 1, ..Default::default() });
    assert_eq!(index.stats().pairs, 1);
    index.validate().expect("a sound index");
}

#[test]
fn removing_a_source_frees_all_it_holds() {
    let (mut index, source) = index();
    run(&mut index, &mut apply(source, vec![stored(5_000)]));
    let kind = SweepKind::Source;
    let mut work =
        Work::Sweep(Sweep { source, kind, removed: 0, begun: false, error: None, reply: None });
    assert!(run(&mut index, &mut work) >= 4);
    assert!(matches!(&work, Work::Sweep(Sweep { removed: 5_000, error: None, .. })));
    assert_eq!((index.stats().pairs, index.stats().workers), (0, 0));
}

#[test]
fn what_clears_a_source_sets_its_status_too() {
    let (mut index, source) = index();
    run(&mut index, &mut apply(source, vec![stored(5_000)]));
    let after = SourceStatus { state: SourceState::Degraded, ..SourceStatus::default() };
    let kind = SweepKind::All(after.clone());
    let mut work =
        Work::Sweep(Sweep { source, kind, removed: 0, begun: false, error: None, reply: None });
    assert!(!work.step(&mut index, &mut { STEP_OPERATIONS_MAX }));
    assert_eq!(index.status(source), Some(&status()));
    run(&mut index, &mut work);
    assert_eq!((index.status(source), index.stats().pairs), (Some(&after), 0));
}

#[test]
fn events_of_a_source_that_is_gone_are_counted_as_refused() {
    let (mut index, _) = index();
    let mut work = apply(SourceId(99), vec![stored(3), KvEvent::Cleared]);
    run(&mut index, &mut work);
    let refused = IndexError::UnknownSource { source_id: SourceId(99) };
    let expected = Applied { counts: BlockCounts::default(), refused: Some((refused, 4)) };
    assert_eq!(applied(&work), &expected);
}

type Records = BTreeMap<BlockName, (Option<BlockName>, Option<LocalHash>, bool, [u32; 3])>;

fn records(index: &mut Index) -> Records {
    let worker = WorkerId::new("w").expect("a valid id");
    let mut scan = index.begin_dump(&worker, None).expect("a known worker");
    let mut records = Vec::new();
    index.dump_chunk(&mut scan, usize::MAX / 2, &mut records).expect("nothing changes");
    index.cancel_dump(scan);
    let held = records.into_iter();
    held.map(|at| (at.name, (at.parent, at.local, at.placed, at.copies))).collect()
}

/// Events with names from a small pool, so that names collide and change their meaning.
fn some_events(seed: u64) -> Vec<KvEvent> {
    let mut state = seed;
    let mut below = |limit: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % limit
    };
    let event = |below: &mut dyn FnMut(u64) -> u64| {
        let count = 1 + below(12);
        let names: Vec<_> = (0..count).map(|_| BlockName(below(9))).collect();
        match below(8) {
            0 => KvEvent::StoredNames { tier: Tier::Host, names },
            1 | 2 => KvEvent::Removed { tier: Tier::Device, names },
            _ => {
                let parent = Some(BlockName(below(9))).filter(|at| at.0 > 3);
                let block = |&name| StoredBlock { name, local: LocalHash(below(3)) };
                let blocks = names.iter().map(block).collect();
                KvEvent::Stored { parent, tier: Tier::Device, blocks }
            }
        }
    };
    (0..20).map(|_| event(&mut below)).collect()
}

/// The result does not depend on where readers split an event.
#[test]
fn events_in_pieces_are_the_events() {
    for seed in 0..2_000 {
        let events = some_events(seed);
        let ((mut whole, source), (mut pieces, _)) = (index(), index());
        let mut all = apply(source, events.clone());
        assert!(all.step(&mut whole, &mut { usize::MAX }), "seed {seed}");
        let mut cut = apply(source, events);
        let budget = usize::try_from(seed % 5 + 1).expect("small");
        while !cut.step(&mut pieces, &mut { budget }) {
            cut.pause(&mut pieces);
            pieces.validate().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        }
        assert_eq!(applied(&cut), applied(&all), "seed {seed}");
        assert_eq!(records(&mut pieces), records(&mut whole), "seed {seed}");
        assert_eq!(pieces.status(source), whole.status(source), "seed {seed}");
    }
}
