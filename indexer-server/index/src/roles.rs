//! Roles from registrations: which workers are pools, which pools a worker reads, the chunk sizes of its
//! connector, and facts about its engine. They exist before the worker has a rank, and stay without one.

use crate::chunks::{ChunkSizes, NO_CHUNKS};
use crate::sets::HolderIndex;
use kvasir_proto::types::{DpRank, EngineFacts, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// Pools, their readers, and chunk sizes.
#[derive(Debug, Default)]
pub(crate) struct Roles {
    /// Pools, which queries never list as candidates.
    pools: BTreeSet<WorkerId>,
    /// The pools that each worker reads.
    reads: BTreeMap<WorkerId, Box<[WorkerId]>>,
    /// The ranks that read each pool. Pools without readers have no entry.
    readers: BTreeMap<WorkerId, Readers>,
    /// Chunk sizes by worker. Workers without chunks have no entry.
    chunks: BTreeMap<WorkerId, ChunkSizes>,
    /// Chunk sizes by rank, up to the last rank that has had chunks. Empty while no worker has chunks.
    rank_chunks: Vec<ChunkSizes>,
    /// Facts about engines, by worker. Workers without facts have no entry.
    facts: BTreeMap<WorkerId, EngineFacts>,
    /// Facts by rank. Ranks without facts have no entry.
    rank_facts: BTreeMap<HolderIndex, EngineFacts>,
}

/// Sparse bitmap of ranks by index. Only words with a set bit are stored: about 16 bytes for each rank and
/// pool that it reads, however many pools there are.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// Index of each word and its bits, in order.
    words: Vec<(u32, u64)>,
}

impl Readers {
    pub(crate) fn contains(&self, holder: HolderIndex) -> bool {
        let at = self.words.binary_search_by_key(&(holder / 64), |&(number, _)| number);
        let bits = at.ok().and_then(|at| self.words.get(at)).map_or(0, |&(_, bits)| bits);
        bits & (1 << (holder % 64)) != 0
    }

    /// Adds these ranks to a bitmap.
    pub(crate) fn union_into(&self, bitmap: &mut [u64]) {
        for &(number, bits) in &self.words {
            if let Some(word) = bitmap.get_mut(number as usize) {
                *word |= bits;
            }
        }
    }

    fn insert(&mut self, holder: HolderIndex) {
        let number = holder / 64;
        let bit = 1 << (holder % 64);
        match self.words.binary_search_by_key(&number, |&(number, _)| number) {
            Ok(at) => self.words.get_mut(at).into_iter().for_each(|(_, bits)| *bits |= bit),
            Err(at) => self.words.insert(at, (number, bit)),
        }
    }

    fn remove(&mut self, holder: HolderIndex) {
        let number = holder / 64;
        let bit = 1_u64 << (holder % 64);
        if let Ok(at) = self.words.binary_search_by_key(&number, |&(number, _)| number) {
            self.words.get_mut(at).into_iter().for_each(|(_, bits)| *bits &= !bit);
            if self.words.get(at).is_some_and(|&(_, bits)| bits == 0) {
                self.words.remove(at);
            }
        }
    }
}

impl Roles {
    pub(crate) fn is_pool(&self, worker: &WorkerId) -> bool {
        self.pools.contains(worker)
    }

    /// Ids of the pools.
    pub(crate) fn pools(&self) -> impl Iterator<Item = &WorkerId> {
        self.pools.iter()
    }

    /// The ranks that read a pool; `None` if it has no reader.
    pub(crate) fn readers(&self, pool: &WorkerId) -> Option<&Readers> {
        self.readers.get(pool)
    }

    /// Makes a worker a pool, which reads no pools. Returns whether this is a change.
    pub(crate) fn set_pool(&mut self, worker: &WorkerId, ranks: &[(DpRank, HolderIndex)]) -> bool {
        self.set_reads(worker, &[], ranks);
        self.pools.insert(worker.clone())
    }

    /// Sets the pools that a worker reads. `ranks` are its ranks.
    pub(crate) fn set_reads(
        &mut self,
        worker: &WorkerId,
        pools: &[WorkerId],
        ranks: &[(DpRank, HolderIndex)],
    ) {
        ranks.iter().for_each(|&(_, holder)| self.remove_rank(worker, holder));
        if pools.is_empty() {
            self.reads.remove(worker);
        } else {
            self.reads.insert(worker.clone(), pools.into());
        }
        ranks.iter().for_each(|&(_, holder)| self.add_rank(worker, holder));
    }

    /// Sets the chunk sizes of a worker.
    pub(crate) fn set_chunks(
        &mut self,
        worker: &WorkerId,
        sizes: ChunkSizes,
        ranks: &[(DpRank, HolderIndex)],
    ) {
        self.chunks.remove(worker);
        if sizes != NO_CHUNKS {
            self.chunks.insert(worker.clone(), sizes);
        }
        if self.chunks.is_empty() {
            self.rank_chunks = Vec::new();
        }
        ranks.iter().for_each(|&(_, holder)| self.set_rank_chunks(holder, sizes));
    }

    fn set_rank_chunks(&mut self, holder: HolderIndex, sizes: ChunkSizes) {
        let at = holder as usize;
        if sizes != NO_CHUNKS && self.rank_chunks.len() <= at {
            self.rank_chunks.resize(at + 1, NO_CHUNKS);
        }
        self.rank_chunks.get_mut(at).into_iter().for_each(|present| *present = sizes);
    }

    /// Whether any rank has chunks.
    pub(crate) fn has_chunks(&self) -> bool {
        !self.rank_chunks.is_empty()
    }

    /// Chunk sizes of a rank; `None` without chunks.
    pub(crate) fn chunks_of(&self, holder: HolderIndex) -> Option<&ChunkSizes> {
        self.rank_chunks.get(holder as usize).filter(|sizes| **sizes != NO_CHUNKS)
    }

    /// Sets the facts about a worker's engine.
    pub(crate) fn set_facts(
        &mut self,
        worker: &WorkerId,
        facts: EngineFacts,
        ranks: &[(DpRank, HolderIndex)],
    ) {
        self.facts.remove(worker);
        if facts != EngineFacts::default() {
            self.facts.insert(worker.clone(), facts);
        }
        ranks.iter().for_each(|&(_, holder)| self.set_rank_facts(holder, facts));
    }

    fn set_rank_facts(&mut self, holder: HolderIndex, facts: EngineFacts) {
        if facts == EngineFacts::default() {
            self.rank_facts.remove(&holder);
        } else {
            self.rank_facts.insert(holder, facts);
        }
    }

    /// Whether any rank has facts about its engine.
    pub(crate) fn has_facts(&self) -> bool {
        !self.rank_facts.is_empty()
    }

    /// Facts about the engine of a rank.
    pub(crate) fn facts_of(&self, holder: HolderIndex) -> EngineFacts {
        self.rank_facts.get(&holder).copied().unwrap_or_default()
    }

    /// Removes the roles of a worker and of its ranks. Returns whether the worker was a pool.
    pub(crate) fn forget(&mut self, worker: &WorkerId, ranks: &[(DpRank, HolderIndex)]) -> bool {
        self.set_reads(worker, &[], ranks);
        self.set_chunks(worker, NO_CHUNKS, ranks);
        self.set_facts(worker, EngineFacts::default(), ranks);
        self.pools.remove(worker)
    }

    /// Adds a rank of a worker.
    pub(crate) fn add_rank(&mut self, worker: &WorkerId, holder: HolderIndex) {
        for pool in self.reads.get(worker).into_iter().flatten() {
            self.readers.entry(pool.clone()).or_default().insert(holder);
        }
        if let Some(&sizes) = self.chunks.get(worker) {
            self.set_rank_chunks(holder, sizes);
        }
        if let Some(&facts) = self.facts.get(worker) {
            self.set_rank_facts(holder, facts);
        }
    }

    /// Removes a rank of a worker. Another rank may reuse its index.
    pub(crate) fn remove_rank(&mut self, worker: &WorkerId, holder: HolderIndex) {
        for pool in self.reads.get(worker).into_iter().flatten() {
            let Some(readers) = self.readers.get_mut(pool) else { continue };
            readers.remove(holder);
            if readers.words.is_empty() {
                self.readers.remove(pool);
            }
        }
        self.set_rank_chunks(holder, NO_CHUNKS);
        self.set_rank_facts(holder, EngineFacts::default());
    }
}
