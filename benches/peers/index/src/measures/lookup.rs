//! Lookups, one thread, nobody writing.

use crate::indexes::{Ask, summary};
use crate::line::Line;
use crate::meter::cpu_time;
use crate::samples::Samples;
use crate::workload::{Case, Fleet, QUERY_BLOCKS_MAX, Question, cases};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Questions of each case whose answers are compared with what they must be.
const CHECKED: usize = 500;
/// Other questions that are asked before, for each that is measured.
const WARM_FACTOR: usize = 2;
/// Samples that there is room for from the beginning, so that none is made while they are taken.
const SAMPLES: usize = 1 << 20;
/// Questions between two readings of the CPU clock.
const GROUP: usize = 64;

/// Each case of the fleet's workload with each call of the index.
pub(crate) fn lookups<A: Ask>(asked: &A, fleet: &Fleet, questions: usize, line: &mut Line) {
    for &case in cases(fleet.kind) {
        check(asked, fleet, case, line.seed);
        let asking = Question::some(fleet, case, questions, line.seed + 1);
        // The first call would pay for what was not read since it was stored.
        let others = Question::some(fleet, case, WARM_FACTOR * questions, line.seed + 7);
        latencies(asked, fleet, &others, 0, || true);
        for (call, name) in A::CALLS.iter().enumerate() {
            let name = format!("lookup.{}.{name}", case.name);
            let latencies = latencies(asked, fleet, &asking, call, || true);
            line.set_latencies(&name, &latencies.sorted());
            let cpu = cpu_of_each(asked, fleet, &asking, call);
            line.set(format!("{name}.cpu_ns"), cpu);
        }
    }
}

/// Asks, and compares the answers.
pub(crate) fn check<A: Ask>(asked: &A, fleet: &Fleet, case: Case, seed: u64) {
    let mut query = Vec::new();
    let mut answer = A::Answer::default();
    for question in Question::some(fleet, case, CHECKED, seed) {
        query.clear();
        question.append(fleet, &mut query, A::hash);
        for (call, name) in A::CALLS.iter().enumerate() {
            asked.ask(call, &query, &mut answer);
            let seen = summary(&asked.scores(call, &answer));
            let expected = question.expected(fleet);
            assert_eq!(seen, expected, "{name}, {}: {question:?}, seed {seed}", case.name);
        }
    }
}

/// Time of each call, as long as `goes_on` says so before the next. The query has just been written, as
/// if it had just been decoded.
pub(crate) fn latencies<'a, A: Ask>(
    asked: &A,
    fleet: &Fleet,
    asking: impl IntoIterator<Item = &'a Question>,
    call: usize,
    mut goes_on: impl FnMut() -> bool,
) -> Samples {
    let mut samples = Samples::with_capacity(SAMPLES);
    let mut query = Vec::with_capacity(QUERY_BLOCKS_MAX);
    let mut answer = A::Answer::default();
    for question in asking {
        if !goes_on() {
            break;
        }
        query.clear();
        question.append(fleet, &mut query, A::hash);
        let started = Instant::now();
        asked.ask(call, black_box(&query), &mut answer);
        samples.push(started.elapsed().as_nanos());
        black_box(&answer);
    }
    samples
}

/// CPU time of a call on average, in nanoseconds, without reading a clock around each.
fn cpu_of_each<A: Ask>(asked: &A, fleet: &Fleet, asking: &[Question], call: usize) -> f64 {
    let mut hashes = Vec::with_capacity(GROUP * QUERY_BLOCKS_MAX);
    let mut ends = Vec::with_capacity(GROUP);
    let mut answer = A::Answer::default();
    let mut cpu = Duration::ZERO;
    for group in asking.chunks(GROUP) {
        hashes.clear();
        ends.clear();
        for question in group {
            question.append(fleet, &mut hashes, A::hash);
            ends.push(hashes.len());
        }
        let started = cpu_time();
        let mut start = 0;
        for &end in &ends {
            asked.ask(call, black_box(&hashes[start..end]), &mut answer);
            black_box(&answer);
            start = end;
        }
        cpu += cpu_time() - started;
    }
    cpu.as_nanos() as f64 / asking.len() as f64
}
