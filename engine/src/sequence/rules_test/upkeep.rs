//! Tests of probes, losses, silence, ids and unusual input.

use super::{
    Batch, Input, LossPolicy, Sequencer, SequencerConfig, batch, check, config, counts,
    incarnation, run, without_replay,
};
use std::time::Duration;

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
        ("reply b1", "cancel restarted | catching_up"),
    ]);
}

#[test]
fn a_probe_that_fails_changes_nothing() {
    check(&[
        ("connect", "ask 0 | catching_up"),
        ("live a0", "new-life a0 | exact"),
        ("fail", "| exact"),
        ("wait", "ask 0 | exact"),
        // A publisher without retained batches cannot be probed, but has not restarted.
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
    // An empty answer to a probe is no proof.
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
            // A later loss does not extend the deadline.
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
            // In order, even if several batches become applicable at the same time.
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
fn two_servers_that_see_the_first_batch_agree_on_the_incarnation() {
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
    assert_eq!((sequencer.counts().lost, sequencer.counts().stale), (2, 2));
}

#[test]
fn a_live_batch_without_a_connection_is_stale() {
    assert_eq!(check(&[("live a0", "| cold")]), counts(0, 0, 1, 0));
}
