//! The ranks that can be chosen, in order of their keys.

use super::config::RouterWorker;
use super::index::Held;
use crate::route::{ActiveLoads, RankId};
use kvasir_proto::types::{WorkerId, WorkerKey};
use std::collections::HashMap;
use std::time::Duration;

/// A rank that can be chosen.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) worker: RouterWorker,
    pub(super) rank: RankId,
    /// When its worker joined; none for those that were there when the router began.
    pub(super) joined: Option<Duration>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Workers {
    /// By key.
    members: Vec<Member>,
    numbers: HashMap<WorkerKey, usize>,
    /// Workers, each with its ranks.
    count: usize,
}

impl Workers {
    pub(super) fn members(&self) -> &[Member] {
        &self.members
    }

    /// A rank by its key.
    pub(super) fn member(&self, key: &WorkerKey) -> Option<&Member> {
        self.members.get(*self.numbers.get(key)?)
    }

    /// Workers, each counted once.
    pub(super) const fn count(&self) -> usize {
        self.count
    }

    pub(super) fn has_worker(&self, worker: &WorkerId) -> bool {
        let first = WorkerKey { worker: worker.clone(), rank: 0 };
        let at = self.members.partition_point(|member| member.worker.key < first);
        self.members.get(at).is_some_and(|member| member.worker.key.worker == *worker)
    }

    /// These are the ranks from now on. Returns those that went.
    pub(super) fn set(
        &mut self,
        mut workers: Vec<RouterWorker>,
        active: &mut ActiveLoads,
        now: Duration,
    ) -> Vec<Member> {
        let is_first = self.members.is_empty();
        workers.sort_by(|a, b| a.key.cmp(&b.key));
        workers.dedup_by(|a, b| a.key == b.key);
        let before = std::mem::take(&mut self.members).into_iter();
        let mut before: HashMap<_, _> = before.map(|at| (at.worker.key.clone(), at)).collect();
        self.numbers.clear();
        self.count = 0;
        for worker in workers {
            // Beyond the limit on ranks nobody is chosen.
            let Some(rank) = active.join(&worker.key) else { continue };
            let joined = match before.remove(&worker.key) {
                Some(member) => member.joined,
                None => Some(now).filter(|_| !is_first),
            };
            let last = self.members.last();
            let is_new = last.is_none_or(|last| last.worker.key.worker != worker.key.worker);
            self.count += usize::from(is_new);
            self.numbers.insert(worker.key.clone(), self.members.len());
            self.members.push(Member { worker, rank, joined });
        }
        debug_assert_eq!(self.numbers.len(), self.members.len(), "each rank has one number");
        before.into_values().collect()
    }

    /// What each member holds, by its number; empty if nobody holds anything.
    ///
    /// Usually only a few ranks hold blocks of a prompt, so this looks up those ranks and not every member.
    pub(super) fn by_member(&self, held: &[(WorkerKey, Held)]) -> Vec<Option<Held>> {
        if held.is_empty() {
            return Vec::new();
        }
        let mut by_member = vec![None; self.members.len()];
        for (key, held) in held {
            let number = self.numbers.get(key);
            if let Some(at) = number.and_then(|number| by_member.get_mut(*number)) {
                *at = Some(*held);
            }
        }
        by_member
    }
}
