//! Everything together, simulated: engines, agents, a broker, servers with their disks, and a network
//! that delays, loses, repeats and breaks. The machines that decide are the real ones (the journal
//! of an agent, the recovery of its source, the sequencer of a bare engine, the index, its images);
//! what carries their messages, the disk and the clock are played.
//!
//! `KVASIR_SEEDS=n` runs seeds 0 to n instead of the usual number, `KVASIR_SEED=n` only seed n.

mod agent;
mod bare;
mod broker;
mod check;
mod direct;
mod fault;
mod follower;
mod link;
mod play;
mod quiet;
mod relay;
mod rounds;
mod seen;
mod server;
mod truth;
mod world;

use fault::Fault;
use seen::Seen;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::thread;
use world::World;

/// Seeds in the ordinary test command.
const SEEDS: u64 = 4_000;
/// Seeds within which each fault must show.
const FAULT_SEEDS: u64 = 1_500;
const THREADS: usize = 2;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

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

/// Keeps the message of a panic in [`run`] instead of printing it.
fn keep_panic_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if CATCHING.get() {
                PANIC.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
}

/// Runs one seed; what was seen, or what went wrong.
fn run(seed: u64, fault: Fault) -> Result<Seen, String> {
    keep_panic_messages();
    CATCHING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed, fault);
        world.play();
        world.quiesce();
        world.check_end();
        world.seen
    }));
    CATCHING.set(false);
    outcome.map_err(|_| PANIC.take())
}

/// Runs seeds on two threads; the first failure found, if any, with its seed.
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
            match run(seed, fault) {
                Ok(seen) => total.lock().expect("not poisoned").merge(&seen),
                Err(message) => {
                    // Nobody takes another seed.
                    next.store(seeds.end, Ordering::Relaxed);
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

/// Whatever happens, once it has stopped every server knows just what the engines hold.
#[test]
fn every_server_knows_the_truth_in_the_end() {
    let seeds = seeds();
    match run_all(seeds.clone(), Fault::None) {
        Ok(seen) => {
            print!("seeds {seeds:?}:\n{}", seen.lines());
            // Whoever chooses seeds knows what for.
            if seeds == (0..SEEDS) {
                assert_eq!(seen.missing(&seen::REACHED), Vec::<&str>::new(), "not reached");
            }
        }
        Err((seed, message)) => panic!("seed {seed} (again: KVASIR_SEED={seed}): {message}"),
    }
}

/// The simulation can fail: each way to be wrong is noticed.
#[test]
fn every_fault_is_noticed() {
    for fault in Fault::ALL {
        let outcome = run_all(0..FAULT_SEEDS, fault);
        let (seed, message) = outcome.err().unwrap_or_else(|| panic!("{fault:?} was not noticed"));
        println!("{fault:?}: seed {seed}, {}", message.lines().nth(1).unwrap_or(&message));
    }
}
