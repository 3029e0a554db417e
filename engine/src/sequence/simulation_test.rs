//! Seeded simulation: faults for a while, then a quiet phase, then a check of the result.

use super::model_test::{Kind, Statement, World};
use super::{LossPolicy, SequencerConfig};
use crate::order::Dice;
use kvasir_proto::types::SourceState;
use std::panic;
use std::time::Duration;

/// Kinds of faults in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Faults {
    /// Every numbered batch can be obtained in the end.
    Recoverable,
    /// Small rings, swallowed and garbled batches, long outages, and any number of broken replays.
    Any,
    /// As `Any`, and without a replay socket.
    NoReplay,
}

fn config(dice: &mut Dice, faults: Faults) -> SequencerConfig {
    SequencerConfig {
        loss_policy: if dice.one_in(3) { LossPolicy::Clear } else { LossPolicy::Keep },
        replay: faults != Faults::NoReplay,
        buffer_batches_max: dice.size(8),
        buffer_bytes_max: 10 + dice.size(100),
        replay_attempts_max: if faults == Faults::Recoverable { 8 } else { 3 },
        jitter_seed: dice.below(1 << 40),
        ..SequencerConfig::default()
    }
}

fn kind(dice: &mut Dice, faults: Faults) -> Kind {
    match dice.below(30) {
        0 | 1 => Kind::Clear,
        2 if faults != Faults::Recoverable => Kind::Garbled,
        3 if faults != Faults::Recoverable => Kind::Swallowed,
        _ => Kind::Store,
    }
}

/// Executes one random action.
fn act(world: &mut World, dice: &mut Dice, faults: Faults, replay_faults: &mut u64) {
    // In recoverable runs, bursts of replay faults are shorter than the number of attempts.
    let replay_fault = faults != Faults::Recoverable || *replay_faults < 4;
    match dice.below(24) {
        0..=6 => world.publish(kind(dice, faults), true),
        7 => world.publish(kind(dice, faults), false),
        8 if dice.one_in(6) => world.restart(),
        9 if world.is_subscribed() && dice.one_in(3) => world.disconnect(),
        10..=14 if world.has_live() => world.deliver_live(),
        15..=18 if world.has_round() => {
            world.deliver_reply();
            if !world.has_round() {
                *replay_faults = 0;
            }
        }
        19 if world.has_round() && replay_fault => {
            world.drop_reply(faults == Faults::Any);
            *replay_faults += 1;
        }
        20 if world.has_round() && replay_fault => {
            world.break_replay();
            *replay_faults += 1;
        }
        21 if !world.is_subscribed() => world.connect(),
        21 if world.is_stale() && !world.has_live() => world.disconnect(),
        22 => {
            let millis = 1 + dice.below(400);
            world.advance(Duration::from_millis(millis));
        }
        23 if dice.one_in(4) => world.lie(1 + dice.below(1 << 32), false),
        23 if dice.one_in(4) && replay_fault && world.has_round() => {
            world.lie(1 + dice.below(1 << 32), true);
            *replay_faults += 1;
        }
        23 if dice.one_in(8) => {
            let secs = dice.below(if faults == Faults::Recoverable { 50 } else { 400 });
            world.advance(Duration::from_secs(secs));
        }
        _ => {}
    }
}

fn simulate(seed: u64, faults: Faults, statement: Statement) -> SourceState {
    let mut dice = Dice::new(seed);
    let ring_max = match faults {
        Faults::Recoverable => usize::MAX,
        Faults::Any | Faults::NoReplay => dice.size(30),
    };
    let config = config(&mut dice, faults);
    let mut world = World::new(config, ring_max);
    world.statement = statement;
    for _ in 0..dice.below(20) {
        world.publish(if dice.one_in(10) { Kind::Clear } else { Kind::Store }, false);
    }
    if let Some(newest) = world.newest().filter(|_| dice.one_in(3)) {
        world.resume(config, dice.below(newest + 1));
        if dice.one_in(3) {
            world.restart();
        }
    }
    for _ in 0..dice.below(20) {
        world.publish(kind(&mut dice, faults), false);
    }
    let mut replay_faults = 0;
    for _ in 0..dice.below(400) {
        act(&mut world, &mut dice, faults, &mut replay_faults);
        world.check_exact_is_true();
    }
    world.quiesce();
    world.check_exact_is_true();
    let lost = world.sequencer.counts().lost;
    let state = world.check_quiet();
    if faults == Faults::Recoverable {
        assert_eq!((state, lost), (SourceState::Exact, 0), "{world:#?}");
    }
    state
}

/// Runs `seeds`. Returns how many ended exact and how many degraded.
fn check(faults: Faults, seeds: u64) -> (u64, u64) {
    check_stated(faults, Statement::Never, seeds)
}

fn check_stated(faults: Faults, statement: Statement, seeds: u64) -> (u64, u64) {
    let mut exact = 0;
    let mut degraded = 0;
    for seed in 0..seeds {
        match panic::catch_unwind(|| simulate(seed, faults, statement)) {
            Ok(SourceState::Exact) => exact += 1,
            Ok(_) => degraded += 1,
            Err(cause) => {
                eprintln!("{faults:?}, {statement:?}: seed {seed} failed");
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{faults:?}, {statement:?}: {exact} exact, {degraded} degraded");
    (exact, degraded)
}

#[test]
fn what_can_be_recovered_is_recovered() {
    check(Faults::Recoverable, 6_000);
}

#[test]
fn under_any_faults_the_state_is_honest() {
    let (exact, degraded) = check(Faults::Any, 6_000);
    assert!(exact > 300 && degraded > 300, "{exact} exact, {degraded} degraded");
}

#[test]
fn without_replay_the_state_is_honest() {
    let (exact, degraded) = check(Faults::NoReplay, 6_000);
    assert!(exact > 300 && degraded > 300, "{exact} exact, {degraded} degraded");
}

#[test]
fn what_can_be_recovered_of_stated_incarnations_is_recovered() {
    for statement in [Statement::Always, Statement::EverySecond, Statement::LiveOnly] {
        check_stated(Faults::Recoverable, statement, 2_000);
    }
}

#[test]
fn under_any_faults_stated_incarnations_are_distinguished() {
    for statement in [Statement::Always, Statement::EverySecond, Statement::LiveOnly] {
        for faults in [Faults::Any, Faults::NoReplay] {
            let (exact, degraded) = check_stated(faults, statement, 2_000);
            assert!(exact > 100 && degraded > 100, "{exact} exact, {degraded} degraded");
        }
    }
}
