//! The reference index: defines the correct answers of `kvasir-index`, written as plainly as possible.
//!
//! It consists of one ordered map of records per worker rank: no sharing between workers, no counters, no caches. Every
//! answer is computed from the records on request. A record contains its position as the complete path of local hashes
//! from the root. It is deliberately slow: a reader should be able to check each function against the promise that it
//! implements.

mod rules;

use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, DpRank, KvEvent, LocalHash, Tier, TierSet,
    WorkerId,
};
use rules::{
    Announcer, Leading, Names, drop_copies_of, held_along_path, held_by_name, keep_complete_chunks,
    leading, parked, remove_name, store_name, stored,
};
use std::collections::{BTreeMap, BTreeSet};

/// The path of a block: the local hashes from the root to the block itself.
pub type Path = Vec<LocalHash>;

/// Number of a source within one [`Oracle`]; never reused.
pub type SourceNo = u32;

/// Limits that change answers.
#[derive(Debug, Clone, Copy)]
pub struct OracleLimits {
    /// Maximum length of a path; stores beyond it are rejected.
    pub chain_blocks_max: usize,
    /// Maximum number of records without a position in one rank.
    pub rank_parked_max: usize,
}

/// The record of one worker rank for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the preceding block. None for a root, or if the engine announced no tokens.
    pub parent: Option<BlockName>,
    /// Hash of the block's tokens. Absent if the engine announced the block without tokens.
    pub local: Option<LocalHash>,
    /// Position of the block; none while the chain to the root is unknown. It never changes once known.
    pub position: Option<Path>,
    /// Copies by source and tier, each at least 1.
    pub copies: BTreeMap<(SourceNo, Tier), u32>,
    /// Keys of `copies` that are dropped unless announced again (stale).
    pub suspect: BTreeSet<(SourceNo, Tier)>,
}

/// A query for overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The blocks of the prompt.
    pub key: QuestionKey,
    /// Tiers that count.
    pub tiers: TierSet,
    /// Workers that count; none means all.
    pub workers: Option<Vec<WorkerId>>,
    /// Minimum number of blocks; ranks with fewer are left out.
    pub minimum_overlap: u32,
    /// Whether blocks in a worker's pools count.
    pub shared: bool,
}

/// The pools, the pools that each worker reads, and the chunks of connectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roles {
    /// Ids of pools, which are no candidates.
    pub pools: BTreeSet<WorkerId>,
    /// Ids that each worker reads, sorted. An id need not be a pool, or known.
    pub reads: BTreeMap<WorkerId, Vec<WorkerId>>,
    /// Blocks per chunk of a worker's connector, by tier; below 2, each block counts separately.
    pub chunks: BTreeMap<WorkerId, [u32; Tier::COUNT]>,
}

/// The blocks of a query, in one of two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionKey {
    /// Local hashes.
    Locals(Vec<LocalHash>),
    /// Names of the engine.
    Names(Vec<BlockName>),
}

impl QuestionKey {
    /// Number of blocks.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Locals(locals) => locals.len(),
            Self::Names(names) => names.len(),
        }
    }

    /// Whether the query has no blocks.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For each block, the tiers of these records that have it.
    fn held(&self, names: &Names) -> Vec<TierSet> {
        match self {
            Self::Locals(query) => held_along_path(names, query),
            Self::Names(query) => held_by_name(names, query),
        }
    }
}

/// Overlap of one worker rank with a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The worker.
    pub worker: WorkerId,
    /// The worker's rank.
    pub rank: DpRank,
    /// Number of leading blocks in at least one requested tier.
    pub blocks: u32,
    /// Number of these blocks in each requested tier.
    pub by_tier: [u32; Tier::COUNT],
    /// Number of these blocks whose best requested tier is this one.
    pub by_best_tier: [u32; Tier::COUNT],
    /// Number of these blocks that only pools have.
    pub pool_blocks: u32,
}

/// Key of one record of a dump.
pub type HeldKey = (DpRank, SourceNo, BlockName);

/// The blocks of one source of a worker under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Name of the preceding block.
    pub parent: Option<BlockName>,
    /// Hash of the block's tokens.
    pub local: Option<LocalHash>,
    /// Whether the chain to the root is known.
    pub placed: bool,
    /// Copies in each tier.
    pub copies: [u32; Tier::COUNT],
}

/// Sizes of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OracleStats {
    /// Number of distinct positions that are held or lead to a held one.
    pub blocks: u64,
    /// Number of pairs of a rank and a position that it has.
    pub pairs: u64,
    /// Number of records without a position.
    pub parked: u64,
    /// Number of workers.
    pub workers: u64,
    /// Number of ranks of all workers.
    pub ranks: u64,
    /// Number of sources of all workers.
    pub sources: u64,
}

#[derive(Debug, Clone)]
struct Source {
    mode: CopyMode,
    /// Ranks with which the source was added, or for which it has announced events.
    feeds: BTreeSet<DpRank>,
}

#[derive(Debug, Clone, Default)]
struct Worker {
    sources: BTreeMap<SourceNo, Source>,
    ranks: BTreeMap<DpRank, Names>,
}

/// The reference index of one partition.
#[derive(Debug, Clone)]
pub struct Oracle {
    limits: OracleLimits,
    workers: BTreeMap<WorkerId, Worker>,
    sources_added: SourceNo,
    roles: Roles,
}

impl Oracle {
    /// An empty index.
    #[must_use]
    pub fn new(limits: OracleLimits) -> Self {
        Self { limits, workers: BTreeMap::new(), sources_added: 0, roles: Roles::default() }
    }

    /// Sets which workers are pools, and which pools the others read.
    pub fn set_roles(&mut self, roles: Roles) {
        self.roles = roles;
    }

    /// Adds a source. Creates its worker and rank if they are new.
    pub fn add_source(&mut self, worker: &WorkerId, rank: DpRank, mode: CopyMode) -> SourceNo {
        let source = self.sources_added;
        self.sources_added += 1;
        let worker = self.workers.entry(worker.clone()).or_default();
        worker.sources.insert(source, Source { mode, feeds: BTreeSet::from([rank]) });
        worker.ranks.entry(rank).or_default();
        source
    }

    /// Removes a source without blocks, and the worker with its last source.
    pub fn remove_source(&mut self, source: SourceNo) {
        assert!(!self.holds_anything(source), "source {source} must be cleared first");
        let id = self.worker_of(source).clone();
        let worker = self.worker_mut(source);
        worker.sources.remove(&source);
        if worker.sources.is_empty() {
            self.workers.remove(&id);
        }
    }

    /// Whether any record has a copy of the source.
    #[must_use]
    pub fn holds_anything(&self, source: SourceNo) -> bool {
        let worker = &self.workers[self.worker_of(source)];
        let mut records = worker.ranks.values().flat_map(Names::values);
        records.any(|record| record.copies.keys().any(|&(holder, _)| holder == source))
    }

    /// Applies one event. The first event of a rank that is not a clear creates the rank.
    pub fn apply(&mut self, source: SourceNo, rank: DpRank, event: &KvEvent) -> BlockCounts {
        let mut counts = BlockCounts::default();
        if *event == KvEvent::Cleared {
            let dropped = self.clear_source(source, Some(rank));
            counts.add(if dropped { BlockOutcome::Applied } else { BlockOutcome::Noop });
            return counts;
        }
        if let KvEvent::ClearedTier(tier) = event {
            let dropped = self.drop_copies(source, Some(rank), |at, _| at == *tier);
            counts.add(if dropped { BlockOutcome::Applied } else { BlockOutcome::Noop });
            return counts;
        }
        let limits = self.limits;
        let worker = self.worker_mut(source);
        let names = worker.ranks.entry(rank).or_default();
        let known = worker.sources.get_mut(&source).expect("the source was added");
        known.feeds.insert(rank);
        let mode = known.mode;
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let by = Announcer { source, tier: *tier, mode };
                stored(names, limits, by, *parent, blocks, &mut counts);
            }
            KvEvent::StoredNames { tier, names: announced } => {
                let by = Announcer { source, tier: *tier, mode };
                for &name in announced {
                    counts.add(store_name(names, limits, by, name));
                }
            }
            KvEvent::Removed { tier, names: removed } => {
                let by = Announcer { source, tier: *tier, mode };
                for &name in removed {
                    counts.add(remove_name(names, by, name));
                }
            }
            KvEvent::Gone { tier, names: gone } => {
                // Independent of the counted copies: in set mode, a removal takes them all.
                let by = Announcer { source, tier: *tier, mode: CopyMode::Set };
                for &name in gone {
                    counts.add(remove_name(names, by, name));
                }
            }
            KvEvent::Cleared | KvEvent::ClearedTier(_) => {}
        }
        counts
    }

    /// Drops every copy of the source, in one rank or in all. Returns whether there were any.
    pub fn clear_source(&mut self, source: SourceNo, rank: Option<DpRank>) -> bool {
        self.drop_copies(source, rank, |_, _| true)
    }

    /// Marks all copies of the source as suspect: they are dropped later unless announced again.
    pub fn mark_suspect(&mut self, source: SourceNo) {
        for record in self.worker_mut(source).ranks.values_mut().flat_map(Names::values_mut) {
            let keys = record.copies.keys().filter(|&&(holder, _)| holder == source);
            record.suspect.extend(keys.copied());
        }
    }

    /// Drops the suspect copies of the source. Returns whether there were any.
    pub fn drop_suspects(&mut self, source: SourceNo) -> bool {
        self.drop_copies(source, None, |_, marked| marked)
    }

    /// Drops the copies of the source for which `goes` returns true. It receives the tier and whether the copy is
    /// suspect.
    fn drop_copies(
        &mut self,
        source: SourceNo,
        rank: Option<DpRank>,
        goes: impl Fn(Tier, bool) -> bool,
    ) -> bool {
        let mut dropped = false;
        for (&number, names) in &mut self.worker_mut(source).ranks {
            if rank.is_some_and(|only| only != number) {
                continue;
            }
            for record in names.values_mut() {
                dropped |= drop_copies_of(record, source, &goes);
            }
            names.retain(|_, record| !record.copies.is_empty());
        }
        dropped
    }

    /// Answers a query. Sorted best first, then by worker and rank.
    #[must_use]
    pub fn find(&self, question: &Question) -> Vec<Found> {
        let mut answer = Vec::new();
        for (id, worker) in &self.workers {
            if question.workers.as_ref().is_some_and(|only| !only.contains(id)) {
                continue;
            }
            if self.roles.pools.contains(id) {
                continue;
            }
            let in_pools = self.held_in_pools(id, question);
            for (&rank, names) in &worker.ranks {
                let mut held = question.key.held(names);
                if let Some(sizes) = self.roles.chunks.get(id) {
                    keep_complete_chunks(&mut held, *sizes);
                }
                let leading = leading(&held, &in_pools, question.tiers);
                let Leading { blocks, by_tier, by_best_tier, pool_blocks } = leading;
                if blocks >= question.minimum_overlap {
                    let worker = id.clone();
                    answer.push(Found { worker, rank, blocks, by_tier, by_best_tier, pool_blocks });
                }
            }
        }
        answer.sort_by(|a, b| {
            b.blocks.cmp(&a.blocks).then(a.worker.cmp(&b.worker)).then(a.rank.cmp(&b.rank))
        });
        answer
    }

    /// For each block of a question, whether one of the worker's pools has it. Always false if the question excludes
    /// pools.
    fn held_in_pools(&self, worker: &WorkerId, question: &Question) -> Vec<bool> {
        let mut held = vec![false; question.key.len()];
        let reads = self.roles.reads.get(worker).into_iter().flatten();
        for pool in reads.filter(|id| question.shared && self.roles.pools.contains(*id)) {
            let ranks = self.workers.get(pool).into_iter().flat_map(|pool| pool.ranks.values());
            for names in ranks {
                for (held, tiers) in held.iter_mut().zip(question.key.held(names)) {
                    *held |= !tiers.is_empty();
                }
            }
        }
        held
    }

    /// All blocks of a worker, in one rank or in all.
    #[must_use]
    pub fn dump(&self, worker: &WorkerId, rank: Option<DpRank>) -> BTreeMap<HeldKey, Held> {
        let mut dump = BTreeMap::new();
        for (number, name, record) in self.records(worker) {
            if rank.is_some_and(|only| only != number) {
                continue;
            }
            for (&(source, tier), &copies) in &record.copies {
                let held = dump.entry((number, source, name)).or_insert_with(|| Held {
                    parent: record.parent,
                    local: record.local,
                    placed: record.position.is_some(),
                    copies: [0; Tier::COUNT],
                });
                held.copies[tier.index()] = copies;
            }
        }
        dump
    }

    /// Sources of a worker that feed a rank, or all its sources.
    pub fn feeding(
        &self,
        worker: &WorkerId,
        rank: Option<DpRank>,
    ) -> impl Iterator<Item = SourceNo> + use<'_> {
        let sources = self.workers.get(worker).into_iter().flat_map(|worker| &worker.sources);
        let feeds = move |source: &Source| rank.is_none_or(|rank| source.feeds.contains(&rank));
        sources.filter(move |(_, source)| feeds(source)).map(|(&source, _)| source)
    }

    /// Sizes of the index.
    #[must_use]
    pub fn stats(&self) -> OracleStats {
        self.stats_of(|_| true)
    }

    /// Sizes of an index with only some of the workers.
    #[must_use]
    pub fn stats_of(&self, has: impl Fn(&WorkerId) -> bool) -> OracleStats {
        let mut needed: BTreeSet<&[LocalHash]> = BTreeSet::new();
        let mut stats = OracleStats::default();
        for (_, worker) in self.workers.iter().filter(|(id, _)| has(id)) {
            stats.workers += 1;
            stats.sources += worker.sources.len() as u64;
            stats.ranks += worker.ranks.len() as u64;
            for names in worker.ranks.values() {
                let held: BTreeSet<&Path> = names.values().flat_map(|r| &r.position).collect();
                stats.pairs += held.len() as u64;
                stats.parked += parked(names) as u64;
                for path in held {
                    // From the block up to the root. If a path was seen already, so were all paths above it.
                    let upwards = (1..=path.len()).rev();
                    upwards.take_while(|&end| needed.insert(&path[..end])).for_each(drop);
                }
            }
        }
        stats.blocks = needed.len() as u64;
        stats
    }

    /// Ids of all workers, in order.
    pub fn workers(&self) -> impl Iterator<Item = &WorkerId> {
        self.workers.keys()
    }

    /// Number of ranks of a worker.
    #[must_use]
    pub fn rank_count(&self, worker: &WorkerId) -> usize {
        self.workers.get(worker).map_or(0, |worker| worker.ranks.len())
    }

    /// Ranks of a worker with their numbers of held positions and of records without a position.
    #[must_use]
    pub fn ranks(&self, worker: &WorkerId) -> BTreeMap<DpRank, (u64, u64)> {
        let Some(worker) = self.workers.get(worker) else {
            return BTreeMap::new();
        };
        let sizes = worker.ranks.iter().map(|(&rank, names)| {
            let held: BTreeSet<&Path> = names.values().flat_map(|r| &r.position).collect();
            (rank, (held.len() as u64, parked(names) as u64))
        });
        sizes.collect()
    }

    /// All records of a worker.
    pub fn records(
        &self,
        worker: &WorkerId,
    ) -> impl Iterator<Item = (DpRank, BlockName, &Record)> + use<'_> {
        let ranks = self.workers.get(worker).into_iter().flat_map(|worker| &worker.ranks);
        ranks.flat_map(|(&rank, names)| names.iter().map(move |(&name, r)| (rank, name, r)))
    }

    fn worker_of(&self, source: SourceNo) -> &WorkerId {
        let mut workers = self.workers.iter();
        let found = workers.find(|(_, worker)| worker.sources.contains_key(&source));
        found.expect("the source was added").0
    }

    fn worker_mut(&mut self, source: SourceNo) -> &mut Worker {
        let mut workers = self.workers.values_mut();
        workers.find(|worker| worker.sources.contains_key(&source)).expect("the source was added")
    }
}
