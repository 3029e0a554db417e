//! Tests of incarnations ("lives"): restarts, reconnections, restored cursors.

use super::{
    LossPolicy, SequencerConfig, at, check, check_resumed, config, counts, run, without_replay,
};
use kvasir_proto::types::{SourceState, SourceStatus};

// ---- lives

#[test]
fn a_number_that_goes_back_is_a_restart() {
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a1", "a1 | exact"),
        ("end", "| exact"),
        ("live b0", "restarted new-life b0 ask 0 | exact"),
        ("reply b0", "| exact"),
        ("end", "| exact"),
        ("live b1", "b1 | exact"),
        // A second time, and now the first batches are missed.
        ("live c1", "restarted ask 0 | catching_up"),
        ("reply c0", "new-life c0 c1 | exact"),
    ]);
    assert_eq!(sums, counts(6, 1, 0, 0));
}

#[test]
fn the_same_number_with_another_content_is_a_restart() {
    // The same for a buffered batch.
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a2", "| catching_up"),
        ("live b2", "cancel restarted | catching_up"),
    ]);
    assert_eq!(sums, counts(0, 0, 1, 0));
    // The same for a batch that arrived only by replay.
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        ("reply a1", "a1 | catching_up"),
        ("live b1", "cancel restarted | catching_up"),
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
        ("live b0", "cancel restarted new-life b0 | exact"),
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
            ("live b0", "restarted new-life b0 | exact"),
            ("live c0", "restarted new-life c0 | exact"),
            ("live c1", "c1 | exact"),
            ("live d1", "restarted new-life mark d1 | degraded"),
        ],
    );
}

// ---- reconnecting and resuming

#[test]
fn after_a_reconnection_the_same_batch_proves_the_same_incarnation() {
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
        ("reply b1", "cancel restarted | catching_up"),
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
        ("end", "restarted | catching_up"),
        ("wait", "ask 0 | catching_up"),
        // The new life has published no batch yet.
        ("end", "| exact"),
        ("live b0", "new-life b0 | exact"),
    ]);
}

#[test]
fn a_cursor_that_is_no_longer_kept_is_unproved_and_what_it_covers_doubtful() {
    let config = SequencerConfig { replay_attempts_max: 2, ..config() };
    let script: &[(&str, &str)] = &[
        ("connect", "ask 4 | catching_up"),
        ("live a9", "| catching_up"),
        ("reply a7", "cancel | catching_up"),
        ("wait", "ask 4 | catching_up"),
        ("reply a7", "mark a7 | degraded"),
        ("reply a8", "a8 a9 | degraded"),
    ];
    assert_eq!(run(config, Some(&at("a4")), script), counts(3, 1, 0, 2));
    let clear = SequencerConfig { loss_policy: LossPolicy::Clear, ..config };
    let script: &[(&str, &str)] = &[
        ("connect", "ask 4 | catching_up"),
        ("reply a5", "cancel | catching_up"),
        ("wait", "ask 4 | catching_up"),
        ("reply a5", "clear-lost a5 | degraded"),
    ];
    assert_eq!(run(clear, Some(&at("a4")), script), counts(1, 1, 0, 0));
}

#[test]
fn a_cursor_whose_batch_does_not_come_is_asked_for_again() {
    // While a gap is filled.
    let sums = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("end", "| exact"),
        ("live a2", "ask 0 | gap"),
        ("reply a1", "cancel | gap"),
        ("wait", "ask 0 | gap"),
        ("reply a0", "| gap"),
        ("reply a1", "a1 a2 | exact"),
        ("end", "| exact"),
        // During a probe.
        ("wait", "ask 2 | exact"),
        ("reply a3", "cancel | exact"),
        ("wait", "ask 2 | exact"),
        ("reply a2", "| exact"),
        ("reply a3", "a3 | exact"),
    ]);
    assert_eq!(sums, counts(4, 4, 0, 0));
    // After a checkpoint and a restart of the engine.
    check_resumed(
        "a4",
        &[
            ("connect", "ask 4 | catching_up"),
            ("reply b5", "cancel | catching_up"),
            ("wait", "ask 4 | catching_up"),
            ("reply b4", "cancel restarted | catching_up"),
        ],
    );
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
            ("reply b4", "cancel restarted | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply b0", "new-life b0 | catching_up"),
        ],
    );
    check_resumed(
        "a4",
        &[("connect", "ask 4 | catching_up"), ("live b0", "cancel restarted new-life b0 | exact")],
    );
}

#[test]
fn without_a_replay_socket_a_reconnection_is_unproved() {
    run(
        without_replay(),
        Some(&at("a4")),
        &[
            ("connect", "mark | degraded"),
            ("live a5", "a5 | degraded"),
            ("disconnect", "| degraded"),
            ("connect", "mark | degraded"),
            ("live b5", "restarted new-life mark b5 | degraded"),
            ("live b6*", "b6* | exact"),
        ],
    );
}

#[test]
fn a_replay_socket_that_is_gone_leaves_a_restored_cursor_unproved() {
    let config = SequencerConfig { replay_attempts_max: 2, ..config() };
    run(
        config,
        Some(&at("a4")),
        &[
            ("connect", "ask 4 | catching_up"),
            ("live a5", "| catching_up"),
            ("fail", "| catching_up"),
            ("wait", "ask 4 | catching_up"),
            ("fail", "mark a5 | degraded"),
            // The probe still finds a new life.
            ("wait", "ask 5 | degraded"),
            ("reply b5", "cancel restarted | catching_up"),
        ],
    );
}

#[test]
fn a_degraded_checkpoint_stays_degraded() {
    let resume = SourceStatus { state: SourceState::Degraded, ..at("a4") };
    run(
        config(),
        Some(&resume),
        &[("connect", "ask 4 | degraded"), ("reply a4", "| degraded"), ("live a5*", "a5* | exact")],
    );
}
