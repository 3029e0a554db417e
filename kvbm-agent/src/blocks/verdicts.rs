use kvasir_blocks::{BlockTier, GateVerdict};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Counts of load decisions for the blocks of one tier that engines requested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerdictCounts {
    /// Number of decisions to load.
    pub loads: u64,
    /// Number of decisions to compute.
    pub computes: u64,
    /// The last decision, with its inputs.
    pub last: GateVerdict,
}

/// Counts by the tier to load from.
#[derive(Debug, Default)]
pub(super) struct Verdicts(Mutex<BTreeMap<BlockTier, VerdictCounts>>);

impl Verdicts {
    pub(super) fn count(&self, verdict: GateVerdict) {
        let mut counts = self.0.lock();
        let none = VerdictCounts { loads: 0, computes: 0, last: verdict };
        let at = counts.entry(verdict.inputs.route.from).or_insert(none);
        at.loads += u64::from(verdict.is_load);
        at.computes += u64::from(!verdict.is_load);
        at.last = verdict;
    }

    pub(super) fn counts(&self) -> BTreeMap<BlockTier, VerdictCounts> {
        self.0.lock().clone()
    }
}
