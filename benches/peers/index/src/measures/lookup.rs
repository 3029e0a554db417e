//! Measures lookups by one thread, without a writer.

use crate::indexes::{Ask, summary};
use crate::line::Line;
use crate::meter::cpu_time;
use crate::samples::Samples;
use crate::workload::{Case, Fleet, QUERY_BLOCKS_MAX, Question, cases};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of queries per case whose answers are checked.
const CHECKED: usize = 500;
/// Number of other queries before the measurement, per measured query.
const WARM_FACTOR: usize = 2;
/// Capacity for samples, so that no memory is allocated during the measurement.
const SAMPLES: usize = 1 << 20;
/// Number of queries between two readings of the CPU clock.
const GROUP: usize = 64;

/// Measures each case of the fleet's workload with each function of the index.
pub(crate) fn lookups<A: Ask>(asked: &A, fleet: &Fleet, questions: usize, line: &mut Line) {
    for &case in cases(fleet.kind) {
        check(asked, fleet, case, line.seed);
        let asking = Question::some(fleet, case, questions, line.seed + 1);
        // Otherwise the first call would pay for memory that was not read since it was stored.
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

/// Queries, and checks the answers.
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

/// Measures the time of each call as long as `goes_on` returns true. The query was just written, as if it had just been
/// decoded.
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

/// Mean CPU time of a call in nanoseconds, without reading a clock around each call.
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
