//! Adapter for Kvasir's index in shards, like the server's with `--index-shards`. A worker's bucket selects the shard
//! with all its blocks, and a lookup queries each shard.

use super::kvasir::{self, Events};
use super::{Ask, Index, Kvasir};
use crate::workload::{Content, Operation, Script};
use kvasir_index::{Limits, Scratch, SourceId};
use kvasir_proto::hash::bucket;
use kvasir_proto::types::LocalHash;

/// Shards without a lock; two or more.
pub(crate) struct Sharded<const SHARDS: usize> {
    shards: Shards,
    /// For each worker: its shard, and its source there.
    sources: Vec<(usize, SourceId)>,
}

/// The query interface.
pub(crate) struct Shards(Vec<kvasir_index::Index>);

impl<const SHARDS: usize> Index for Sharded<SHARDS> {
    const NAME: &'static str = match SHARDS {
        2 => "kvasir-2",
        4 => "kvasir-4",
        _ => panic!("a number of shards that has a name"),
    };
    const EXACT: bool = true;
    type Asked = Shards;
    type Batch = Events;

    fn new(workers: usize) -> Self {
        let mut shards: Vec<_> =
            (0..SHARDS).map(|_| kvasir_index::Index::new(Limits::default())).collect();
        let add = |worker: usize| {
            let worker = kvasir::worker_id(worker);
            let at = usize::from(bucket(&worker)) % SHARDS;
            (at, kvasir::add_source(&mut shards[at], &worker))
        };
        let sources = (0..workers).map(add).collect();
        Self { shards: Shards(shards), sources }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        kvasir::prepare(content, script, part, batch);
    }

    fn apply(&mut self, batch: &mut Events) {
        for (worker, event) in batch {
            let (at, source) = self.sources[*worker as usize];
            self.shards.0[at].apply(source, kvasir::RANK, event).expect("a known source");
        }
    }

    fn pairs(&mut self) -> usize {
        self.shards.0.iter().map(|shard| shard.stats().pairs as usize).sum()
    }

    fn accounted_bytes(&self) -> Option<u64> {
        Some(self.shards.0.iter().map(|shard| shard.stats().bytes).sum())
    }

    fn asked(&self) -> &Shards {
        &self.shards
    }
}

impl Ask for Shards {
    const CALLS: &'static [&'static str] = <<Kvasir as Index>::Asked as Ask>::CALLS;
    type Hash = LocalHash;
    type Answer = Vec<Scratch>;

    fn hash(local: u64) -> LocalHash {
        LocalHash(local)
    }

    fn ask(&self, call: usize, query: &[LocalHash], answer: &mut Vec<Scratch>) {
        answer.resize_with(self.0.len(), Scratch::default);
        self.0.iter().zip(answer).for_each(|(shard, found)| shard.ask(call, query, found));
    }

    fn scores(&self, call: usize, answer: &Vec<Scratch>) -> Vec<(u32, u32)> {
        self.0.iter().zip(answer).flat_map(|(shard, found)| shard.scores(call, found)).collect()
    }
}
