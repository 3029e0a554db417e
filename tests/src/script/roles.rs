//! Which workers of a script are pools. It changes as the script runs.

use super::{Script, ScriptRng};
use crate::oracle::Roles;
use kvasir_proto::types::WorkerId;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

/// The roles change with each step that is a multiple of it.
const CHANGE_EVERY: u64 = 16;

impl Script {
    /// The roles from a step on; none if they stay as they are. Half of the scripts have no pool.
    #[must_use]
    pub fn roles(&self, step: u64) -> Option<Roles> {
        if !step.is_multiple_of(CHANGE_EVERY) || self.seed.is_multiple_of(2) {
            return None;
        }
        let mut rng =
            ScriptRng::seed_from_u64(self.seed.wrapping_mul(1_000_033).wrapping_add(step));
        let workers: BTreeSet<&WorkerId> = self.sources.iter().map(|at| &at.worker).collect();
        let share = rng.random_range(0.0..0.7);
        let mut roles = Roles::default();
        for worker in &workers {
            if rng.random_bool(share) {
                roles.pools.insert((*worker).clone());
                continue;
            }
            // Some of these are no pools, and one is never known.
            let nobody = WorkerId::new("nobody").expect("a short name");
            let all = workers.iter().copied().chain([&nobody]);
            let reads = all.filter(|at| *at != *worker && rng.random_bool(0.6)).take(8).cloned();
            let mut reads: Vec<_> = reads.collect();
            reads.sort_unstable();
            roles.reads.insert((*worker).clone(), reads);
        }
        Some(roles)
    }
}
