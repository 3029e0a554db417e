//! Assigns roles to a script's workers, which change as the script runs: pools, and connectors with chunks.

use super::{Script, ScriptRng};
use crate::oracle::Roles;
use kvasir_proto::types::{Tier, WorkerId};
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};

/// The roles change at each step whose number is a multiple of this.
const CHANGE_EVERY: u64 = 16;

impl Script {
    /// The roles from a step on; none if they do not change there. Half of the scripts have no pool, half no chunks.
    #[must_use]
    pub fn roles(&self, step: u64) -> Option<Roles> {
        if !step.is_multiple_of(CHANGE_EVERY) {
            return None;
        }
        let mut roles =
            if self.seed.is_multiple_of(2) { Roles::default() } else { self.pools(step) };
        if self.seed % 4 < 2 {
            roles.chunks = self.chunks(step);
        }
        Some(roles)
    }

    fn chunks(&self, step: u64) -> BTreeMap<WorkerId, [u32; Tier::COUNT]> {
        let mut rng =
            ScriptRng::seed_from_u64(self.seed.wrapping_mul(1_000_037).wrapping_add(step));
        let workers: BTreeSet<&WorkerId> = self.sources.iter().map(|at| &at.worker).collect();
        let with = workers.into_iter().filter_map(|worker| {
            let sizes = Tier::ALL.map(|_| [0, 0, 1, 2, 3, 4][rng.random_range(0..6)]);
            rng.random_bool(0.6).then(|| (worker.clone(), sizes))
        });
        with.collect()
    }

    fn pools(&self, step: u64) -> Roles {
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
            // Some of these ids are not pools, and one is never known.
            let nobody = WorkerId::new("nobody").expect("a short name");
            let all = workers.iter().copied().chain([&nobody]);
            let reads = all.filter(|at| *at != *worker && rng.random_bool(0.6)).take(8).cloned();
            let mut reads: Vec<_> = reads.collect();
            reads.sort_unstable();
            roles.reads.insert((*worker).clone(), reads);
        }
        roles
    }
}
