//! Every rule as a script: an input, the steps it leads to, the state after it.
//!
//! Batches are written as life and number, `a5`; `a5*` clears the cache, `a5!` cannot be read.
//! `reply` and `end` answer the latest round; `reply@1` answers round 1.

use super::{
    Input, Item, LossPolicy, OutcomeCounts, Received, Resume, Sequencer, SequencerConfig, Step,
    incarnation, model_test::fingerprint,
};
use kvasir_proto::types::{Cursor, Incarnation};
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Batch(String);

impl Item for Batch {
    fn bytes(&self) -> usize {
        10
    }
}

fn batch(text: &str) -> Received<Batch> {
    let (life, sequence) = text.split_at(1);
    let life = u64::from(life.as_bytes()[0]);
    let sequence = sequence.trim_end_matches(['*', '!']).parse().unwrap();
    let fingerprint = fingerprint(life, sequence);
    Received { sequence, fingerprint, item: Batch(text.to_owned()) }
}

struct Script {
    sequencer: Sequencer<Batch>,
    now: Duration,
    round: u64,
}

impl Script {
    fn input(&mut self, line: &str) -> Input<Batch> {
        let (word, argument) = line.split_once(' ').unwrap_or((line, ""));
        let round = word.split_once('@').map_or(self.round, |(_, round)| round.parse().unwrap());
        match word.split('@').next().unwrap() {
            "connect" => Input::Connected,
            "disconnect" => Input::Disconnected,
            "live" => Input::Live(batch(argument)),
            "reply" => Input::ReplayReply { round, received: batch(argument) },
            "end" => Input::ReplayEnd { round },
            "fail" => Input::ReplayFailed { round },
            "after" => {
                self.now += Duration::from_secs(argument.parse().unwrap());
                Input::Tick
            }
            // On to the next thing the sequencer has planned.
            "wait" => {
                self.now = self.now.max(self.sequencer.deadline().expect("something is planned"));
                Input::Tick
            }
            other => panic!("no such input: {other}"),
        }
    }

    fn steps(&mut self) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(step) = self.sequencer.next_step() {
            said.push(match step {
                Step::NewLife { .. } => "new-life".to_owned(),
                Step::Apply { item: Batch(text), .. } => {
                    if text.ends_with('*') {
                        self.sequencer.content_cleared();
                    }
                    if text.ends_with('!') {
                        self.sequencer.content_lost();
                    }
                    text
                }
                Step::MarkSuspect => "mark".to_owned(),
                Step::ClearLost => "clear-lost".to_owned(),
                Step::DropSuspects => "drop".to_owned(),
                Step::Expired => "expired".to_owned(),
                Step::StartReplay { round, from } => {
                    self.round = round;
                    format!("ask {from}")
                }
                Step::CancelReplay { .. } => "cancel".to_owned(),
            });
        }
        said
    }
}

/// Runs a script of `(input, "steps | state")`; an input's repetition is written `3 x fail`.
fn run(config: SequencerConfig, resume: Option<Resume>, script: &[(&str, &str)]) -> OutcomeCounts {
    let sequencer = Sequencer::new(config, resume, Duration::ZERO);
    let mut script_state = Script { sequencer, now: Duration::ZERO, round: 0 };
    script_state.steps();
    for (index, (line, expected)) in script.iter().enumerate() {
        let input = script_state.input(line);
        let now = script_state.now;
        script_state.sequencer.handle(input, now);
        let mut said = script_state.steps().join(" ");
        if !said.is_empty() {
            said.push(' ');
        }
        let status = script_state.sequencer.status();
        let said = format!("{said}| {}", status.state);
        assert_eq!(&said, expected, "line {index}: {line}: {status:?}");
    }
    script_state.sequencer.counts()
}

fn config() -> SequencerConfig {
    SequencerConfig { replay_spread: Duration::ZERO, ..SequencerConfig::default() }
}

fn without_replay() -> SequencerConfig {
    SequencerConfig { replay: false, ..config() }
}

fn at(text: &str) -> Resume {
    let Received { sequence, fingerprint, .. } = batch(text);
    let cursor = Cursor { incarnation: Incarnation(1), sequence, fingerprint: Some(fingerprint) };
    Resume { cursor, degraded: false }
}

fn check(script: &[(&str, &str)]) -> OutcomeCounts {
    run(config(), None, script)
}

fn check_resumed(resume: &str, script: &[(&str, &str)]) -> OutcomeCounts {
    run(config(), Some(at(resume)), script)
}

fn counts(applied: u64, duplicate: u64, stale: u64, lost: u64) -> OutcomeCounts {
    OutcomeCounts { applied, duplicate, stale, lost }
}

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
        // What is held back is applied as soon as its turn comes.
        ("reply a1", "a1 a2 | exact"),
        ("reply a2", "| exact"),
        ("reply a3", "a3 | exact"),
        // A replay was ahead of the live stream.
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
        // The first answer had been cut short.
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
            // Late, from a round that was given up.
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
            // Given up as far as the first batch at hand; the next gap is asked for afresh.
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
    let (min, max) = (config.retry_min, config.retry_max);
    assert!(waits[0] >= min / 2 && waits[0] <= min, "{waits:?}");
    assert!(waits[1] >= min && waits[1] <= min * 2, "{waits:?}");
    // Three in a row, then the probe's interval.
    assert!(waits[2] > max && waits[2] <= config.probe_interval, "{waits:?}");
    assert!(waits[3] <= min, "{waits:?}");
    assert!(waits[5] > max, "{waits:?}");
}

impl Sequencer<Batch> {
    /// Drains what is left, then hands in an input.
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
            // A failure of a round that is over does not count.
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

// ---- lives

#[test]
fn a_number_that_goes_back_is_a_restart() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("end", "| exact"),
        ("live b0", "new-life b0 ask 0 | exact"),
        ("reply b0", "| exact"),
        ("end", "| exact"),
        ("live b1", "b1 | exact"),
        // Twice, and this time the first batches are missed.
        ("live c1", "new-life ask 0 | catching_up"),
        ("reply c0", "new-life c0 c1 | exact"),
    ]);
    assert_eq!(sums, counts(6, 1, 0, 0));
}

#[test]
fn the_same_number_with_another_content_is_a_restart() {
    // Of a batch that is held back.
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a2", "| catching_up"),
        ("live b2", "cancel new-life | catching_up"),
    ]);
    assert_eq!(sums, counts(0, 0, 1, 0));
    // Of a batch that only replay has brought.
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        ("reply a1", "a1 | catching_up"),
        ("live b1", "cancel new-life | catching_up"),
        ("wait", "ask 0 | catching_up"),
        ("reply b0", "new-life b0 b1 | exact"),
    ]);
}

#[test]
fn a_batch_delivered_twice_is_not_a_restart() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a0", "| exact"),
        ("live a1", "a1 | exact"),
    ]);
    assert_eq!(sums, counts(2, 1, 0, 0));
}

#[test]
fn a_restart_during_a_replay_drops_what_was_held_back() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a5", "| catching_up"),
        ("live a6", "| catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        ("live b0", "cancel new-life b0 | exact"),
        ("reply@1 a1", "| exact"),
        ("wait", "ask 0 | exact"),
        ("reply b0", "| exact"),
        ("end", "| exact"),
    ]);
    assert_eq!(sums, counts(2, 1, 3, 0));
}

#[test]
fn without_a_replay_socket_a_restart_that_is_seen_is_clean() {
    run(
        without_replay(),
        None,
        &[
            ("connect", "| cold"),
            ("live a0", "new-life a0 | exact"),
            ("live a2", "mark a2 | degraded"),
            ("live b0", "new-life b0 | exact"),
            ("live c0", "new-life c0 | exact"),
            ("live c1", "c1 | exact"),
            ("live d1", "new-life mark d1 | degraded"),
        ],
    );
}

// ---- reconnecting and resuming

#[test]
fn after_a_reconnection_the_same_batch_proves_the_same_life() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("disconnect", "cancel | catching_up"),
        ("connect", "ask 1 | catching_up"),
        ("live a3", "| catching_up"),
        ("reply a1", "| catching_up"),
        ("reply a2", "a2 a3 | exact"),
        ("end@2", "| exact"),
    ]);
    assert_eq!(sums, counts(4, 1, 0, 0));
}

#[test]
fn a_restart_while_disconnected_is_found_by_the_fingerprint() {
    // The new life is ahead of the old cursor, and its next batch would fit.
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("disconnect", "cancel | catching_up"),
        ("connect", "ask 1 | catching_up"),
        ("live b2", "| catching_up"),
        ("reply b1", "cancel new-life | catching_up"),
        ("wait", "ask 0 | catching_up"),
        ("reply b0", "new-life b0 | catching_up"),
        ("reply b1", "b1 | catching_up"),
        ("reply b2", "b2 | catching_up"),
        ("end", "ask 2 | catching_up"),
        ("reply b2", "| catching_up"),
        ("end", "| exact"),
    ]);
    assert_eq!(sums, counts(5, 2, 1, 0));
}

#[test]
fn a_restart_while_disconnected_is_found_by_its_newest_batch() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("disconnect", "cancel | catching_up"),
        ("connect", "ask 1 | catching_up"),
        ("end", "new-life | catching_up"),
        ("wait", "ask 0 | catching_up"),
        // Nothing was announced in the new life.
        ("end", "| exact"),
        ("live b0", "new-life b0 | exact"),
    ]);
}

#[test]
fn a_cursor_that_is_no_longer_kept_is_unproved_and_what_it_covers_doubtful() {
    let script: &[(&str, &str)] = &[
        ("connect", "ask 4 | catching_up"),
        ("live a9", "| catching_up"),
        ("reply a7", "mark a7 | degraded"),
        ("reply a8", "a8 a9 | degraded"),
    ];
    assert_eq!(check_resumed("a4", script), counts(3, 0, 0, 2));
    let clear = SequencerConfig { loss_policy: LossPolicy::Clear, ..config() };
    let script: &[(&str, &str)] =
        &[("connect", "ask 4 | catching_up"), ("reply a5", "clear-lost a5 | degraded")];
    assert_eq!(run(clear, Some(at("a4")), script), counts(1, 0, 0, 0));
}

#[test]
fn a_restored_cursor_goes_on_if_it_is_proved() {
    let sums = check_resumed(
        "a4",
        &[
            ("connect", "ask 4 | catching_up"),
            ("reply a4", "| catching_up"),
            ("reply a5", "a5 | catching_up"),
            ("live a6", "a6 | exact"),
        ],
    );
    assert_eq!(sums, counts(2, 1, 0, 0));
}

#[test]
fn a_restart_while_the_server_was_down_is_found() {
    check_resumed(
        "a4",
        &[
            ("connect", "ask 4 | catching_up"),
            ("reply b4", "cancel new-life | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply b0", "new-life b0 | catching_up"),
        ],
    );
    check_resumed(
        "a4",
        &[("connect", "ask 4 | catching_up"), ("live b0", "cancel new-life b0 | exact")],
    );
}

#[test]
fn without_a_replay_socket_a_reconnection_is_unproved() {
    run(
        without_replay(),
        Some(at("a4")),
        &[
            ("connect", "mark | degraded"),
            ("live a5", "a5 | degraded"),
            ("disconnect", "| degraded"),
            ("connect", "mark | degraded"),
            ("live b5", "new-life mark b5 | degraded"),
            ("live b6*", "b6* | exact"),
        ],
    );
}

#[test]
fn a_replay_socket_that_is_gone_leaves_a_restored_cursor_unproved() {
    let config = SequencerConfig { replay_attempts_max: 2, ..config() };
    run(
        config,
        Some(at("a4")),
        &[
            ("connect", "ask 4 | catching_up"),
            ("live a5", "| catching_up"),
            ("fail", "| catching_up"),
            ("wait", "ask 4 | catching_up"),
            ("fail", "mark a5 | degraded"),
            // The probe still finds a new life.
            ("wait", "ask 5 | degraded"),
            ("reply b5", "cancel new-life | catching_up"),
        ],
    );
}

#[test]
fn a_degraded_checkpoint_stays_degraded() {
    let resume = Some(Resume { degraded: true, ..at("a4") });
    run(
        config(),
        resume,
        &[("connect", "ask 4 | degraded"), ("reply a4", "| degraded"), ("live a5*", "a5* | exact")],
    );
}

// ---- probes

#[test]
fn a_probe_finds_a_lost_last_batch() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("end", "| exact"),
        ("wait", "ask 0 | exact"),
        ("reply a0", "| exact"),
        ("reply a1", "a1 | exact"),
        ("end", "| exact"),
        ("wait", "ask 1 | exact"),
        ("reply b1", "cancel new-life | catching_up"),
    ]);
}

#[test]
fn a_probe_that_fails_changes_nothing() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("fail", "| exact"),
        ("wait", "ask 0 | exact"),
        // A publisher that keeps nothing cannot be probed, and has not restarted.
        ("end", "| exact"),
        ("wait", "ask 0 | exact"),
        ("fail", "| exact"),
        ("live a1", "a1 | exact"),
    ]);
}

#[test]
fn verification_has_a_time() {
    let mut sequencer = Sequencer::<Batch>::new(config(), None, Duration::ZERO);
    let mut verified_after = |input, millis| {
        sequencer.handle(input, Duration::from_millis(millis));
        while sequencer.next_step().is_some() {}
        sequencer.status().verified_at.map(|at| at.as_millis())
    };
    assert_eq!(verified_after(Input::Connected, 1), None);
    assert_eq!(verified_after(Input::ReplayEnd { round: 1 }, 2), Some(2));
    assert_eq!(verified_after(Input::Live(batch("a0")), 3), Some(3));
    assert_eq!(verified_after(Input::Live(batch("a2")), 4), Some(3));
    assert_eq!(verified_after(Input::Disconnected, 5), Some(3));
    assert_eq!(verified_after(Input::Connected, 6), Some(3));
    let received = batch("a0");
    assert_eq!(verified_after(Input::ReplayReply { round: 3, received }, 7), Some(3));
    assert_eq!(verified_after(Input::ReplayEnd { round: 3 }, 8), Some(8));
    // A probe that is answered with nothing proves nothing.
    assert_eq!(verified_after(Input::Tick, 40_000), Some(8));
    assert_eq!(verified_after(Input::ReplayEnd { round: 4 }, 40_001), Some(8));
}

// ---- loss

#[test]
fn suspects_are_dropped_once_and_the_source_stays_degraded() {
    run(
        without_replay(),
        None,
        &[
            ("connect", "| cold"),
            ("live a1", "new-life mark a1 | degraded"),
            ("after 300", "| degraded"),
            // A later loss does not prolong the doubt.
            ("live a3", "mark a3 | degraded"),
            ("after 299", "| degraded"),
            ("after 1", "drop | degraded"),
            ("after 900", "| degraded"),
            ("live a5", "mark a5 | degraded"),
            ("after 600", "drop | degraded"),
            ("live a6*", "a6* | exact"),
        ],
    );
}

#[test]
fn what_cannot_be_read_is_lost_content() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1!", "a1! mark | degraded"),
        ("live a2", "a2 | degraded"),
        ("live a3*", "a3* | exact"),
    ]);
    let clear = SequencerConfig { loss_policy: LossPolicy::Clear, ..config() };
    run(
        clear,
        None,
        &[
            ("connect", "ask 0 | catching_up"),
            ("live a2", "| catching_up"),
            ("reply a0", "new-life a0 | catching_up"),
            // In order, even where several batches become applicable at once.
            ("reply a1!", "a1! clear-lost a2 | degraded"),
        ],
    );
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a2!", "| catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        ("reply a1*", "a1* a2! mark | degraded"),
    ]);
}

// ---- silence

#[test]
fn only_a_long_disconnection_expires_a_source() {
    check(&[
        ("after 59", "| cold"),
        ("after 1", "expired | cold"),
        ("after 100", "| cold"),
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("end", "| exact"),
        ("disconnect", "| catching_up"),
        ("after 59", "| catching_up"),
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "| catching_up"),
        ("end", "| exact"),
        ("disconnect", "| catching_up"),
        ("after 60", "expired | cold"),
        // The same life is replayed into an empty index.
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
    ]);
    run(
        without_replay(),
        None,
        &[("connect", "| cold"), ("live a0", "new-life a0 | exact"), ("after 100000", "| exact")],
    );
}

// ---- ids and odd input

#[test]
fn two_servers_that_see_the_first_batch_agree_on_the_life() {
    let applied = |inputs: &[&str]| {
        let mut sequencer = Sequencer::new(config(), None, Duration::ZERO);
        let mut input = |input| {
            sequencer.handle(input, Duration::ZERO);
            while sequencer.next_step().is_some() {}
        };
        input(Input::Connected);
        for text in inputs {
            let (way, text) = text.split_at(1);
            let received = batch(text);
            input(match way {
                "l" => Input::Live(received),
                _ => Input::ReplayReply { round: 1, received },
            });
        }
        sequencer.status().applied.map(|cursor| cursor.incarnation)
    };
    let first = batch("b0");
    let id = Some(incarnation::of_first_batch(0, first.fingerprint));
    assert_eq!(applied(&["lb0", "lb1"]), id);
    assert_eq!(applied(&["lb2", "rb0", "rb1"]), id);
    assert_eq!(applied(&["la0", "lb0"]), id);
    assert_ne!(applied(&["la0"]), id);
}

#[test]
fn absurd_numbers_do_no_harm() {
    let huge = format!("a{}", u64::MAX);
    let mut sequencer = Sequencer::new(without_replay(), None, Duration::ZERO);
    for received in ["a1", &huge, "b1", &huge] {
        sequencer.handle(Input::Connected, Duration::ZERO);
        while sequencer.next_step().is_some() {}
        sequencer.handle(Input::Live(batch(received)), Duration::ZERO);
        while sequencer.next_step().is_some() {}
    }
    assert_eq!(sequencer.counts().lost, u64::MAX);
}

#[test]
fn a_live_batch_without_a_connection_is_stale() {
    assert_eq!(check(&[("live a0", "| cold")]), counts(0, 0, 1, 0));
}
