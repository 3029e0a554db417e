//! Seeded simulation: faults for a while, then a quiet phase, then a check of the result.

use super::agent_test::Kind;
use super::model_test::{Sent, World};
use super::{Input, LossPolicy, Recourse, RecoveryConfig};
use crate::order::Dice;
use std::panic;
use std::time::Duration;

/// Counters over many runs, to check that the runs cover the intended cases.
#[derive(Debug, Default)]
struct Seen {
    new_lives: u64,
    expiries: u64,
    dumps: u64,
    losses: u64,
    lost: u64,
    duplicates: u64,
    stale: u64,
    crowded: u64,
}

fn config(dice: &mut Dice, recourse: Recourse) -> RecoveryConfig {
    RecoveryConfig {
        recourse,
        loss_policy: if dice.one_in(3) { LossPolicy::Clear } else { LossPolicy::Keep },
        expires_silent: dice.one_in(2),
        buffer_batches_max: dice.size(8),
        buffer_bytes_max: 10 + dice.size(100),
        attempts_max: 1 + u32::try_from(dice.below(6)).unwrap(),
        jitter_seed: dice.below(1 << 40),
        ..RecoveryConfig::default()
    }
}

fn kind(dice: &mut Dice) -> Kind {
    let name = u8::try_from(dice.below(5)).unwrap();
    match dice.below(12) {
        0 => Kind::Clear,
        1..=4 => Kind::Take(name),
        _ => Kind::Add(name),
    }
}

/// Executes one random action.
fn act(world: &mut World, dice: &mut Dice) {
    match dice.below(24) {
        0..=5 => world.publish(kind(dice), true),
        6 => world.publish(kind(dice), false),
        7 => world.announce(),
        8 if dice.one_in(6) => world.restart(dice.below(9)),
        9..=12 if !world.sent.is_empty() => world.deliver(0),
        13 if !world.sent.is_empty() => {
            // Any place of the queue: later messages overtake it, or it arrives much later.
            let place = dice.place(world.sent.len());
            match dice.below(3) {
                0 => drop(world.sent.remove(place)),
                1 => world.deliver(place),
                _ => {
                    let again: Sent = world.sent[place];
                    world.receive(again);
                }
            }
        }
        14..=17 if world.has_round() => {
            let early = if dice.one_in(4) { dice.below(4) } else { 0 };
            world.deliver_reply(early);
        }
        18 if world.has_round() && dice.one_in(2) => drop(world.drop_reply()),
        19 if world.has_round() && dice.one_in(2) => world.break_round(),
        20 if world.stream => world.disconnect(),
        20 => {
            let asks = world.recourse == Recourse::Ask;
            let late = if asks && dice.one_in(4) { dice.below(3) } else { 0 };
            let life = world.life().saturating_sub(usize::try_from(late).unwrap());
            let first = !asks || dice.one_in(2);
            world.connect(life, [first, dice.one_in(2)]);
        }
        22 if dice.one_in(10) => world.input(Input::LacksBlocks),
        22 if world.stream && dice.one_in(4) => {
            world.input(if dice.one_in(2) { Input::Behind } else { Input::CaughtUp });
        }
        21 | 22 => {
            let millis = 1 + dice.below(400);
            world.advance(Duration::from_millis(millis));
        }
        23 if dice.one_in(4) => world.lie(1 + dice.below(1 << 32)),
        23 if dice.one_in(300) => world.flicker(),
        23 if dice.one_in(8) => world.advance(Duration::from_secs(dice.below(200))),
        _ => {}
    }
}

/// Runs a seed. With `liars`, plausible but wrong numbers are sent.
fn simulate(seed: u64, recourse: Recourse, liars: bool, seen: &mut Seen) {
    let mut dice = Dice::new(seed);
    let config = config(&mut dice, recourse);
    let journal_max = if dice.one_in(2) { dice.size(12) } else { usize::MAX };
    let mut world = World::new(config, journal_max);
    for _ in 0..dice.below(20) {
        world.publish(kind(&mut dice), false);
    }
    if let Some(newest) = world.newest().filter(|_| dice.one_in(3)) {
        world.resume(config, dice.below(newest + 1), &[]);
        if dice.one_in(3) {
            world.restart(0);
        }
    }
    for _ in 0..dice.below(400) {
        if liars && dice.one_in(40) {
            world.lie_near(dice.below(1 << 20));
        }
        act(&mut world, &mut dice);
        world.check_exact_is_true();
    }
    world.input(Input::CaughtUp);
    world.quiesce();
    world.check_exact_is_true();
    if recourse != Recourse::Nothing {
        world.check_quiet();
    }
    let counts = world.recovery.counts();
    seen.new_lives += world.index.new_lives;
    seen.expiries += world.index.expiries;
    seen.dumps += world.index.dumps;
    seen.losses += world.index.losses;
    seen.lost += counts.lost;
    seen.duplicates += counts.duplicate;
    seen.stale += counts.stale;
    seen.crowded += world.crowded;
}

fn check(recourse: Recourse, liars: bool, seeds: u64) -> Seen {
    let mut total = Seen::default();
    for seed in 0..seeds {
        let run = panic::catch_unwind(|| {
            let mut seen = Seen::default();
            simulate(seed, recourse, liars, &mut seen);
            seen
        });
        match run {
            Ok(seen) => {
                total.new_lives += seen.new_lives;
                total.expiries += seen.expiries;
                total.dumps += seen.dumps;
                total.losses += seen.losses;
                total.lost += seen.lost;
                total.duplicates += seen.duplicates;
                total.stale += seen.stale;
                total.crowded += seen.crowded;
            }
            Err(cause) => {
                eprintln!("{recourse:?}, liars {liars}: seed {seed} failed");
                panic::resume_unwind(cause);
            }
        }
    }
    println!("{recourse:?}, liars {liars}: {total:?}");
    total
}

#[test]
fn whoever_can_be_asked_is_recovered_from_any_faults() {
    let seen = check(Recourse::Ask, false, 6_000);
    assert!(seen.dumps > 6_000 && seen.losses > 100 && seen.lost > 100, "{seen:?}");
    assert!(seen.expiries > 100 && seen.stale > 100 && seen.duplicates > 100, "{seen:?}");
    assert!(seen.crowded > 100, "{seen:?}");
}

/// A source that can be queried knows its numbers.
#[test]
fn numbers_that_do_not_exist_are_refuted_by_who_can_be_asked() {
    let seen = check(Recourse::Ask, true, 3_000);
    assert!(seen.dumps > 3_000 && seen.losses > 100, "{seen:?}");
}

#[test]
fn whoever_sends_again_is_recovered_from_any_faults() {
    let seen = check(Recourse::Rewind, false, 3_000);
    assert_eq!((seen.dumps, seen.losses, seen.lost), (0, 0, 0));
    assert!(seen.crowded > 100, "{seen:?}");
}

#[test]
fn without_any_help_the_state_is_honest() {
    let seen = check(Recourse::Nothing, false, 3_000);
    assert!(seen.dumps == 0 && seen.losses > 1_000 && seen.lost > 1_000, "{seen:?}");
}
