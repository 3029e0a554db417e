//! A server's partition in shards as the subject: routed by bucket, asked through the server's
//! `Finder`. Only its locks' writer threads are left out.

use crate::live;
use crate::shedding::Shedding;
use crate::subject::{DumpedRecord, DumpedTail, Piece, RankSizes, Refusal, Sizes, Subject};
use indexer_server::partitions::{IndexConfig, Origin, Partition, Partitions, Shard};
use indexer_server::query::{Finder, QueryMetrics};
use kvasir_index::{DumpScan, DumpTail, Index, Shed, SourceId};
use kvasir_proto::convert::{FindAnswer, FindQuery, QueryInput, WorkerMatch};
use kvasir_proto::hash::bucket;
use kvasir_proto::types::{BlockCounts, DpRank, HolderKind, KvEvent, PartitionKey, WorkerId};
use kvasir_tests::oracle::{Found, Oracle, OracleStats, Question, QuestionKey, Roles};
use kvasir_tests::script::{ScriptLimits, SourceSpec};
use prometheus_client::registry::Registry;
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Tokens per block: scripts give no tokens, so any will do.
const BLOCK_SIZE: u32 = 16;

pub struct Sharded {
    partitions: Arc<Partitions>,
    partition: Arc<Partition>,
    finder: Finder,
    roles: Roles,
}

/// A source: its shard, and its id there.
pub type ShardSource = (usize, SourceId);

impl Sharded {
    pub fn new(shards: usize, limits: ScriptLimits) -> Self {
        Self::limited(shards, None, limits)
    }

    /// With a limit of bytes, which nothing keeps by itself.
    pub fn limited(shards: usize, bytes_max: Option<usize>, limits: ScriptLimits) -> Self {
        let shards = NonZeroUsize::new(shards).expect("some shards");
        let config = IndexConfig { bytes_max, ..IndexConfig::new(shards) };
        let partitions = Arc::new(Partitions::new(config, live::limits(limits)));
        let key = PartitionKey::new("m", "").expect("a short name");
        let partition = partitions.get_or_create(&key, BLOCK_SIZE).expect("a first partition");
        let metrics = QueryMetrics::register(&mut Registry::default());
        let finder = Finder::new(Arc::clone(&partitions), Origin::now(), metrics);
        Self { partitions, partition, finder, roles: Roles::default() }
    }

    pub const fn partitions(&self) -> &Arc<Partitions> {
        &self.partitions
    }

    pub fn shards(&self) -> &[Arc<Shard>] {
        self.partition.shards()
    }

    fn shard(&self, number: usize) -> &Shard {
        &self.partition.shards()[number]
    }

    fn ask(&self, question: &Question, top_k: Option<usize>) -> Result<FindAnswer, String> {
        let input = match &question.key {
            QuestionKey::Locals(locals) => QueryInput::Locals(locals.clone()),
            QuestionKey::Names(names) => QueryInput::Names(names.clone()),
        };
        let query = FindQuery {
            partition: self.partition.key().clone(),
            block_size: None,
            input,
            tiers: question.tiers,
            workers: question.workers.clone(),
            minimum_overlap_blocks: question.minimum_overlap,
            top_k,
            shared: question.shared,
            next_tokens: None,
            explain: false,
            prompt_tokens: None,
        };
        let found = self.finder.find(&query, || true).map_err(|error| error.to_string())?;
        found.ok_or_else(|| "nobody gave it up".to_owned())
    }
}

fn found(at: WorkerMatch) -> Found {
    let WorkerMatch { worker, rank, blocks, by_tier, by_best_tier, pool_blocks, .. } = at;
    Found { worker, rank, blocks, by_tier, by_best_tier, pool_blocks }
}

impl Shedding for Sharded {
    fn each_index(&self, mut see: impl FnMut(&Index)) {
        self.shards().iter().for_each(|shard| see(&shard.read()));
    }

    fn shed_some(&mut self, budget: usize) -> Shed {
        let shard = self.shards().iter().find(|shard| shard.is_sheddable());
        shard.map(|shard| shard.write(|index| index.shed(budget))).unwrap_or_default()
    }
}

/// A dump under way: its shard, and the scan there.
pub struct ShardScan {
    shard: usize,
    scan: DumpScan,
}

impl Subject for Sharded {
    type Source = ShardSource;
    type Scan = ShardScan;

    fn set_roles(&mut self, roles: &Roles) {
        let before = std::mem::replace(&mut self.roles, roles.clone());
        before.pools.iter().for_each(|_| self.partition.note_removed(HolderKind::Pool));
        roles.pools.iter().for_each(|_| self.partition.note_registered(HolderKind::Pool));
        for shard in self.partition.shards() {
            let is_here = |worker: &WorkerId| Arc::ptr_eq(self.partition.shard_of(worker), shard);
            shard.write(|index| live::set_roles(index, &before, roles, is_here));
        }
    }

    fn add_source(&mut self, spec: &SourceSpec) -> Result<ShardSource, String> {
        let SourceSpec { worker, name, rank, copy_mode } = spec;
        let shard = self.partition.shard_of(worker);
        let added = shard.write(|index| index.add_source(worker, name, *rank, *copy_mode));
        added.map(|id| (shard.number(), id)).map_err(live::text)
    }

    fn remove_source(&mut self, (shard, source): ShardSource) -> Result<(), String> {
        self.shard(shard).write(|index| index.remove_source(source)).map_err(live::text)
    }

    fn apply(
        &mut self,
        (shard, source): ShardSource,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, String> {
        self.shard(shard).write(|index| index.apply(source, rank, event)).map_err(live::text)
    }

    fn clear(
        &mut self,
        (shard, source): ShardSource,
        rank: Option<DpRank>,
        budget: usize,
    ) -> Result<Piece, String> {
        let cleared = self.shard(shard).write(|index| index.clear_source(source, rank, budget));
        cleared.map(live::piece).map_err(live::text)
    }

    fn mark_suspect(&mut self, (shard, source): ShardSource) {
        self.shard(shard).write(|index| index.mark_suspect(source));
    }

    fn drop_suspects(
        &mut self,
        (shard, source): ShardSource,
        budget: usize,
    ) -> Result<Piece, String> {
        let dropped = self.shard(shard).write(|index| index.drop_suspects(source, budget));
        dropped.map(live::piece).map_err(live::text)
    }

    /// Also asks for the best few: they are the first few, and the best overlap is the same.
    fn find(&mut self, question: &Question) -> Result<Vec<Found>, String> {
        let all = self.ask(question, None)?;
        let top_k = all.matches.len().div_ceil(2).max(1);
        let few = self.ask(question, Some(top_k))?;
        let first = all.matches.get(..top_k.min(all.matches.len()));
        if first != Some(&*few.matches) || few.best_overlap_blocks != all.best_overlap_blocks {
            return Err(format!("the best {top_k}: {few:?}\n  of {all:?}"));
        }
        if all.matches.first().is_some_and(|best| best.blocks != all.best_overlap_blocks) {
            return Err(format!("not the best overlap: {all:?}"));
        }
        Ok(all.matches.into_iter().map(found).collect())
    }

    fn begin_dump(
        &mut self,
        worker: &WorkerId,
        rank: Option<DpRank>,
    ) -> Result<ShardScan, Refusal> {
        let shard = self.partition.shard_of(worker);
        let scan = shard.write(|index| index.begin_dump(worker, rank)).map_err(live::refusal)?;
        Ok(ShardScan { shard: shard.number(), scan })
    }

    fn read_dump(
        &mut self,
        ShardScan { shard, scan }: &mut ShardScan,
        records_max: usize,
        out: &mut Vec<DumpedRecord<ShardSource>>,
    ) -> Result<bool, Refusal> {
        let mut chunk = Vec::new();
        let more = self.shard(*shard).read().dump_chunk(scan, records_max, &mut chunk);
        out.extend(chunk.into_iter().map(|record| record_in(*shard, live::record(record))));
        more.map_err(live::refusal)
    }

    fn finish_dump(
        &mut self,
        ShardScan { shard, scan }: ShardScan,
    ) -> Result<DumpedTail<ShardSource>, Refusal> {
        let tail = self.shard(shard).write(|index| index.finish_dump(scan));
        let DumpTail { records, ends } = tail.map_err(live::refusal)?;
        let records = records.into_iter().map(|record| record_in(shard, live::record(record)));
        let ends = ends.into_iter().map(|end| ((shard, end.source), end.name.to_string()));
        Ok(DumpedTail { records: records.collect(), ends: ends.collect() })
    }

    fn cancel_dump(&mut self, ShardScan { shard, scan }: ShardScan) {
        self.shard(shard).write(|index| index.cancel_dump(scan));
    }

    fn sizes(&self) -> Sizes {
        live::sizes(self.partition.stats())
    }

    /// A block of several shards counts in each.
    fn expected_stats(&self, oracle: &Oracle) -> OracleStats {
        let shards = self.partition.shards().len();
        let here = |worker: &WorkerId, number| usize::from(bucket(worker)) % shards == number;
        let blocks = (0..shards).map(|at| oracle.stats_of(|worker| here(worker, at)).blocks).sum();
        OracleStats { blocks, ..oracle.stats() }
    }

    fn ranks(&self) -> RankSizes {
        let shards = self.partition.shards().iter();
        shards.flat_map(|shard| live::ranks(&shard.read())).collect()
    }

    fn validate(&self) -> Result<(), String> {
        for shard in self.partition.shards() {
            let index = shard.read();
            index.validate()?;
            let astray =
                index.workers().find(|at| !Arc::ptr_eq(self.partition.shard_of(at.id()), shard));
            if let Some(worker) = astray {
                return Err(format!("worker {} is in {shard:?}", worker.id()));
            }
        }
        Ok(())
    }
}

fn record_in(
    shard: usize,
    ((rank, source, name), held): DumpedRecord<SourceId>,
) -> DumpedRecord<ShardSource> {
    ((rank, (shard, source), name), held)
}
