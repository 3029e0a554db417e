//! Measures lookups with cold CPU caches.

use super::lookup::latencies;
use crate::indexes::Ask;
use crate::line::Line;
use crate::workload::{Fleet, Question, cases};
use std::hint::black_box;

/// Bytes written between two queries to flush the caches: several times a core's private cache.
const FLUSH_BYTES: usize = 8 << 20;
/// Number of cases used; the first cases of a workload are hits.
pub(super) const CASES: usize = 3;
const CACHE_LINE_BYTES: usize = 64;

/// Measures each case with each function, after the caches were filled with other data.
pub(crate) fn cold<A: Ask>(asked: &A, fleet: &Fleet, questions: usize, line: &mut Line) {
    let mut others = vec![1_u8; FLUSH_BYTES];
    for &case in &cases(fleet.kind)[..CASES] {
        let asking = Question::some(fleet, case, questions, line.seed + 3);
        for (call, name) in A::CALLS.iter().enumerate() {
            let flushed = || {
                flush(&mut others);
                true
            };
            let samples = latencies(asked, fleet, &asking, call, flushed);
            line.set_latencies(&format!("cold.{}.{name}", case.name), &samples.sorted());
        }
    }
}

fn flush(others: &mut [u8]) {
    others.iter_mut().step_by(CACHE_LINE_BYTES).for_each(|byte| *byte = byte.wrapping_add(1));
    black_box(others);
}
