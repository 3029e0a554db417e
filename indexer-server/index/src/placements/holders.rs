//! Holders of placements: ranks of workers, while they have placements.

use super::pages::{NONE, Pages};
use crate::table::{SplitTable, mix};
use kvasir_proto::types::{DpRank, WorkerId, WorkerKey};
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// A rank with placements.
#[derive(Debug, Default)]
pub(super) struct Holder {
    /// The rank's worker; [`NONE`] once the worker was removed.
    worker: u32,
    rank: DpRank,
    /// Head of the list of the holder's placements.
    pub(super) first: u32,
}

impl Holder {
    pub(super) const fn is_retired(&self) -> bool {
        self.worker == NONE
    }
}

#[derive(Debug, Default)]
struct Worker {
    id: Option<WorkerId>,
    /// Ranks and their holders, by rank.
    ranks: Vec<(DpRank, u32)>,
}

/// All holders.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) pages: Pages<Holder>,
    workers: Pages<Worker>,
    names: SplitTable<u32>,
    /// Holders of removed workers. They get no new placements and appear in no answer. Their numbers are
    /// reused once all their placements are dropped.
    pub(super) retired: Vec<u32>,
}

fn hash(id: &WorkerId) -> u64 {
    mix(FxBuildHasher.hash_one(id.as_str()))
}

fn hash_of(workers: &Pages<Worker>, worker: u32) -> u64 {
    workers[worker].id.as_ref().map_or(0, hash)
}

impl Holders {
    fn worker(&self, id: &WorkerId) -> Option<u32> {
        let is_same = |&at: &u32| self.workers[at].id.as_ref() == Some(id);
        self.names.find(hash(id), is_same).copied()
    }

    /// The holder of a rank, created if necessary.
    pub(super) fn get_or_add(&mut self, key: &WorkerKey) -> u32 {
        let worker = self.worker(&key.worker).unwrap_or_else(|| {
            let worker = Worker { id: Some(key.worker.clone()), ranks: Vec::new() };
            let at = self.workers.add(worker);
            let workers = &self.workers;
            self.names.insert(hash(&key.worker), at, |&at| hash_of(workers, at));
            at
        });
        let ranks = &mut self.workers[worker].ranks;
        match ranks.binary_search_by_key(&key.rank, |(rank, _)| *rank) {
            Ok(at) => ranks.get(at).map_or(NONE, |(_, holder)| *holder),
            Err(at) => {
                let holder = self.pages.add(Holder { worker, rank: key.rank, first: NONE });
                ranks.insert(at, (key.rank, holder));
                holder
            }
        }
    }

    /// The rank of a holder; `None` once its worker was removed.
    pub(super) fn key(&self, holder: u32) -> Option<WorkerKey> {
        let Holder { worker, rank, .. } = self.pages[holder];
        if worker == NONE {
            return None;
        }
        let worker = self.workers[worker].id.clone()?;
        Some(WorkerKey { worker, rank })
    }

    /// Removes a worker. A later worker with the same id is a new one.
    pub(super) fn retire(&mut self, id: &WorkerId) {
        let Some(worker) = self.worker(id) else { return };
        for (_, holder) in self.remove_worker(worker).ranks {
            self.pages[holder].worker = NONE;
            self.retired.push(holder);
        }
    }

    /// Frees a holder without placements, and its worker with the last holder. Holders of removed workers
    /// stay until they are swept.
    pub(super) fn free(&mut self, holder: u32) {
        let Holder { worker, rank, .. } = self.pages[holder];
        if worker == NONE {
            return;
        }
        self.pages.remove(holder);
        let ranks = &mut self.workers[worker].ranks;
        ranks.retain(|(at, _)| *at != rank);
        if ranks.is_empty() {
            self.remove_worker(worker);
        }
    }

    fn remove_worker(&mut self, worker: u32) -> Worker {
        let hash = hash_of(&self.workers, worker);
        let workers = &self.workers;
        self.names.remove(hash, |&at| at == worker, |&at| hash_of(workers, at));
        self.workers.remove(worker)
    }

    pub(super) fn bytes(&self) -> usize {
        let ranks = self.workers.iter().map(|(_, worker)| worker.ranks.capacity());
        self.pages.bytes()
            + self.workers.bytes()
            + self.names.bytes()
            + ranks.sum::<usize>() * size_of::<(DpRank, u32)>()
            + self.retired.capacity() * size_of::<u32>()
    }

    /// Checks that holders and workers refer to each other.
    pub(super) fn validate(&self) -> Result<(), String> {
        self.pages.validate()?;
        self.workers.validate()?;
        let mut ranks = 0;
        for (at, worker) in self.workers.iter() {
            if worker.id.as_ref().and_then(|id| self.worker(id)) != Some(at) {
                return Err(format!("worker {at} is not found by its name"));
            }
            let known = |&(rank, holder): &(DpRank, u32)| {
                let holder = &self.pages[holder];
                holder.worker == at && holder.rank == rank
            };
            if worker.ranks.is_empty() || !worker.ranks.iter().all(known) {
                return Err(format!("worker {at} has wrong ranks"));
            }
            ranks += worker.ranks.len();
        }
        if self.retired.iter().any(|&holder| !self.pages[holder].is_retired()) {
            return Err("a retired holder has a worker".to_owned());
        }
        if ranks + self.retired.len() != self.pages.used() {
            return Err(format!("{ranks} ranks of {} holders", self.pages.used()));
        }
        Ok(())
    }
}
