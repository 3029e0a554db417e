//! The index itself as the subject.

use crate::shedding::Shedding;
use crate::subject::{DumpedRecord, DumpedTail, Piece, RankSizes, Refusal, Sizes, Subject};
use kvasir_index::{
    Cleared, DumpRecord, DumpScan, DumpTail, Index, IndexError, Limits, Query, QueryKey, Scratch,
    SharedBlocks, Shed, SourceId, Stats,
};
use kvasir_proto::types::{BlockCounts, DpRank, KvEvent, WorkerId};
use kvasir_tests::oracle::{Found, Held, OracleStats, Question, QuestionKey, Roles};
use kvasir_tests::script::{ScriptLimits, SourceSpec};
use std::collections::BTreeMap;

pub struct Live {
    index: Index,
    scratch: Scratch,
    shared: SharedBlocks,
    roles: Roles,
    /// Whether of every second source digests are kept, which take more than all the rest.
    keeps_digests: bool,
    added: u64,
}

impl Live {
    pub fn new(script: ScriptLimits) -> Self {
        Self { keeps_digests: true, ..Self::with(limits(script)) }
    }

    pub fn with(limits: Limits) -> Self {
        let index = Index::new(limits);
        let scratch = Scratch::default();
        let shared = SharedBlocks::default();
        let roles = Roles::default();
        Self { index, scratch, shared, roles, keeps_digests: false, added: 0 }
    }

    pub const fn index(&mut self) -> &mut Index {
        &mut self.index
    }
}

impl Shedding for Live {
    fn each_index(&self, mut see: impl FnMut(&Index)) {
        see(&self.index);
    }

    fn shed_some(&mut self, budget: usize) -> Shed {
        self.index.shed(budget)
    }
}

pub fn limits(script: ScriptLimits) -> Limits {
    let ScriptLimits { chain_blocks_max, rank_parked_max, dirty_names_max } = script;
    Limits { chain_blocks_max, rank_parked_max, dirty_names_max, ..Limits::default() }
}

pub fn text(error: IndexError) -> String {
    error.to_string()
}

pub fn refusal(error: IndexError) -> Refusal {
    match error {
        IndexError::DumpAborted { reason, .. } => Refusal::Aborted(reason.to_owned()),
        other => Refusal::Other(other.to_string()),
    }
}

pub fn record(record: DumpRecord) -> DumpedRecord<SourceId> {
    let DumpRecord { rank, source, name, parent, local, placed, copies } = record;
    ((rank, source, name), Held { parent, local, placed, copies })
}

pub fn piece(cleared: Cleared) -> Piece {
    Piece { removed: cleared.removed, done: cleared.done }
}

pub fn sizes(stats: Stats) -> Sizes {
    Sizes {
        stats: OracleStats {
            blocks: stats.blocks,
            pairs: stats.pairs,
            parked: stats.parked,
            workers: stats.workers,
            ranks: stats.ranks,
            sources: stats.sources,
        },
        leftovers: BTreeMap::from([
            ("segments", stats.segments),
            ("holder_sets", stats.holder_sets),
        ]),
        bytes: stats.bytes,
    }
}

pub fn ranks(index: &Index) -> RankSizes {
    let holders = index.workers().flat_map(|worker| worker.holders());
    let sizes = holders.map(|holder| {
        let key = (holder.worker().clone(), holder.rank());
        (key, (holder.placed_blocks(), holder.parked_blocks()))
    });
    sizes.collect()
}

/// Gives the workers of an index the roles for which `is_here` accepts them, in the place of what they were.
pub fn set_roles(
    index: &mut Index,
    before: &Roles,
    now: &Roles,
    is_here: impl Fn(&WorkerId) -> bool,
) {
    let had_roles = before.pools.iter().chain(before.reads.keys()).chain(before.chunks.keys());
    had_roles.filter(|worker| is_here(worker)).for_each(|worker| index.forget_roles(worker));
    now.pools.iter().filter(|worker| is_here(worker)).for_each(|pool| index.set_pool(pool));
    for (worker, pools) in now.reads.iter().filter(|(worker, _)| is_here(worker)) {
        index.set_reads(worker, pools);
    }
    for (worker, sizes) in now.chunks.iter().filter(|(worker, _)| is_here(worker)) {
        index.set_chunks(worker, *sizes);
    }
}

impl Subject for Live {
    type Source = SourceId;
    type Scan = DumpScan;

    fn set_roles(&mut self, roles: &Roles) {
        let before = std::mem::replace(&mut self.roles, roles.clone());
        set_roles(&mut self.index, &before, roles, |_| true);
    }

    fn add_source(&mut self, spec: &SourceSpec) -> Result<SourceId, String> {
        let SourceSpec { worker, name, rank, copy_mode } = spec;
        let added = self.index.add_source(worker, name, *rank, *copy_mode).map_err(text)?;
        self.added += 1;
        if self.keeps_digests && self.added.is_multiple_of(2) {
            self.index.keep_digests(added).map_err(text)?;
        }
        Ok(added)
    }

    fn remove_source(&mut self, source: SourceId) -> Result<(), String> {
        self.index.remove_source(source).map_err(text)
    }

    fn apply(
        &mut self,
        source: SourceId,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, String> {
        self.index.apply(source, rank, event).map_err(text)
    }

    fn clear(
        &mut self,
        source: SourceId,
        rank: Option<DpRank>,
        budget: usize,
    ) -> Result<Piece, String> {
        self.index.clear_source(source, rank, budget).map(piece).map_err(text)
    }

    fn mark_suspect(&mut self, source: SourceId) {
        self.index.mark_suspect(source);
    }

    fn drop_suspects(&mut self, source: SourceId, budget: usize) -> Result<Piece, String> {
        self.index.drop_suspects(source, budget).map(piece).map_err(text)
    }

    fn find(&mut self, question: &Question) -> Result<Vec<Found>, String> {
        let key = match &question.key {
            QuestionKey::Locals(locals) => QueryKey::Locals(locals),
            QuestionKey::Names(names) => QueryKey::Names(names),
        };
        self.shared.begin(question.key.len());
        if question.shared && !self.index.add_shared(key, &mut self.shared, || true) {
            return Err("nobody gave it up".to_owned());
        }
        let query = Query {
            key,
            tiers: question.tiers,
            workers: question.workers.as_deref(),
            minimum_overlap: question.minimum_overlap,
            shared: question.shared.then_some(&self.shared),
            prompt: None,
        };
        self.index.find(query, &mut self.scratch);
        let found = self.scratch.matches().iter().map(|at| {
            let holder = self.index.holder(at.holder).ok_or("match of an unknown holder")?;
            Ok(Found {
                worker: holder.worker().clone(),
                rank: holder.rank(),
                blocks: at.blocks,
                by_tier: at.by_tier,
                by_best_tier: at.by_best_tier,
                pool_blocks: at.pool_blocks,
            })
        });
        found.collect()
    }

    fn begin_dump(&mut self, worker: &WorkerId, rank: Option<DpRank>) -> Result<DumpScan, Refusal> {
        self.index.begin_dump(worker, rank).map_err(refusal)
    }

    fn read_dump(
        &mut self,
        scan: &mut DumpScan,
        records_max: usize,
        out: &mut Vec<DumpedRecord<SourceId>>,
    ) -> Result<bool, Refusal> {
        let mut chunk = Vec::new();
        let more = self.index.dump_chunk(scan, records_max, &mut chunk).map_err(refusal)?;
        out.extend(chunk.into_iter().map(record));
        Ok(more)
    }

    fn finish_dump(&mut self, scan: DumpScan) -> Result<DumpedTail<SourceId>, Refusal> {
        let DumpTail { records, ends } = self.index.finish_dump(scan).map_err(refusal)?;
        Ok(DumpedTail {
            records: records.into_iter().map(record).collect(),
            ends: ends.into_iter().map(|end| (end.source, end.name.to_string())).collect(),
        })
    }

    fn cancel_dump(&mut self, scan: DumpScan) {
        self.index.cancel_dump(scan);
    }

    fn sizes(&self) -> Sizes {
        sizes(self.index.stats())
    }

    fn ranks(&self) -> RankSizes {
        ranks(&self.index)
    }

    fn validate(&self) -> Result<(), String> {
        self.index.validate()
    }
}
