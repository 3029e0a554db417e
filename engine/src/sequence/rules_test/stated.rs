//! Tests of publishers that state their life: capitals.

use super::*;

#[test]
fn the_same_statement_proves_the_incarnation_after_a_reconnect_and_after_a_checkpoint() {
    // No replay has answered yet. The live batch alone proves the cursor.
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply A0", "new-life A0 | catching_up"),
        ("live A1", "A1 | exact"),
        ("end", "| exact"),
        ("disconnect", "| catching_up"),
        ("connect", "ask 1 | catching_up"),
        ("live A2", "A2 | exact"),
    ]);
    check_resumed("A7", &[("connect", "ask 7 | catching_up"), ("live A8", "A8 | exact")]);
    // Without a statement, the publisher's own copy of the batch must prove it.
    check_resumed("a7", &[("connect", "ask 7 | catching_up"), ("live a8", "| catching_up")]);
}

#[test]
fn a_reply_that_follows_needs_no_copy_of_the_cursors_batch() {
    let counted = check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            ("reply A8", "A8 | catching_up"),
            ("end", "ask 8 | catching_up"),
            ("reply A8", "| catching_up"),
            ("end", "| exact"),
        ],
    );
    assert_eq!(counted, counts(1, 1, 0, 0));
}

#[test]
fn another_statement_is_a_restart_whatever_the_numbers_say() {
    check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            // The number follows, but it is another process.
            ("live B8", "cancel new-life | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply B7", "mark B7 B8 | degraded"),
        ],
    );
    check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            ("reply B7", "cancel new-life | catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply B0", "B0 | catching_up"),
        ],
    );
}

#[test]
fn numbers_that_go_back_in_a_stated_incarnation_are_repetitions() {
    let counted = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live A0", "new-life A0 | exact"),
        ("live A1", "A1 | exact"),
        ("live A0", "| exact"),
        ("live A3", "| gap"),
        ("live A3", "| gap"),
        ("live A2", "A2 A3 | exact"),
    ]);
    assert_eq!(counted, counts(4, 2, 0, 0));
}

#[test]
fn what_still_comes_of_the_incarnation_before_is_stale() {
    let counted = check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            ("reply B0", "cancel new-life | catching_up"),
            ("live A8", "| catching_up"),
            ("wait", "ask 0 | catching_up"),
            ("reply B0", "B0 | catching_up"),
            ("live A9", "| catching_up"),
            ("live B1", "B1 | exact"),
        ],
    );
    assert_eq!(counted, counts(2, 1, 2, 0));
}

#[test]
fn a_restart_is_one_new_incarnation_once_it_is_stated() {
    check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            ("live B0", "cancel new-life B0 | exact"),
            ("live B1", "B1 | exact"),
        ],
    );
}

#[test]
fn a_publisher_that_begins_to_state_its_incarnation_was_restarted_and_so_was_one_that_stops() {
    check_resumed(
        "a7",
        &[("connect", "ask 7 | catching_up"), ("live A0", "cancel new-life A0 | exact")],
    );
    check_resumed(
        "A7",
        &[("connect", "ask 7 | catching_up"), ("live b0", "cancel restarted new-life b0 | exact")],
    );
}

#[test]
fn replies_may_leave_out_what_live_batches_state() {
    check_resumed(
        "A7",
        &[
            ("connect", "ask 7 | catching_up"),
            ("reply a7", "| catching_up"),
            ("reply a8", "a8 | catching_up"),
            ("live A9", "A9 | exact"),
        ],
    );
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
        // Only once: the life now has its stated id.
        ("live A1", "cancel new-life | catching_up"),
        ("wait", "ask 0 | catching_up"),
        ("reply a0", "a0 A1 | exact"),
        ("live A2", "A2 | exact"),
    ]);
}

#[test]
fn without_a_replay_socket_the_next_batch_proves_the_incarnation_or_time_runs_out() {
    let resumed = |script: &[(&str, &str)]| run(without_replay(), Some(&at("A7")), script);
    resumed(&[("connect", "| catching_up"), ("live A8", "A8 | exact")]);
    resumed(&[("connect", "| catching_up"), ("live A9", "mark A9 | degraded")]);
    resumed(&[("connect", "| catching_up"), ("live B0", "new-life B0 | exact")]);
    resumed(&[("connect", "| catching_up"), ("live b0", "mark restarted new-life b0 | exact")]);
    resumed(&[
        ("connect", "| catching_up"),
        ("disconnect", "| catching_up"),
        ("connect", "| catching_up"),
        ("after 59", "| catching_up"),
        ("after 1", "mark | degraded"),
        ("after 600", "drop | degraded"),
    ]);
    run(without_replay(), Some(&at("a7")), &[("connect", "mark | degraded")]);
}

#[test]
fn what_states_nothing_has_no_id_and_ids_of_either_kind_never_meet() {
    assert_eq!(stated_incarnation(&[]), None);
    assert_eq!(stated_incarnation(&[0; 16]), None);
    let life = stated_incarnation(b"0123456789abcdef").unwrap();
    assert_eq!(stated_incarnation(b"0123456789abcdef"), Some(life));
    assert_ne!(stated_incarnation(b"0123456789abcdeg"), Some(life));
    assert!(incarnation::is_stated(life));
    let first = batch("a0");
    assert!(!incarnation::is_stated(incarnation::of_first_batch(0, first.fingerprint)));
}
