//! Tests past incarnations, and how many are remembered.

use super::super::{PAST_INCARNATIONS_KEPT, PAST_INCARNATIONS_MAX, PAST_INCARNATIONS_RESUMED_MAX};
use super::*;
use crate::order::Dice;
use std::collections::BTreeMap;
use std::panic;

const MAX: u128 = PAST_INCARNATIONS_MAX as u128;
const SECOND: Duration = Duration::from_secs(1);

impl Source {
    fn admission(&self, life: u128) -> Admission {
        self.recovery.admission(Incarnation(life), false, self.now)
    }

    /// A source whose memory of past lives is full, in a further life, its current one.
    fn crowded(config: RecoveryConfig) -> Self {
        let mut source = Self::new(config);
        for life in 0..=MAX {
            assert_eq!(source.admission(life), Admission::Admitted);
            source.connect(Incarnation(life));
        }
        assert_eq!(source.recovery.status().past.len(), PAST_INCARNATIONS_MAX);
        source
    }
}

#[test]
fn a_life_that_ended_stays_so_however_many_are_stated_after_it() {
    for config in [asking(), rewinding()] {
        let mut source = Source::crowded(config);
        for life in MAX + 1..MAX + 100 {
            assert_eq!(source.admission(life), Admission::TooMany);
            assert_eq!(source.connect(Incarnation(life)), []);
        }
        for life in 0..MAX {
            assert_eq!(source.admission(life), Admission::Past);
            assert_eq!(source.live(Incarnation(life), 7), []);
        }
        assert!(source.recovery.is_present(Incarnation(MAX)));
        assert_eq!(source.admission(MAX), Admission::Admitted);
    }
}

#[test]
fn the_earliest_is_forgotten_after_its_time_and_only_for_another() {
    let mut source = Source::crowded(rewinding());
    source.now += PAST_INCARNATIONS_KEPT - SECOND;
    assert_eq!(source.admission(MAX + 1), Admission::TooMany);
    source.now += SECOND;
    assert_eq!(
        (source.admission(0), source.admission(MAX + 1)),
        (Admission::Past, Admission::Admitted)
    );
    source.connect(Incarnation(MAX + 1));
    assert_eq!((source.admission(0), source.admission(1)), (Admission::Admitted, Admission::Past));
    assert_eq!(source.recovery.status().past.len(), PAST_INCARNATIONS_MAX);
}

#[test]
fn who_can_be_asked_states_its_life_whatever_is_remembered() {
    let mut source = Source::crowded(asking());
    let (round, _) = source.asked();
    source.input(Input::DumpEnd { round, incarnation: Incarnation(MAX), watermark: Some(1) });
    assert_eq!(source.recovery.deadline(), None, "nobody is asked");
    let next = Incarnation(MAX + 1);
    assert_eq!(source.connect(next), []);
    let (round, ask) = source.asked();
    assert_eq!(ask, Ask::Range { incarnation: Incarnation(MAX), from: 2 });
    let other = Input::OtherIncarnation { round, present: next };
    assert_eq!(source.input(other), [Step::NewIncarnation { incarnation: next }]);
    assert_eq!(source.admission(MAX), Admission::Past);
    assert_eq!(source.recovery.status().past.len(), PAST_INCARNATIONS_MAX);
}

#[test]
fn where_nobody_can_be_asked_a_new_life_begins_once_the_present_one_is_gone() {
    let mut source = Source::crowded(rewinding());
    source.input(Input::Disconnected);
    assert_eq!(source.admission(MAX + 1), Admission::TooMany);
    assert_eq!(source.wait(), [Step::Expired]);
    assert!(source.now < PAST_INCARNATIONS_KEPT);
    assert_eq!(source.admission(MAX + 1), Admission::Admitted);
}

#[test]
fn a_log_may_have_any_number_of_lives() {
    let mut source = Source::crowded(asking());
    for life in MAX + 1..MAX + 100 {
        let incarnation = Incarnation(life);
        assert_eq!(source.recovery.admission(incarnation, true, source.now), Admission::Admitted);
        let hello = Input::Connected { incarnation, first: Some(0), head: None, in_order: true };
        assert_eq!(source.input(hello), [Step::NewIncarnation { incarnation }]);
        assert_eq!(source.admission(life - 1), Admission::Past);
    }
}

#[test]
fn the_latest_lives_of_a_checkpoint_are_remembered_with_room_for_others() {
    let past: Vec<_> = (0..MAX).map(Incarnation).collect();
    let resume = SourceStatus {
        applied: Some(cursor(Incarnation(MAX), 5)),
        past: past.into(),
        ..SourceStatus::default()
    };
    let mut source = Source::new(rewinding());
    source.recovery = Recovery::new(rewinding(), Some(&resume), source.now);
    let forgotten = MAX - PAST_INCARNATIONS_RESUMED_MAX as u128;
    assert_eq!(source.admission(forgotten - 1), Admission::Admitted);
    let room = MAX - PAST_INCARNATIONS_RESUMED_MAX as u128;
    for life in MAX + 1..=MAX + room {
        source.connect(Incarnation(life));
        assert_eq!(source.admission(forgotten), Admission::Past);
    }
    assert_eq!(source.admission(MAX + room + 1), Admission::TooMany);
}

/// States old and new lives at random for hours. None may begin again too early.
fn states_lives_at_random(seed: u64) -> u64 {
    let mut dice = Dice::new(seed);
    let mut source = Source::new(rewinding());
    let mut ended = BTreeMap::new();
    let mut newest = 0;
    let mut refused = 0;
    source.connect(Incarnation(0));
    let mut present = 0;
    for _ in 0..2_000 {
        let pause_max = 1 + dice.below(20_000);
        source.now += Duration::from_millis(dice.below(pause_max));
        let life =
            if dice.one_in(2) { newest + 1 } else { u128::from(dice.below(400)).min(newest) };
        let admission = source.admission(life);
        let begun = source.connect(Incarnation(life))
            == [Step::NewIncarnation { incarnation: Incarnation(life) }];
        assert_eq!(begun, life != present && admission == Admission::Admitted, "{life}");
        if begun {
            if let Some(at) = ended.remove(&life) {
                assert!(source.now - at >= PAST_INCARNATIONS_KEPT, "{life} ended at {at:?}");
            }
            ended.insert(present, source.now);
            (present, newest) = (life, newest.max(life));
        }
        refused += u64::from(admission == Admission::TooMany);
        assert!(source.recovery.is_present(Incarnation(present)));
        assert!(source.recovery.status().past.len() <= PAST_INCARNATIONS_MAX);
    }
    refused
}

#[test]
fn no_life_begins_again_before_its_time() {
    let mut refused = 0;
    for seed in 0..200 {
        match panic::catch_unwind(|| states_lives_at_random(seed)) {
            Ok(count) => refused += count,
            Err(cause) => {
                eprintln!("seed {seed} failed");
                panic::resume_unwind(cause);
            }
        }
    }
    assert!(refused > 1_000, "{refused} of {} were too many", 200 * 2_000);
}
