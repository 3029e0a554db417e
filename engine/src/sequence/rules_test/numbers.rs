//! Tests of implausible sequence numbers.

use super::*;

#[test]
fn a_number_far_ahead_is_dropped_and_moves_nothing() {
    for life in ["a", "A"] {
        let live = |sequence: u64| format!("live {life}{sequence}");
        let far = (1 << 32) + 1;
        let counted = check(&[
            ("connect", "ask 0 | catching_up"),
            (&live(0), &format!("new-life {life}0 | exact")),
            (&live(u64::MAX), "| exact"),
            (&live(far), "| exact"),
            (&live(1), &format!("{life}1 | exact")),
            (&live(far), "| gap"),
        ]);
        assert_eq!(counted, counts(2, 0, 2, 0));
    }
}

#[test]
fn no_engine_begins_beyond_any_number() {
    for absurd in ["live a281474976710656", "live A18446744073709551615"] {
        let script =
            [("connect", "| cold"), (absurd, "| cold"), ("live a0", "new-life a0 | exact")];
        assert_eq!(run(without_replay(), None, &script), counts(1, 0, 1, 0));
    }
}

#[test]
fn a_reply_far_ahead_ends_its_round() {
    let counted = check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("live a2", "| gap"),
        ("reply a4294967297", "cancel | gap"),
        ("wait", "ask 0 | gap"),
        ("reply a0", "| gap"),
        ("reply a1", "a1 a2 | exact"),
    ]);
    assert_eq!(counted, counts(3, 1, 1, 0));
}

/// The server was away for more batches than are plausible.
#[test]
fn after_a_restart_of_the_server_any_number_may_be_next() {
    let script =
        [("connect", "| catching_up"), ("live A8589934592", "mark A8589934592 | degraded")];
    run(without_replay(), Some(&at("A7")), &script);
}

#[test]
fn a_position_far_ahead_of_what_comes_live_was_wrong() {
    let stated = [
        ("connect", "| cold"),
        ("live A281474976710655", "new-life mark A281474976710655 | degraded"),
        ("live A5", "new-life mark A5 | degraded"),
        ("live A6", "A6 | degraded"),
    ];
    run(without_replay(), None, &stated);
    // For any number in a checkpoint.
    let script = [
        ("connect", "ask 18446744073709551614 | catching_up"),
        ("live A5", "cancel new-life | catching_up"),
        ("wait", "ask 0 | catching_up"),
        ("reply A4", "mark A4 A5 | degraded"),
    ];
    check_resumed("A18446744073709551614", &script);
    // The position comes from a reply, before any live batch.
    let script = [
        ("connect", "ask 0 | catching_up"),
        ("reply a281474976710655", "new-life mark a281474976710655 | degraded"),
        ("live a5", "cancel restarted | catching_up"),
        ("wait", "ask 0 | catching_up"),
        ("reply a0", "new-life a0 | catching_up"),
    ];
    check(&script);
}
