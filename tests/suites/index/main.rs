//! The index equals the reference after any stream of events.
//!
//! `KVASIR_SEEDS=n` runs seeds 0 to n instead of the usual number, `KVASIR_SEED=n` only seed n.

mod ask;
mod budget;
mod cases;
mod damage;
mod double;
mod driver;
mod dumps;
mod healing;
mod images;
mod live;
mod reborn;
mod runner;
mod sharded;
mod shedding;
mod shrink;
mod subject;
mod sweeps;

use crate::double::{Double, Fault};
use crate::driver::{report, run_seeds};
use crate::live::Live;
use crate::sharded::Sharded;
use kvasir_tests::script::Script;
use std::ops::Range;

/// Seeds in the ordinary test command.
const SEEDS: u64 = 10_000;
/// Seeds within which each fault of a double must show.
const FAULT_SEEDS: u64 = 600;
/// Seeds for each number of shards.
const SHARDED_SEEDS: u64 = 2_000;
/// Large scripts.
const LARGE_SEEDS: u64 = 4;

#[expect(clippy::disallowed_methods, reason = "the seeds to run are chosen by whoever runs tests")]
fn seeds(ordinary: u64) -> Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    if let Some(seed) = number("KVASIR_SEED") {
        return seed..seed + 1;
    }
    0..number("KVASIR_SEEDS").unwrap_or(ordinary)
}

/// No difference in outcomes, answers, dumps and sizes, and no broken invariant, at any step.
#[test]
fn the_index_equals_the_reference() {
    let seeds = seeds(SEEDS);
    match run_seeds(seeds.clone(), Script::generate, Live::new) {
        Ok(seen) => println!("seeds {seeds:?}: {seen:?}"),
        Err((seed, failure)) => panic!("{}", report(&Script::generate(seed), &failure, Live::new)),
    }
}

/// The same where tables grow, split, shrink and go.
#[test]
fn large_states_are_equal_too() {
    match run_seeds(0..LARGE_SEEDS, Script::generate_large, Live::new) {
        Ok(seen) => println!("{seen:?}"),
        Err((seed, failure)) => {
            panic!("{}", report(&Script::generate_large(seed), &failure, Live::new))
        }
    }
}

/// A partition in shards, asked as the server asks it, equals the reference: however many shards.
#[test]
fn any_number_of_shards_equals_the_reference() {
    let seeds = seeds(SHARDED_SEEDS);
    let seeds = seeds.start..seeds.end.min(seeds.start + SHARDED_SEEDS);
    for shards in [1, 2, 7] {
        let make = |limits| Sharded::new(shards, limits);
        match run_seeds(seeds.clone(), Script::generate, make) {
            Ok(seen) => println!("{shards} shards, seeds {seeds:?}: {seen:?}"),
            Err((seed, failure)) => {
                let report = report(&Script::generate(seed), &failure, make);
                panic!("{shards} shards: {report}")
            }
        }
    }
}

/// The suite agrees with itself: an oracle beside an oracle shows no difference.
#[test]
fn a_faultless_double_passes() {
    let make = |limits| Double::new(limits, Fault::None);
    match run_seeds(0..FAULT_SEEDS, Script::generate, make) {
        Ok(seen) => println!("{seen:?}"),
        Err((seed, failure)) => panic!("{}", report(&Script::generate(seed), &failure, make)),
    }
}

/// The suite can fail: each way to be wrong is noticed.
#[test]
fn every_fault_of_a_double_is_noticed() {
    for fault in Fault::ALL {
        let outcome =
            run_seeds(0..FAULT_SEEDS, Script::generate, |limits| Double::new(limits, fault));
        let (seed, failure) = outcome.err().unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        println!("{fault:?}: seed {seed}, {}", failure.message.lines().next().unwrap_or(""));
    }
}
