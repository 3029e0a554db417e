//! Plays a recorded trace: queries each request, then applies its engine's events.

use super::apply::Applied;
use crate::indexes::{Ask, Index, summary};
use crate::line::Line;
use crate::meter::{Spent, resident_bytes};
use crate::samples::Samples;
use crate::workload::Trace;
use std::hint::black_box;
use std::time::Instant;

/// Number of requests that are queried together before their events are applied.
const GROUP: usize = 16;
/// One request in this many is queried at the end, and its answer checked.
const CHECKED_EVERY: usize = 20;

/// Plays a trace.
pub(crate) fn replay<I: Index>(trace: &Trace, workers: usize, line: &mut Line) {
    let before = resident_bytes();
    let mut index = I::new(workers);
    for (call, name) in I::Asked::CALLS.iter().enumerate() {
        if call > 0 {
            index = I::new(workers);
        }
        let mut applied = Applied::default();
        let mut samples = Samples::with_capacity(trace.requests.len());
        let mut query = Vec::new();
        let mut answer = Default::default();
        let mut all = Spent::default();
        for group in trace.requests.chunks(GROUP) {
            for request in group {
                query.clear();
                trace.append(request, &mut query, I::Asked::hash);
                all.add(|| {
                    let started = Instant::now();
                    index.asked().ask(call, black_box(&query), &mut answer);
                    samples.push(started.elapsed().as_nanos());
                });
                black_box(&answer);
            }
            let operations = group[0].operations.start..group[group.len() - 1].operations.end;
            let part = &trace.script.operations()[operations];
            applied.add(&mut index, &trace.content, &trace.script, part);
        }
        line.set_latencies(&format!("trace.lookup.{name}"), &samples.sorted());
        line.set(
            format!("trace.lookup.{name}.cpu_ns"),
            all.cpu.as_nanos() as f64 / trace.requests.len() as f64,
        );
        line.set("trace.events.cpu_rate", applied.cpu_rate());
        line.set("trace.events.wall_rate", applied.wall_rate());
        line.set("trace.blocks", applied.blocks as f64);
        assert_eq!(index.pairs(), trace.pairs(), "pairs at the end of the trace");
        for request in trace.requests.iter().step_by(CHECKED_EVERY) {
            query.clear();
            trace.append(request, &mut query, I::Asked::hash);
            index.asked().ask(call, &query, &mut answer);
            let seen = summary(&index.asked().scores(call, &answer));
            assert_eq!(seen, trace.expected(request), "{name}, {request:?}");
        }
    }
    index.tidy();
    let bytes = resident_bytes().saturating_sub(before) as f64;
    line.set("trace.memory", bytes / trace.pairs() as f64);
    line.set("trace.pairs", trace.pairs() as f64);
}
