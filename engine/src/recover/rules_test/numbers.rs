//! Tests of implausible sequence numbers.

use super::super::NUMBERS_AHEAD_MAX;
use super::*;
use kvasir_proto::limits::UNSTATED_FIRST_SEQUENCE_MAX;

#[test]
fn a_number_far_ahead_moves_nothing_and_who_can_be_asked_is_asked() {
    let far = 6 + NUMBERS_AHEAD_MAX;
    for far in [far, u64::MAX] {
        let mut source = Source::at_five(asking());
        assert_eq!(source.live(A, far), [refuse(far, 6)]);
        assert_eq!((source.state(), source.recovery.status().head), (SourceState::Exact, Some(5)));
        let (round, ask) = source.asked();
        assert_eq!(ask, RANGE(6));
        assert_eq!(source.input(Input::RangeEnd { round, head: Some(5) }), []);
        assert_eq!(source.recovery.deadline(), None, "nobody is asked any more");
        assert_eq!(source.live(A, 6), [apply(A, 6)]);
        assert_eq!(source.input(Input::Announced { incarnation: A, head: Some(far) }), []);
        assert_eq!(source.state(), SourceState::Exact);
        assert_eq!(source.asked().1, RANGE(7));
    }
    let mut source = Source::at_five(asking());
    assert_eq!(source.live(A, far - 1), [], "one that can be believed");
    assert_eq!(source.state(), SourceState::Gap);
}

/// The index was away for more batches than are plausible.
#[test]
fn who_is_far_ahead_indeed_says_so_by_a_dump() {
    let mut source = Source::at_five(asking());
    let far = 1 << 40;
    assert_eq!(source.live(A, far), [refuse(far, 6)]);
    let (round, _) = source.asked();
    assert_eq!(source.input(Input::RangeGone { round }), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, DUMP);
    let end = Input::DumpEnd { round, incarnation: A, watermark: Some(far) };
    let finished = Step::FinishDump { cursor: Some(cursor(A, far)) };
    assert_eq!(source.input(end), [Step::BeginDump, finished]);
    assert_eq!(source.live(A, far + 1), [apply(A, far + 1)]);
    assert_eq!(source.state(), SourceState::Exact);
}

#[test]
fn numbers_at_the_end_of_their_range() {
    let resume = SourceStatus { applied: Some(cursor(A, u64::MAX - 1)), ..SourceStatus::default() };
    let mut source = Source::new(asking());
    source.recovery = Recovery::new(asking(), Some(&resume), source.now);
    source.connect(A);
    assert_eq!(source.live(A, u64::MAX), [apply(A, u64::MAX)]);
    assert_eq!(source.live(A, u64::MAX), []);
    assert_eq!((source.state(), source.recovery.expected()), (SourceState::Exact, None));
}

#[test]
fn an_absurd_first_number_is_not_the_first() {
    let mut source = Source::new(rewinding());
    source.connect(A);
    for absurd in [u64::MAX, 1 << 62, UNSTATED_FIRST_SEQUENCE_MAX + 1] {
        assert_eq!(source.live(A, absurd), [refuse(absurd, 0)]);
        assert_eq!((source.state(), source.applied()), (SourceState::Cold, None));
    }
    assert_eq!(source.live(A, 0), [apply(A, 0)]);
    assert_eq!(source.live(A, 1), [apply(A, 1)]);
    assert_eq!((source.state(), source.recovery.counts().duplicate), (SourceState::Exact, 0));
    let mut source = Source::new(asking());
    source.connect(A);
    assert_eq!(source.live(A, u64::MAX), [refuse(u64::MAX, 0)]);
    assert_eq!(source.asked().1, DUMP);
    // A source that states its first number may begin anywhere.
    let mut source = Source::new(rewinding());
    let first = Some(1 << 62);
    source.input(Input::Connected { incarnation: A, first, head: None, in_order: false });
    assert_eq!(source.live(A, 1 << 62), [apply(A, 1 << 62)]);
}

#[test]
fn a_batch_below_the_first_that_came_is_no_copy_of_one() {
    let mut source = Source::new(rewinding());
    source.connect(A);
    assert_eq!(source.live(A, 70), [apply(A, 70)], "starts anywhere");
    assert_eq!(source.live(A, 69), [refuse(69, 71)]);
    assert!(source.recovery.covers(70) && !source.recovery.covers(69));
    assert_eq!((source.state(), source.recovery.counts().duplicate), (SourceState::Exact, 0));
    assert_eq!(source.live(A, 73), [refuse(73, 71)]);
    assert_eq!(source.live(A, 3), [refuse(3, 71)]);
    assert_eq!(source.state(), SourceState::Gap, "72 is missing still");
    assert_eq!(source.live(A, 71), [apply(A, 71)]);
    assert_eq!(source.live(A, 70), []);
    assert_eq!(source.recovery.counts().duplicate, 1);
}

/// As long as no batch of the incarnation is applied.
#[test]
fn the_lowest_stated_first_number_counts() {
    let hello = |first| Input::Connected {
        incarnation: A,
        first: Some(first),
        head: None,
        in_order: false,
    };
    for config in [asking(), rewinding()] {
        let mut source = Source::new(config);
        assert_eq!(source.input(hello(1 << 60)), [Step::NewIncarnation { incarnation: A }]);
        assert_eq!(source.input(hello(0)), []);
        assert_eq!(source.live(A, 0), [apply(A, 0)]);
        assert_eq!(source.input(hello(1 << 60)), []);
        assert_eq!(source.live(A, 1), [apply(A, 1)]);
    }
}

#[test]
fn what_was_held_back_and_does_not_exist_is_refused() {
    let mut source = Source::at_five(asking());
    assert_eq!(source.live(A, 9), []);
    assert_eq!(source.live(A, 1_000), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, RANGE(6));
    let end = Input::RangeEnd { round, head: Some(5) };
    assert_eq!(source.input(end), [refuse(9, 6), refuse(1_000, 6)]);
    assert_eq!((source.state(), source.recovery.deadline()), (SourceState::Exact, None));
    assert_eq!(source.recovery.status().head, Some(5));
    assert_eq!(source.live(A, 6), [apply(A, 6)]);
    assert_eq!(source.recovery.counts().lost, 0);
}

#[test]
fn what_came_after_the_question_may_exist() {
    let mut source = Source::at_five(asking());
    source.live(A, 1_000);
    let (round, _) = source.asked();
    assert_eq!(source.live(A, 7), []);
    assert_eq!(source.input(Input::RangeEnd { round, head: Some(5) }), [refuse(1_000, 6)]);
    assert_eq!(source.state(), SourceState::Gap);
    let (round, ask) = source.asked();
    assert_eq!(ask, RANGE(6));
    assert_eq!(source.ranged(round, 6), [apply(A, 6), apply(A, 7)]);
    assert_eq!(source.input(Input::RangeEnd { round, head: Some(7) }), []);
    assert_eq!(source.state(), SourceState::Exact);
}
