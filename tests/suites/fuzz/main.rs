//! The fuzz targets as a test: each replays its corpus in `tests/data/fuzz`, then changes of it, by a seed that is printed.
//!
//! `KVASIR_SEED=7` for other changes; `scripts/fuzz` runs the same targets under libFuzzer. `KVASIR_REGENERATE=1` writes the
//! corpus anew. An input that failed belongs into the corpus of its target.

#![allow(clippy::disallowed_methods, reason = "tests read their switches from the environment")]

mod corpus;
mod mutate;
mod targets;

use mutate::Mutator;
use std::env;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;
use targets::TARGETS;
use tokio::time::Instant;

/// How long changed inputs are tried, for each target.
const CHANGES_FOR: Duration = Duration::from_millis(1_500);
/// Longest input that is made by changes, in bytes.
const INPUT_BYTES_MAX: usize = 64 << 10;

fn seed() -> u64 {
    env::var("KVASIR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

/// Runs one input; if it fails, says which.
fn run(name: &str, about: &str, input: &[u8]) -> bool {
    catch_unwind(AssertUnwindSafe(|| targets::run(name, input))).unwrap_or_else(|panic| {
        let mut hex = String::with_capacity(2 * input.len());
        for byte in input {
            // Writing to a String does not fail.
            let _infallible = write!(hex, "{byte:02x}");
        }
        println!("{name}, {about}: {hex}");
        resume_unwind(panic)
    })
}

fn replay(name: &str) {
    let corpus = corpus::read(name);
    let understood = corpus.iter().filter(|(file, input)| run(name, file, input)).count();
    assert!(understood > 0, "{name} understands nothing of its corpus");
    let seed = seed();
    println!("{name}: KVASIR_SEED={seed}");
    let inputs: Vec<Vec<u8>> = corpus.into_iter().map(|(_, input)| input).collect();
    let mut mutator = Mutator::new(seed, &inputs, INPUT_BYTES_MAX);
    let began = Instant::now();
    let mut count = 0_u64;
    let mut understood = 0_u64;
    while began.elapsed() < CHANGES_FOR {
        let input = mutator.next();
        let about = format!("KVASIR_SEED={seed}, change {count}");
        understood += u64::from(run(name, &about, &input));
        count += 1;
    }
    println!("{name}: {count} changed inputs, {understood} understood");
}

#[test]
fn frames() {
    replay("frames");
}

#[test]
fn events() {
    replay("events");
}

#[test]
fn messages() {
    replay("messages");
}

#[test]
fn checkpoint() {
    replay("checkpoint");
}

#[test]
fn dump() {
    replay("dump");
}

#[test]
fn identities() {
    replay("identities");
}

#[test]
fn journal() {
    replay("journal");
}

/// A target without a test here or without a binary for libFuzzer would be forgotten.
#[test]
fn each_target_is_replayed_and_has_a_binary() {
    for (name, _) in TARGETS {
        let here = include_str!("main.rs");
        assert!(here.contains(&format!("replay(\"{name}\");")), "{name} is not replayed");
        let manifest = include_str!("../../fuzz/Cargo.toml");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} has no binary");
    }
}
