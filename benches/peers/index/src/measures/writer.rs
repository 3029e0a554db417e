//! Measures lookups while another thread writes at full speed.

use super::apply::Applied;
use super::lookup::latencies;
use crate::indexes::{Ask, Shared};
use crate::line::Line;
use crate::samples::Samples;
use crate::workload::{Fleet, Kind, Order, Question, Script, cases, removals};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Number of queries, which are repeated.
const QUESTIONS: usize = 20_000;
/// Number of cases used; the first cases of a workload are hits.
const CASES: usize = 3;
/// The writer stores and removes one in this many of the fleet's pairs.
const WRITTEN: usize = 8;

/// Prepared work of the writer, and the duration of the lookups.
pub(crate) struct Writing {
    asking: Duration,
    fleet: Fleet,
    stores: Script,
    removals: Script,
}

impl Writing {
    pub(crate) fn new(fleet: &Fleet, asking: Duration, seed: u64) -> Self {
        // The writer has its own content, so that answers do not change.
        let seed = seed + 500;
        let pairs = fleet.pairs / WRITTEN;
        let fleet = Fleet::new(Kind::Distinct, fleet.workers(), pairs, seed);
        let removals = removals(&fleet, Order::Tail, seed);
        Self { asking, stores: fleet.stores(), removals, fleet }
    }

    /// Stores and removes all prepared blocks until stopped. Also returns how often blocks were missing after a store.
    fn run<I: Shared>(&self, index: &mut I, stop: &AtomicBool) -> (Applied, usize) {
        let mut applied = Applied::default();
        let mut short = 0;
        let without = index.pairs();
        loop {
            applied.add(index, &self.fleet.content, &self.stores, self.stores.operations());
            short += usize::from(index.pairs() != without + self.fleet.pairs);
            applied.add(index, &self.fleet.content, &self.removals, self.removals.operations());
            if stop.load(Ordering::Relaxed) {
                return (applied, short);
            }
        }
    }
}

/// Lookups under the writer.
pub(crate) fn under_writer<I: Shared>(
    index: &mut I,
    fleet: &Fleet,
    writing: &Writing,
    line: &mut Line,
) {
    for &case in &cases(fleet.kind)[..CASES] {
        let asking = Question::some(fleet, case, QUESTIONS, line.seed + 4);
        for (call, name) in I::Asked::CALLS.iter().enumerate() {
            let asked = index.shared();
            let stop = AtomicBool::new(false);
            let started = Instant::now();
            let (samples, (applied, short)) = thread::scope(|scope| {
                let writer = scope.spawn(|| writing.run(index, &stop));
                let samples = ask(&*asked, fleet, &asking, call, writing.asking);
                stop.store(true, Ordering::Relaxed);
                (samples, writer.join().expect("the writer ends well"))
            });
            let name = format!("writer.{}.{name}", case.name);
            let wall = started.elapsed().as_secs_f64();
            line.set(
                format!("{name}.lookup_rate"),
                samples.len() as f64 / writing.asking.as_secs_f64(),
            );
            line.set(format!("{name}.write_rate"), applied.blocks as f64 / wall);
            line.set(format!("{name}.short_rounds"), short as f64);
            assert!(short == 0 || !I::EXACT, "{name}: {short} rounds did not store all");
            line.set_latencies(&name, &samples.sorted());
        }
    }
    assert_eq!(index.pairs(), fleet.pairs, "the writer leaves what it found");
    for &case in cases(fleet.kind) {
        super::check(index.asked(), fleet, case, line.seed);
    }
}

fn ask<A: Ask>(
    asked: &A,
    fleet: &Fleet,
    asking: &[Question],
    call: usize,
    time: Duration,
) -> Samples {
    let begun = Instant::now();
    latencies(asked, fleet, asking.iter().cycle(), call, || begun.elapsed() <= time)
}
