//! Answers called exact are exactly what the engine can reuse.
//!
//! A model of an engine that follows vLLM's rules (salts, adapters, images, groups, tiers, look-ahead hashes, connectors
//! that leave keys out) publishes its events. Decoder, normaliser and index take these, with restarts in between. After every batch
//! prompts are asked for, and the answers are compared with what the engine can reuse.
//!
//! `KVASIR_SEEDS=n` runs seeds 0 to n instead of the usual number, `KVASIR_SEED=n` only seed n.

mod cache;
mod chain;
mod engine;
mod fault;
mod prompt;
mod publish;
mod run;
mod script;
mod seen;
mod setup;
mod subject;
mod wire;

use fault::Fault;
use run::{run, shrink};
use script::Script;
use seen::Seen;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// Seeds in the ordinary test command.
const SEEDS: u64 = 4_000;
/// Seeds within which each fault must show.
const FAULT_SEEDS: u64 = 4_000;
const THREADS: usize = 2;

#[expect(clippy::disallowed_methods, reason = "the seeds to run are chosen by whoever runs tests")]
fn seeds() -> Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name}={text} is not a number")))
    };
    if let Some(seed) = number("KVASIR_SEED") {
        return seed..seed + 1;
    }
    0..number("KVASIR_SEEDS").unwrap_or(SEEDS)
}

/// Runs seeds on two threads. Returns the first failure found with its seed, if any.
fn run_all(seeds: Range<u64>, fault: Fault) -> Result<Seen, (u64, String)> {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(Seen::default());
    let failure = Mutex::new(None);
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let script = Script::generate(seed);
            match run(&script, fault) {
                Ok(seen) => total.lock().expect("not poisoned").merge(&seen),
                Err(found) => {
                    // No thread takes another seed.
                    next.store(seeds.end, Ordering::Relaxed);
                    let (small, last) = shrink(&script, &found, fault);
                    let message = format!("{}\n\n{small}", last.message);
                    failure.lock().expect("not poisoned").get_or_insert((seed, message));
                }
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    match failure.into_inner().expect("not poisoned") {
        None => Ok(total.into_inner().expect("not poisoned")),
        Some(failure) => Err(failure),
    }
}

/// No answer counts more blocks than the engine can reuse, unless it says that it may; exact answers count no fewer.
#[test]
fn exact_answers_are_what_the_engine_can_reuse() {
    let seeds = seeds();
    match run_all(seeds.clone(), Fault::None) {
        Ok(seen) => {
            println!("seeds {seeds:?}: {seen:?}");
            // Whoever chooses seeds knows what for.
            if seeds == (0..SEEDS) {
                assert_eq!(seen.rarer_than(SEEDS / 20), Vec::<&str>::new(), "hardly reached");
            }
        }
        Err((seed, message)) => panic!("seed {seed} (again: KVASIR_SEED={seed}): {message}"),
    }
}

/// The test can fail: each way to be wrong is noticed.
#[test]
fn every_fault_is_noticed() {
    for fault in Fault::ALL {
        let outcome = run_all(0..FAULT_SEEDS, fault);
        let (seed, message) = outcome.err().unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        println!("{fault:?}: seed {seed}, {}", message.lines().next().unwrap_or_default());
    }
}
