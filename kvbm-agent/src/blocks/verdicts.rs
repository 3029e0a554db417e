use kvasir_blocks::{BlockTier, GateVerdict};
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Whether to load the blocks of a tier, as engines asked it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VerdictCounts {
    /// Times that loading was better.
    pub loads: u64,
    /// Times that computing was better.
    pub computes: u64,
    /// The last one, with what it rests on.
    pub last: GateVerdict,
}

/// All of them, by the tier that blocks would be loaded from.
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
