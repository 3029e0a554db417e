use super::*;
use kvasir_index::Limits;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, LocalHash, SourceState, StoredBlock, Tier, WorkerId,
};
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

/// Runs work to its end; how many holds that took.
fn run(index: &mut Index, work: &mut Work) -> usize {
    let holds = iter::repeat_with(|| work.step(index, &mut { HOLD_OPERATIONS_MAX }));
    holds.take_while(|done| !done).count() + 1
}

fn apply(source: SourceId, events: Vec<KvEvent>) -> Work {
    Work::Apply(Apply::new((source, 0), events, status(), None))
}

fn applied(work: &Work) -> &Applied {
    match work {
        Work::Apply(apply) => &apply.done,
        Work::Brief(_) | Work::Sweep(_) => panic!("not an apply"),
    }
}

#[test]
fn a_long_event_is_applied_in_holds_and_stays_one_chain() {
    let (mut index, source) = index();
    let mut work = apply(source, vec![stored(5_000)]);
    assert_eq!(run(&mut index, &mut work), 5);
    assert_eq!(applied(&work).counts, BlockCounts { applied: 5_000, ..BlockCounts::default() });
    assert_eq!((index.stats().pairs, index.stats().parked), (5_000, 0));
    assert_eq!(index.status(source), Some(&status()));
    index.validate().expect("a sound index");
}

#[test]
fn the_status_is_set_with_the_last_event_and_not_before() {
    let (mut index, source) = index();
    let mut work = apply(source, vec![stored(HOLD_OPERATIONS_MAX as u64), stored(2_000)]);
    assert!(!work.step(&mut index, &mut { HOLD_OPERATIONS_MAX }));
    assert_eq!(index.status(source), Some(&SourceStatus::default()));
    run(&mut index, &mut work);
    assert_eq!(index.status(source), Some(&status()));
}

#[test]
fn a_clear_is_one_operation_in_many_holds() {
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
    let mut work = Work::Sweep(Sweep { source, kind, removed: 0, error: None, reply: None });
    assert!(run(&mut index, &mut work) >= 4);
    assert!(matches!(&work, Work::Sweep(Sweep { removed: 5_000, error: None, .. })));
    assert_eq!((index.stats().pairs, index.stats().workers), (0, 0));
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
