//! Measures churn: all content is replaced repeatedly while the size stays the same.

use super::apply::Applied;
use super::lookup::check;
use crate::indexes::Index;
use crate::line::Line;
use crate::meter::resident_bytes;
use crate::workload::{Content, Fleet, Order, Script, cases, removals};
use bench_figures::number;

/// Number of operations of one kind before it is the other kind's turn.
const TURN_OPERATIONS: usize = 256;

/// Data for churn, created once before memory is measured, and refilled in place.
pub(crate) struct Churn {
    turnovers: usize,
    stores: Script,
    removals: Script,
    /// Content to store next.
    next: Content,
}

impl Churn {
    pub(crate) fn new(fleet: &Fleet, turnovers: usize, seed: u64) -> Self {
        let mut next = Content::new(0, fleet.content.len());
        fleet.refill(&mut next, seed);
        let removals = removals(fleet, Order::Chains, seed + 2);
        Self { turnovers, stores: fleet.stores(), removals, next }
    }

    /// Churns a fleet whose content is completely stored. `before` is the memory without the index.
    pub(crate) fn run<I: Index>(
        mut self,
        index: &mut I,
        fleet: &mut Fleet,
        before: u64,
        line: &mut Line,
    ) {
        let mut series = Series::default();
        for turnover in 1..=self.turnovers {
            fleet.refill(&mut self.next, line.seed + 1_000 * turnover as u64);
            let (stored, removed) = self.turn_over(index, fleet);
            std::mem::swap(&mut fleet.content, &mut self.next);
            index.tidy();
            let bytes = resident_bytes().saturating_sub(before) as f64;
            series.bytes.push((turnover as f64, bytes / fleet.pairs as f64));
            series.stored.push((turnover as f64, stored.cpu_rate()));
            series.removed.push((turnover as f64, removed.cpu_rate()));
        }
        assert_eq!(index.pairs(), fleet.pairs, "pairs after {} turnovers", self.turnovers);
        for &case in cases(fleet.kind) {
            check(index.asked(), fleet, case, line.seed);
        }
        series.report(line);
    }

    fn turn_over<I: Index>(&self, index: &mut I, fleet: &Fleet) -> (Applied, Applied) {
        let mut stored = Applied::default();
        let mut removed = Applied::default();
        let stores = self.stores.operations().chunks(TURN_OPERATIONS);
        let removals = self.removals.operations().chunks(TURN_OPERATIONS);
        assert_eq!(stores.len(), removals.len(), "a steady size");
        for (store, removal) in stores.zip(removals) {
            removed.add(index, &fleet.content, &self.removals, removal);
            stored.add(index, &self.next, &self.stores, store);
        }
        (stored, removed)
    }
}

/// One point per turnover.
#[derive(Default)]
struct Series {
    bytes: Vec<(f64, f64)>,
    stored: Vec<(f64, f64)>,
    removed: Vec<(f64, f64)>,
}

impl Series {
    fn report(self, line: &mut Line) {
        for (turnover, bytes) in &self.bytes {
            line.set(format!("churn.memory.{turnover}"), *bytes);
        }
        line.set("churn.memory", median(last_half(&self.bytes)));
        line.set("churn.memory_growth", growth(last_half(&self.bytes)));
        line.set("churn.store_kept", kept(&self.stored));
        line.set("churn.remove_kept", kept(&self.removed));
        line.set("churn.store.cpu_rate", median(last_half(&self.stored)));
        line.set("churn.remove.cpu_rate", median(last_half(&self.removed)));
    }
}

fn last_half(points: &[(f64, f64)]) -> &[(f64, f64)] {
    &points[points.len() / 2..]
}

fn median(points: &[(f64, f64)]) -> f64 {
    number::median(&points.iter().map(|&(_, value)| value).collect::<Vec<f64>>())
}

/// Speed in the last half, relative to the first three turnovers.
fn kept(points: &[(f64, f64)]) -> f64 {
    median(last_half(points)) / median(&points[..points.len().min(3)])
}

/// Relative growth of the regression line from the first point to the last.
fn growth(points: &[(f64, f64)]) -> f64 {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let x_mean = mean(|point| point.0);
    let y_mean = mean(|point| point.1);
    let above = |&(x, y): &(f64, f64)| (x - x_mean) * (y - y_mean);
    let below = |&(x, _): &(f64, f64)| (x - x_mean) * (x - x_mean);
    let spread = points.iter().map(below).sum::<f64>();
    if spread == 0.0 {
        return 0.0;
    }
    points.iter().map(above).sum::<f64>() / spread * (count - 1.0) / y_mean
}
