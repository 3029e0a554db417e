//! Runs many seeds and tells of the first failure what is needed to understand it.

use crate::runner::{Failure, Seen, run};
use crate::shrink::shrink;
use crate::subject::Subject;
use kvasir_tests::script::{Script, ScriptLimits};
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::thread;

const THREADS: usize = 2;

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Keeps the message of a panic in [`run_caught`] instead of printing it.
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

/// Runs a script; a panic is a failure like any other.
pub fn run_caught<S: Subject>(
    script: &Script,
    make: &(impl Fn(ScriptLimits) -> S + Sync),
) -> Result<Seen, Failure> {
    keep_panic_messages();
    CATCHING.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| run(script, || make(script.limits))));
    CATCHING.set(false);
    outcome.unwrap_or_else(|_| Err(Failure { step: None, message: PANIC.take() }))
}

/// Runs seeds on two threads; the first failure, if any, with its seed.
pub fn run_seeds<S: Subject>(
    seeds: Range<u64>,
    script: impl Fn(u64) -> Script + Sync,
    make: impl Fn(ScriptLimits) -> S + Sync,
) -> Result<Seen, (u64, Failure)> {
    let next = AtomicU64::new(seeds.start);
    let total = Mutex::new(Seen::default());
    let failure = Mutex::new(None);
    let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&seed| seed < seeds.end);
    let work = || {
        while let Some(seed) = take() {
            match run_caught(&script(seed), &make) {
                Ok(seen) => total.lock().expect("not poisoned").merge(seen),
                Err(found) => {
                    // Nobody takes another seed.
                    next.store(seeds.end, Ordering::Relaxed);
                    failure.lock().expect("not poisoned").get_or_insert((seed, found));
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

/// Text of a failure: what differed, and the smallest script that still differs.
pub fn report<S: Subject>(
    script: &Script,
    failure: &Failure,
    make: impl Fn(ScriptLimits) -> S + Sync,
) -> String {
    // The first word tells kinds of differences apart well enough.
    let kind = failure.message.split_whitespace().next();
    let alike = |found: &Failure| found.message.split_whitespace().next() == kind;
    let small = shrink(script, failure.step, |candidate| {
        run_caught(candidate, &make).err().as_ref().is_some_and(alike)
    });
    let again = run_caught(&small, &make);
    let again = again.err().map_or("it passes".to_owned(), |failure| failure.message);
    format!(
        "seed {}, step {:?} of {}: {}\n\nshrunk to {} steps: {again}\n\n{small}",
        script.seed,
        failure.step,
        script.steps.len(),
        failure.message,
        small.steps.len()
    )
}
