//! Tests of the rules: inputs, the resulting steps, and the state after them.

mod lives;
mod numbers;

use super::{
    ATTEMPTS_MAX, Admission, Ask, Input, Item, LossPolicy, Numbered, Recourse, Recovery,
    RecoveryConfig, Step,
};
use kvasir_proto::types::{Cursor, Incarnation, SourceState, SourceStatus};
use std::time::Duration;

const A: Incarnation = Incarnation(10);
const B: Incarnation = Incarnation(11);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sized;

impl Item for Sized {
    fn bytes(&self) -> usize {
        100
    }
}

type Steps = Vec<Step<Sized, &'static str>>;

struct Source {
    recovery: Recovery<Sized, &'static str>,
    now: Duration,
}

const fn cursor(incarnation: Incarnation, sequence: u64) -> Cursor {
    Cursor { incarnation, sequence, fingerprint: None }
}

const fn apply(incarnation: Incarnation, sequence: u64) -> Step<Sized, &'static str> {
    Step::Apply { cursor: cursor(incarnation, sequence), item: Sized }
}

const fn refuse(sequence: u64, expected: u64) -> Step<Sized, &'static str> {
    Step::Refuse { sequence, expected }
}

const fn numbered(sequence: u64) -> Numbered<Sized> {
    Numbered { sequence, item: Sized }
}

const RANGE: fn(u64) -> Ask = |from| Ask::Range { incarnation: A, from };
const DUMP: Ask = Ask::Dump { incarnation: A };

impl Source {
    fn new(config: RecoveryConfig) -> Self {
        Self { recovery: Recovery::new(config, None, Duration::ZERO), now: Duration::ZERO }
    }

    /// A source at batch 5 of life A.
    fn at_five(config: RecoveryConfig) -> Self {
        let resume = SourceStatus { applied: Some(cursor(A, 5)), ..SourceStatus::default() };
        let recovery = Recovery::new(config, Some(&resume), Duration::ZERO);
        let mut source = Self { recovery, now: Duration::ZERO };
        assert_eq!(source.connect(A), []);
        source
    }

    fn input(&mut self, input: Input<Sized, &'static str>) -> Steps {
        self.recovery.handle(input, self.now);
        std::iter::from_fn(|| self.recovery.next_step()).collect()
    }

    fn connect(&mut self, incarnation: Incarnation) -> Steps {
        self.input(Input::Connected { incarnation, first: None, head: None, in_order: false })
    }

    fn live(&mut self, incarnation: Incarnation, sequence: u64) -> Steps {
        self.input(Input::Live { incarnation, batch: numbered(sequence) })
    }

    fn ranged(&mut self, round: u64, sequence: u64) -> Steps {
        self.input(Input::RangeBatch { round, batch: numbered(sequence) })
    }

    /// Advances the time to the next deadline.
    fn wait(&mut self) -> Steps {
        self.now = self.recovery.deadline().expect("something is due");
        self.input(Input::Tick)
    }

    /// Waits for the next round to start.
    fn asked(&mut self) -> (u64, Ask) {
        for _ in 0..4 {
            if let [Step::Ask { round, ask }] = self.wait().as_slice() {
                return (*round, *ask);
            }
        }
        panic!("nobody is asked");
    }

    fn admits(&self, incarnation: Incarnation) -> bool {
        self.recovery.admission(incarnation, false, self.now) == Admission::Admitted
    }

    fn state(&self) -> SourceState {
        self.recovery.status().state
    }

    fn applied(&self) -> Option<u64> {
        self.recovery.status().applied.map(|cursor| cursor.sequence)
    }
}

fn asking() -> RecoveryConfig {
    RecoveryConfig::default()
}

fn rewinding() -> RecoveryConfig {
    RecoveryConfig { recourse: Recourse::Rewind, ..asking() }
}

#[test]
fn a_gap_is_fetched_and_what_came_meanwhile_follows() {
    let mut source = Source::at_five(asking());
    assert_eq!(source.live(A, 6), [apply(A, 6)]);
    assert_eq!(source.state(), SourceState::Exact);
    assert_eq!(source.live(A, 9), []);
    assert_eq!(source.state(), SourceState::Gap);
    let (round, ask) = source.asked();
    assert_eq!(ask, RANGE(7));
    assert_eq!(source.live(A, 10), []);
    assert_eq!(source.ranged(round, 7), [apply(A, 7)]);
    assert_eq!(source.ranged(round, 8), [apply(A, 8), apply(A, 9), apply(A, 10)]);
    assert_eq!(source.ranged(round, 9), []);
    assert_eq!(source.input(Input::RangeEnd { round, head: Some(10) }), []);
    assert_eq!((source.state(), source.applied()), (SourceState::Exact, Some(10)));
    assert_eq!(source.recovery.deadline(), None, "nobody is asked any more");
}

#[test]
fn what_was_announced_and_does_not_come_is_fetched() {
    let mut source = Source::at_five(asking());
    assert_eq!(source.input(Input::Announced { incarnation: A, head: Some(7) }), []);
    assert_eq!(source.state(), SourceState::Exact, "it may be on its way");
    assert_eq!(source.wait(), []);
    assert_eq!(source.state(), SourceState::Gap);
    assert_eq!(source.asked().1, RANGE(6));
}

#[test]
fn holes_are_asked_for_again_and_then_a_dump() {
    let mut source = Source::at_five(asking());
    source.live(A, 9);
    for _ in 0..2 {
        let (round, ask) = source.asked();
        assert_eq!(ask, RANGE(6));
        assert_eq!(source.ranged(round, 8), [Step::Cancel { round }]);
    }
    assert_eq!(source.asked().1, DUMP);
    assert_eq!(source.state(), SourceState::CatchingUp);
}

#[test]
fn what_is_not_kept_any_more_leads_to_a_dump() {
    let mut source = Source::at_five(asking());
    source.live(A, 9);
    let (round, _) = source.asked();
    assert_eq!(source.input(Input::RangeGone { round }), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, DUMP);
    let chunk = |chunk| Input::DumpChunk { round, chunk };
    assert_eq!(source.input(chunk("x")), [Step::BeginDump, Step::Chunk { chunk: "x" }]);
    assert_eq!(source.live(A, 11), [], "held back");
    assert_eq!(source.input(chunk("y")), [Step::Chunk { chunk: "y" }]);
    let end = Input::DumpEnd { round, incarnation: A, watermark: Some(10) };
    let finished = Step::FinishDump { cursor: Some(cursor(A, 10)) };
    assert_eq!(source.input(end), [finished, apply(A, 11)]);
    assert_eq!(source.state(), SourceState::Exact);
}

#[test]
fn a_dump_that_broke_off_says_nothing_and_an_empty_one_says_that_nothing_is_held() {
    let mut source = Source::new(asking());
    assert_eq!(source.connect(A), [Step::NewIncarnation { incarnation: A }]);
    assert_eq!(source.state(), SourceState::CatchingUp);
    let (round, ask) = source.asked();
    assert_eq!(ask, DUMP);
    assert_eq!(source.input(Input::RoundFailed { round }), []);
    assert_eq!(source.state(), SourceState::CatchingUp);
    let (round, _) = source.asked();
    let end = Input::DumpEnd { round, incarnation: A, watermark: None };
    assert_eq!(source.input(end), [Step::BeginDump, Step::FinishDump { cursor: None }]);
    assert_eq!(source.state(), SourceState::Exact);
    // Only the source can determine whether this is the life's first batch.
    assert_eq!(source.live(A, 3), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, RANGE(0));
    assert_eq!(source.ranged(round, 2), [apply(A, 2), apply(A, 3)]);
}

#[test]
fn a_log_that_keeps_the_order_is_believed_where_an_incarnation_begins() {
    let begin = |first, in_order| {
        let head = Some(3);
        Input::Connected { incarnation: B, first: Some(first), head, in_order }
    };
    let mut source = Source::at_five(asking());
    assert_eq!(source.input(begin(3, true)), [Step::NewIncarnation { incarnation: B }]);
    assert_eq!(source.live(B, 3), [apply(B, 3)]);
    assert_eq!(source.state(), SourceState::Exact);
    assert_eq!(source.live(A, 6), [], "the life before is over");
    let mut source = Source::at_five(asking());
    assert_eq!(source.input(begin(3, false)), [Step::NewIncarnation { incarnation: B }]);
    assert_eq!(source.live(B, 3), [], "elsewhere it is asked first");
    assert_eq!(source.asked().1, Ask::Dump { incarnation: B });
}

#[test]
fn a_log_that_is_read_from_further_back_says_nothing_of_the_newest() {
    let mut source = Source::at_five(RecoveryConfig { expires_silent: true, ..asking() });
    assert_eq!(source.input(Input::Behind), []);
    assert_eq!(source.live(A, 6), [apply(A, 6)]);
    assert_eq!(source.state(), SourceState::CatchingUp);
    source.input(Input::Announced { incarnation: A, head: Some(9) });
    assert_eq!(source.recovery.deadline(), None, "the log has it, however long that takes");
    assert_eq!(source.live(A, 7), [apply(A, 7)]);
    source.now += Duration::from_secs(3_600);
    assert_eq!(source.live(A, 9), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, RANGE(8), "what the log lacks is asked for all the same");
    assert_eq!(source.ranged(round, 8), [apply(A, 8), apply(A, 9)]);
    assert_eq!(source.input(Input::RangeEnd { round, head: Some(9) }), []);
    assert_eq!(source.state(), SourceState::CatchingUp);
    assert_eq!(source.input(Input::CaughtUp), []);
    assert_eq!(source.state(), SourceState::Exact);
    assert_eq!(source.recovery.status().verified_at, Some(source.now));
    assert_eq!(source.wait(), [Step::Expired], "silence counts again");
}

#[test]
fn who_lacks_blocks_is_dumped_without_a_loss() {
    let mut source = Source::at_five(asking());
    assert_eq!(source.input(Input::LacksBlocks), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, DUMP);
    assert_eq!(source.live(A, 6), [apply(A, 6)], "nothing waits for it");
    assert_eq!(source.state(), SourceState::Exact);
    assert_eq!(source.input(Input::RoundFailed { round }), [], "nor is anything lost");
    let (round, _) = source.asked();
    let end = Input::DumpEnd { round, incarnation: A, watermark: Some(6) };
    let finished = Step::FinishDump { cursor: Some(cursor(A, 6)) };
    assert_eq!(source.input(end), [Step::BeginDump, finished]);
    assert_eq!(source.recovery.deadline(), None, "nobody is asked any more");
    // A new life is dumped once, because it is new.
    source.input(Input::LacksBlocks);
    source.input(Input::Connected { incarnation: B, first: Some(0), head: None, in_order: false });
    let (round, ask) = source.asked();
    assert_eq!(ask, Ask::Dump { incarnation: B });
    source.input(Input::DumpEnd { round, incarnation: B, watermark: Some(0) });
    assert_eq!(source.recovery.deadline(), None, "it lacks nothing of the old one");
}

#[test]
fn half_a_dump_is_replaced_by_another() {
    let mut source = Source::at_five(asking());
    source.live(A, 9);
    let (round, _) = source.asked();
    source.input(Input::RangeGone { round });
    let (round, _) = source.asked();
    source.input(Input::DumpChunk { round, chunk: "x" });
    assert_eq!(source.input(Input::RoundFailed { round }), []);
    assert_eq!(source.live(A, 6), [], "the index has half a dump: nothing goes on top of it");
    assert_eq!(source.asked().1, DUMP);
}

/// An answer that is cut off counts as progress every time if it had new batches.
#[test]
fn a_range_that_comes_in_pieces_is_not_given_up() {
    let mut source = Source::at_five(asking());
    source.live(A, 40);
    for sequence in 6..30 {
        let (round, ask) = source.asked();
        assert_eq!(ask, RANGE(sequence));
        assert_eq!(source.ranged(round, sequence), [apply(A, sequence)]);
        assert_eq!(source.input(Input::RoundFailed { round }), []);
    }
    assert_eq!((source.state(), source.recovery.counts().lost), (SourceState::Gap, 0));
}

#[test]
fn after_too_many_attempts_the_loss_policy_applies_and_a_dump_still_heals() {
    for (loss_policy, step) in
        [(LossPolicy::Keep, Step::MarkSuspect), (LossPolicy::Clear, Step::ClearLost)]
    {
        let mut source = Source::at_five(RecoveryConfig { loss_policy, ..asking() });
        source.live(A, 9);
        for attempt in 1..=ATTEMPTS_MAX {
            let (round, ask) = source.asked();
            assert_eq!(ask, RANGE(6));
            let steps = source.input(Input::RoundFailed { round });
            if attempt < ATTEMPTS_MAX {
                assert_eq!(steps, []);
            } else {
                assert_eq!(steps, [step.clone(), apply(A, 9)]);
            }
        }
        assert_eq!((source.state(), source.recovery.counts().lost), (SourceState::Degraded, 3));
        let (round, ask) = source.asked();
        assert_eq!(ask, DUMP);
        let end = Input::DumpEnd { round, incarnation: A, watermark: Some(9) };
        let finished = Step::FinishDump { cursor: Some(cursor(A, 9)) };
        assert_eq!(source.input(end), [Step::BeginDump, finished]);
        assert_eq!(source.state(), SourceState::Exact);
    }
}

#[test]
fn an_old_incarnation_is_refused_until_the_source_itself_states_it() {
    let mut source = Source::at_five(asking());
    assert_eq!(source.connect(B), [Step::NewIncarnation { incarnation: B }]);
    assert!(!source.admits(A) && source.admits(B));
    assert_eq!(source.live(A, 6), []);
    assert_eq!(source.recovery.counts().stale, 1);
    let (round, ask) = source.asked();
    assert_eq!(ask, Ask::Dump { incarnation: B });
    let other = Input::OtherIncarnation { round, present: A };
    assert_eq!(source.input(other), [Step::NewIncarnation { incarnation: A }]);
    assert_eq!(source.asked().1, DUMP);
    assert!(source.admits(A) && !source.admits(B));
}

#[test]
fn an_old_incarnation_that_is_stated_again_leads_to_a_request() {
    let mut source = Source::at_five(asking());
    source.connect(B);
    let (round, _) = source.asked();
    source.input(Input::DumpEnd { round, incarnation: B, watermark: Some(1) });
    assert_eq!(source.connect(A), []);
    assert_eq!(source.state(), SourceState::Exact, "it is B until B says otherwise");
    let (round, ask) = source.asked();
    assert_eq!(ask, Ask::Range { incarnation: B, from: 2 });
    assert_eq!(source.input(Input::RangeEnd { round, head: Some(1) }), []);
    assert_eq!(source.recovery.deadline(), None);
}

#[test]
fn a_incarnation_that_begins_where_it_states_needs_no_dump() {
    let mut source = Source::new(asking());
    let hello = Input::Connected { incarnation: A, first: Some(3), head: Some(4), in_order: false };
    assert_eq!(source.input(hello), [Step::NewIncarnation { incarnation: A }]);
    assert_eq!(source.state(), SourceState::CatchingUp);
    assert_eq!(source.live(A, 3), [apply(A, 3)]);
    assert_eq!(source.state(), SourceState::CatchingUp);
    assert_eq!(source.live(A, 4), [apply(A, 4)]);
    assert_eq!(source.state(), SourceState::Exact);
    assert_eq!(source.live(A, 2), [], "before the first");
    assert_eq!(source.recovery.counts().duplicate, 1);
}

#[test]
fn where_there_is_no_agent_the_publisher_learns_what_to_send() {
    let mut source = Source::new(rewinding());
    source.connect(A);
    assert_eq!(source.state(), SourceState::Cold);
    assert_eq!(source.live(A, 70), [apply(A, 70)], "starts anywhere");
    assert_eq!(source.live(A, 73), [refuse(73, 71)]);
    assert_eq!(source.state(), SourceState::Gap);
    assert_eq!(source.live(A, 71), [apply(A, 71)]);
    assert_eq!(source.state(), SourceState::Gap);
    assert_eq!(source.live(A, 72), [apply(A, 72)]);
    assert_eq!(source.live(A, 73), [apply(A, 73)]);
    assert_eq!(source.state(), SourceState::Exact);
    // An implausible number is no evidence of the publisher's batches.
    assert_eq!(source.live(A, u64::MAX), [refuse(u64::MAX, 74)]);
    assert_eq!(source.recovery.status().head, Some(73));
    assert_eq!(source.live(A, 74), [apply(A, 74)]);
    assert_eq!(source.state(), SourceState::Exact);
}

#[test]
fn where_nothing_helps_what_is_missing_is_lost_at_once() {
    let mut source = Source::at_five(RecoveryConfig { recourse: Recourse::Nothing, ..asking() });
    assert_eq!(source.live(A, 8), [Step::MarkSuspect, apply(A, 8)]);
    assert_eq!((source.state(), source.recovery.counts().lost), (SourceState::Degraded, 2));
    source.now += Duration::from_secs(600);
    assert_eq!(source.input(Input::Tick), [Step::DropSuspects]);
}

#[test]
fn a_source_that_is_silent_expires() {
    for expires_silent in [false, true] {
        let mut source = Source::at_five(RecoveryConfig { expires_silent, ..asking() });
        source.now += Duration::from_secs(59);
        source.input(Input::Announced { incarnation: A, head: Some(5) });
        source.now += Duration::from_secs(59);
        assert_eq!(source.input(Input::Tick), []);
        if !expires_silent {
            source.now += Duration::from_secs(999);
            assert_eq!(source.input(Input::Tick), [], "an open stream is a sign of life");
            source.input(Input::Disconnected);
            assert_eq!(source.state(), SourceState::CatchingUp);
            source.now += Duration::from_secs(59);
            assert_eq!(source.input(Input::Tick), []);
        }
        source.now += Duration::from_secs(1);
        assert_eq!(source.input(Input::Tick), [Step::Expired]);
        assert_eq!((source.state(), source.recovery.deadline()), (SourceState::Cold, None));
        assert_eq!(
            source.connect(A),
            [Step::NewIncarnation { incarnation: A }],
            "it begins afresh"
        );
    }
}

#[test]
fn the_lowest_are_shed() {
    let config = RecoveryConfig { buffer_batches_max: 2, ..asking() };
    let mut source = Source::at_five(config);
    for sequence in 8..12 {
        source.live(A, sequence);
    }
    assert_eq!(source.recovery.status().buffered_batches, 2);
    let (round, _) = source.asked();
    let applied: usize = (6..10).map(|sequence| source.ranged(round, sequence).len()).sum();
    assert_eq!((applied, source.applied()), (6, Some(11)));
}
