//! The reference index: what `kvasir-index` must answer, written as plainly as possible.
//!
//! One ordered map of records per worker rank and nothing else: no sharing between workers, no
//! counters, no caches. Every answer is computed from the records on request. A record contains its
//! position as the complete path of local hashes from the root. It is slow on purpose: a reader should
//! be able to check each function against the promise it implements.

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

/// Number of a source within one [`Oracle`]; never used twice.
pub type SourceNo = u32;

/// Limits that change answers.
#[derive(Debug, Clone, Copy)]
pub struct OracleLimits {
    /// Longest path; stores beyond it are rejected.
    pub chain_blocks_max: usize,
    /// Most records without a position in one rank.
    pub rank_parked_max: usize,
}

/// What one worker rank has recorded for one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Name of the block before it; none for a root, and if no tokens were announced.
    pub parent: Option<BlockName>,
    /// Hash of its tokens; none if no tokens were announced.
    pub local: Option<LocalHash>,
    /// Its position; none while the chain to the root is unknown. Fixed once known.
    pub position: Option<Path>,
    /// Copies by source and tier, each at least 1.
    pub copies: BTreeMap<(SourceNo, Tier), u32>,
    /// Keys of `copies` that must be announced again to stay.
    pub suspect: BTreeSet<(SourceNo, Tier)>,
}

/// A query for overlap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The prompt's blocks.
    pub key: QuestionKey,
    /// Tiers that count.
    pub tiers: TierSet,
    /// Workers that count; none means all.
    pub workers: Option<Vec<WorkerId>>,
    /// Ranks with fewer blocks are left out.
    pub minimum_overlap: u32,
    /// Whether what the pools hold counts that a worker reads.
    pub shared: bool,
}

/// Which workers are pools, which pools the others read, and the chunks of their connectors.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Roles {
    /// They are no candidates.
    pub pools: BTreeSet<WorkerId>,
    /// What each worker reads, sorted; not all of it need be a pool, or known.
    pub reads: BTreeMap<WorkerId, Vec<WorkerId>>,
    /// Blocks in a chunk of a worker's connector, by tier; below 2, each block counts.
    pub chunks: BTreeMap<WorkerId, [u32; Tier::COUNT]>,
}

/// The blocks of a query, in one of two forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuestionKey {
    /// By local hash.
    Locals(Vec<LocalHash>),
    /// By the engine's names.
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

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// For each block, the tiers in which these records hold it.
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
    /// Its rank.
    pub rank: DpRank,
    /// Leading blocks held in at least one requested tier.
    pub blocks: u32,
    /// How many of them are in each requested tier.
    pub by_tier: [u32; Tier::COUNT],
    /// How many of them have it as their best requested tier.
    pub by_best_tier: [u32; Tier::COUNT],
    /// How many of them only pools hold.
    pub pool_blocks: u32,
}

/// Key of one record of a dump.
pub type HeldKey = (DpRank, SourceNo, BlockName);

/// What one source of a worker holds under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Name of the block before it.
    pub parent: Option<BlockName>,
    /// Hash of its tokens.
    pub local: Option<LocalHash>,
    /// Whether its chain to the root is known.
    pub placed: bool,
    /// Copies in each tier.
    pub copies: [u32; Tier::COUNT],
}

/// Sizes of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OracleStats {
    /// Distinct positions that are held or that lead to a held one.
    pub blocks: u64,
    /// Pairs of a rank and a position it holds.
    pub pairs: u64,
    /// Records without a position.
    pub parked: u64,
    /// Workers.
    pub workers: u64,
    /// Ranks of all workers.
    pub ranks: u64,
    /// Sources of all workers.
    pub sources: u64,
}

#[derive(Debug, Clone)]
struct Source {
    mode: CopyMode,
    /// Ranks that it was added with or has announced events for.
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

    /// From now on these workers are pools, and the others read these.
    pub fn set_roles(&mut self, roles: Roles) {
        self.roles = roles;
    }

    /// Adds a source, and its worker and rank if they are new.
    pub fn add_source(&mut self, worker: &WorkerId, rank: DpRank, mode: CopyMode) -> SourceNo {
        let source = self.sources_added;
        self.sources_added += 1;
        let worker = self.workers.entry(worker.clone()).or_default();
        worker.sources.insert(source, Source { mode, feeds: BTreeSet::from([rank]) });
        worker.ranks.entry(rank).or_default();
        source
    }

    /// Removes a source that holds nothing, and its worker with the last source.
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
                // However many copies were counted: in set mode, a removal takes them all.
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

    /// Marks all copies of the source: they must be announced again to stay.
    pub fn mark_suspect(&mut self, source: SourceNo) {
        for record in self.worker_mut(source).ranks.values_mut().flat_map(Names::values_mut) {
            let keys = record.copies.keys().filter(|&&(holder, _)| holder == source);
            record.suspect.extend(keys.copied());
        }
    }

    /// Drops the marked copies of the source. Returns whether there were any.
    pub fn drop_suspects(&mut self, source: SourceNo) -> bool {
        self.drop_copies(source, None, |_, marked| marked)
    }

    /// Drops the copies of the source for which `goes`, called with its tier and whether it is marked, is true.
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

    /// Answers a query: best first, then by worker and rank.
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

    /// For each block of a question, whether a pool holds it that a worker reads; never, unless the question asks for that.
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

    /// Everything a worker holds, of one rank or of all.
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

    /// Sizes of an index that has only some of the workers.
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
                    // From the block up to the root; above a path already seen all are seen.
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

    /// Ranks of a worker with their numbers of (positions held, records without a position).
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
