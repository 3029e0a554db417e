//! Which workers are pools, and which pools a worker reads. Both are facts of a registration: they are here before the
//! worker has a rank, and stay without one.

use kvasir_proto::types::WorkerId;
use std::collections::{BTreeMap, BTreeSet};

/// Pools and their readers.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    /// They are no candidates: no query lists them.
    pools: BTreeSet<WorkerId>,
    /// The pools that a worker reads, by worker.
    reads: BTreeMap<WorkerId, Box<[WorkerId]>>,
    /// For each pool that is read, its readers: one bit a rank, by its index. It follows from `reads` and the ranks.
    readers: BTreeMap<WorkerId, Vec<u64>>,
}

impl Roles {
    pub(crate) fn is_pool(&self, worker: &WorkerId) -> bool {
        self.pools.contains(worker)
    }

    /// Ids of the pools.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &WorkerId> {
        self.pools.iter()
    }

    /// The ranks that read a pool; none if no rank does.
    pub(crate) fn readers(&self, pool: &WorkerId) -> Option<&[u64]> {
        self.readers.get(pool).map(Vec::as_slice)
    }

    /// Whether that is news.
    pub(crate) fn set_pool(&mut self, worker: &WorkerId) -> bool {
        self.pools.insert(worker.clone())
    }

    /// Whether that is news.
    pub(crate) fn set_reads(&mut self, worker: &WorkerId, pools: &[WorkerId]) -> bool {
        let before = if pools.is_empty() {
            self.reads.remove(worker)
        } else {
            self.reads.insert(worker.clone(), pools.into())
        };
        before.as_deref().unwrap_or_default() != pools
    }

    /// Whether there was anything to forget.
    pub(crate) fn forget(&mut self, worker: &WorkerId) -> bool {
        let was_pool = self.pools.remove(worker);
        self.reads.remove(worker).is_some() || was_pool
    }

    /// Forgets the readers, before the ranks are numbered again.
    pub(crate) fn begin(&mut self) {
        self.readers.clear();
    }

    /// Adds a rank of a worker, whose bit is in one of so many words.
    pub(crate) fn add(&mut self, worker: &WorkerId, holder: u32, words: usize) {
        for pool in self.reads.get(worker).into_iter().flatten() {
            let readers = self.readers.entry(pool.clone()).or_default();
            readers.resize(words, 0);
            if let Some(word) = readers.get_mut(holder as usize / 64) {
                *word |= 1 << (holder % 64);
            }
        }
    }
}
