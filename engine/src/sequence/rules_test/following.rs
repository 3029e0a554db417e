//! Tests of following a stream: joining it, and filling its gaps.

use super::{
    Batch, Input, Sequencer, SequencerConfig, Step, check, config, counts, run, without_replay,
};
use std::time::Duration;

// ---- joining

#[test]
fn a_new_engine_is_followed_from_its_first_batch() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("end", "| exact"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("live a2", "a2 | exact"),
    ]);
    assert_eq!(sums, counts(3, 0, 0, 0));
}

#[test]
fn a_late_subscriber_replays_from_the_start() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a2", "| catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        // A buffered batch is applied as soon as its predecessors are.
        ("reply a1", "a1 a2 | exact"),
        ("reply a2", "| exact"),
        ("reply a3", "a3 | exact"),
        // The replay was ahead of the live stream.
        ("live a3", "| exact"),
        ("end", "| exact"),
        ("live a4", "a4 | exact"),
    ]);
    assert_eq!(sums, counts(5, 2, 0, 0));
}

#[test]
fn a_silent_engine_is_replayed_twice_before_it_counts_as_exact() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        ("end", "ask 0 | catching_up"),
        ("reply a0", "| catching_up"),
        // The first answer was cut short.
        ("reply a1", "a1 | catching_up"),
        ("end", "| exact"),
    ]);
}

#[test]
fn a_late_subscriber_of_an_engine_that_no_longer_keeps_the_start_is_degraded() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply a7", "new-life mark a7 | degraded"),
        ("reply a8", "a8 | degraded"),
        ("end", "ask 8 | degraded"),
        ("reply a8", "| degraded"),
        ("end", "| degraded"),
    ]);
    assert_eq!(sums, counts(2, 1, 0, 7));
}

#[test]
fn without_a_replay_socket_a_late_subscriber_is_degraded_at_once() {
    let sums = run(
        without_replay(),
        None,
        &[
            ("connect", "| cold"),
            ("live a3", "new-life mark a3 | degraded"),
            ("live a4", "a4 | degraded"),
            ("live a7", "mark a7 | degraded"),
        ],
    );
    assert_eq!(sums, counts(3, 0, 0, 5));
}

// ---- gaps

#[test]
fn a_gap_is_filled_and_the_live_stream_goes_on_behind_it() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("end", "| exact"),
        ("live a0", "new-life a0 | exact"),
        ("live a3", "ask 0 | gap"),
        ("live a4", "| gap"),
        ("reply a0", "| gap"),
        ("reply a1", "a1 | gap"),
        ("live a6", "| gap"),
        ("reply a2", "a2 a3 a4 | gap"),
        ("reply a3", "| gap"),
        ("reply a4", "| gap"),
        ("end", "ask 4 | gap"),
        ("reply a4", "| gap"),
        ("reply a5", "a5 a6 | exact"),
        ("end", "| exact"),
    ]);
    assert_eq!(sums, counts(7, 4, 0, 0));
}

#[test]
fn a_hole_in_a_replay_is_asked_for_again_and_in_the_end_lost() {
    let config = SequencerConfig { replay_attempts_max: 3, ..config() };
    let sums = run(
        config,
        None,
        &[
            ("connect", "ask 0 | catching_up"),
            ("reply a0", "new-life a0 | catching_up"),
            ("reply a2", "cancel ask 0 | catching_up"),
            // Late, from an abandoned round.
            ("reply@1 a3", "| catching_up"),
            ("end@1", "| catching_up"),
            ("reply a0", "| catching_up"),
            ("reply a2", "cancel | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply a0", "| catching_up"),
            ("reply a2", "cancel | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply a0", "| catching_up"),
            ("reply a2", "mark a2 | degraded"),
            // The next hole has its own attempts.
            ("reply a4", "cancel ask 2 | degraded"),
            ("reply a2", "| degraded"),
            ("reply a3", "a3 | degraded"),
            ("reply a4", "a4 | degraded"),
            ("end", "ask 4 | degraded"),
        ],
    );
    assert_eq!(sums, counts(4, 8, 1, 1));
}

#[test]
fn a_number_that_no_replay_brings_is_lost_after_a_bounded_number_of_rounds() {
    let config = SequencerConfig { replay_attempts_max: 2, ..config() };
    let sums = run(
        config,
        None,
        &[
            ("connect", "ask 0 | catching_up"),
            ("end", "| exact"),
            ("live a0", "new-life a0 | exact"),
            ("live a2", "ask 0 | gap"),
            ("live a5", "| gap"),
            ("reply a0", "| gap"),
            ("end", "| gap"),
            ("wait", "ask 0 | gap"),
            ("reply a0", "| gap"),
            // Lost up to the first buffered batch. The next gap is requested anew.
            ("end", "mark a2 ask 2 | degraded"),
        ],
    );
    assert_eq!(sums, counts(2, 2, 0, 1));
}

#[test]
fn a_replay_socket_that_does_not_answer_is_tried_again_with_back_off() {
    let config = SequencerConfig { replay_attempts_max: 3, ..config() };
    let mut sequencer = Sequencer::<Batch>::new(config, None, Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut waits = Vec::new();
    sequencer.handle(Input::Connected, now);
    while let Some(step) = sequencer.next_step() {
        if let Step::StartReplay { round, .. } = step {
            sequencer.handle_after(Input::ReplayFailed { round }, now);
            let deadline = sequencer.deadline().unwrap();
            waits.push(deadline - now);
            now = deadline;
            if waits.len() == 8 {
                break;
            }
            sequencer.handle_after(Input::Tick, now);
        }
    }
    let min = config.retry_min;
    let max = config.retry_max;
    assert!(waits[0] >= min / 2 && waits[0] <= min, "{waits:?}");
    assert!(waits[1] >= min && waits[1] <= min * 2, "{waits:?}");
    // Three in a row, then the probe's interval.
    assert!(waits[2] > max && waits[2] <= config.probe_interval, "{waits:?}");
    assert!(waits[3] <= min, "{waits:?}");
    assert!(waits[5] > max, "{waits:?}");
}

impl Sequencer<Batch> {
    /// Drains the remaining steps, then passes an input.
    fn handle_after(&mut self, input: Input<Batch>, now: Duration) {
        assert_eq!(self.next_step(), None);
        self.handle(input, now);
        if matches!(self.deadline(), Some(deadline) if deadline > now) {
            assert_eq!(self.next_step(), None);
        }
    }
}

#[test]
fn failed_replays_of_a_gap_end_in_a_loss() {
    let config = SequencerConfig { replay_attempts_max: 2, ..config() };
    let sums = run(
        config,
        None,
        &[
            ("connect", "ask 0 | catching_up"),
            ("live a0", "new-life a0 | exact"),
            ("live a2", "| gap"),
            ("fail", "| gap"),
            ("wait", "ask 0 | gap"),
            // A late failure of a finished round does not count.
            ("fail@1", "| gap"),
            ("fail", "mark a2 | degraded"),
            ("live a3", "a3 | degraded"),
        ],
    );
    assert_eq!(sums, counts(3, 0, 0, 1));
}

#[test]
fn the_buffer_sheds_the_oldest_and_the_next_round_brings_them() {
    let config = SequencerConfig { buffer_batches_max: 2, ..config() };
    let by_bytes = SequencerConfig { buffer_bytes_max: 20, ..config };
    for config in [config, by_bytes] {
        let sums = run(
            config,
            None,
            &[
                ("connect", "ask 0 | catching_up"),
                ("live a0", "new-life a0 | exact"),
                ("end", "| exact"),
                ("live a2", "ask 0 | gap"),
                ("live a3", "| gap"),
                ("live a4", "| gap"),
                ("live a5", "| gap"),
                ("reply a0", "| gap"),
                ("reply a1", "a1 | gap"),
                ("reply a2", "a2 | gap"),
                ("end", "ask 2 | gap"),
                ("reply a2", "| gap"),
                ("reply a3", "a3 a4 a5 | exact"),
            ],
        );
        assert_eq!(sums, counts(6, 4, 0, 0));
    }
}
