use super::advice::{Advice, AdviceKind};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of remembered pieces of advice.
pub const TOLD_MAX: usize = 65_536;

/// Recently given advice, so that it is not repeated.
#[derive(Debug, Default)]
pub struct Told {
    until: BTreeMap<(AdviceKind, String, String, String), Duration>,
}

impl Told {
    /// Keeps only advice that was not given within `repeat_after`, and remembers it. While [`TOLD_MAX`] pieces are
    /// remembered, new advice waits.
    pub fn new_only(
        &mut self,
        mut advice: Vec<Advice>,
        now: Duration,
        repeat_after: Duration,
    ) -> Vec<Advice> {
        self.until.retain(|_, until| *until > now);
        advice.retain(|at| {
            let worker = at.worker.clone();
            let block = at.sequence_hash.clone();
            let key = (at.kind, worker, at.from.clone(), block);
            if self.until.contains_key(&key) || self.until.len() >= TOLD_MAX {
                return false;
            }
            self.until.insert(key, now.saturating_add(repeat_after));
            true
        });
        advice
    }
}
