//! Pools, plan and executors over simulated bytes, with every fault that a storage can have.
//!
//! An engine fills blocks of the top tier and serves prompts from there without verifying checksums. Executors copy
//! bytes in pieces, late, wrongly and out of order, and die. The invariants of each step are in `check`, `serve` and
//! `settle`. A seed determines everything: `KVASIR_SEED=7` runs one, `KVASIR_SEEDS=100000` more.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

mod check;
mod executor;
mod reader;
mod setup;
mod storage;
mod world;

use crate::planted::{Planted, with_planted};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::World;

/// Number of seeds in a normal test run.
const SEEDS: u64 = 2_000;
/// Number of seeds within which a broken rule must be detected.
const PLANTED_SEEDS: u64 = 400;
const STEPS: usize = 300;

/// Description of a violated invariant.
type Fault = String;

/// Simulates one worker, with kills in between.
fn run(seed: u64) -> Result<world::Seen, Fault> {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        world.step().map_err(|fault| format!("seed {seed}, step {step}: {fault}"))?;
    }
    world.finish().map_err(|fault| format!("seed {seed}, at the end: {fault}"))
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn no_wrong_byte_is_served_and_nothing_is_forgotten() {
    let mut seen = world::Seen::default();
    let seeds = match number("KVASIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVASIR_SEEDS").unwrap_or(SEEDS),
    };
    let is_one = seeds.end - seeds.start == 1;
    for seed in seeds {
        match run(seed) {
            Ok(one) => seen.add(&one),
            Err(fault) => panic!("{fault}; run KVASIR_SEED={seed} again"),
        }
    }
    println!("{seen:?}");
    assert!(is_one || seen.is_everything(), "some case never came up: {seen:?}");
}

/// Returns the fault if some seed detects the broken rule. A panic counts as detection.
fn notices(fault: Planted) -> Option<Fault> {
    with_planted(Some(fault), || {
        (0..PLANTED_SEEDS).find_map(|seed| match catch_unwind(AssertUnwindSafe(|| run(seed))) {
            Ok(Ok(_)) => None,
            Ok(Err(found)) => Some(found),
            Err(_panic) => Some(format!("seed {seed}: a panic")),
        })
    })
}

#[test]
fn every_broken_rule_is_noticed() {
    for fault in [
        Planted::ForgetRemove,
        Planted::RegisterTwice,
        Planted::SilentOverflow,
        Planted::SkipChecksum,
        Planted::SkipLength,
        Planted::CommitEarly,
        Planted::CommitTwice,
        Planted::CommitLate,
        Planted::DropSourceEarly,
        Planted::ReuseQuarantined,
        Planted::LeakSlot,
        Planted::KeepCorrupt,
        Planted::LoseChecksum,
        Planted::EvictUnderneath,
        Planted::AllocateSome,
    ] {
        let found = notices(fault);
        println!("{fault:?}: {found:?}");
        assert!(found.is_some(), "{fault:?} goes unnoticed in {PLANTED_SEEDS} seeds");
    }
}
