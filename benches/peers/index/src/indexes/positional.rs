//! `dynamo-kv-router`: `PositionalIndexer`, jumping 32 blocks at a time as its documents do.

use super::lane::{self, Events};
use super::{Ask, Index, Shared};
use crate::workload::{Content, Operation, Script};
use dynamo_kv_router::indexer::positional::LevelIndex;
use dynamo_kv_router::protocols::{LocalBlockHash, OverlapScores, WorkerWithDpRank};
use dynamo_kv_router::{PositionalIndexer, SyncIndexer};
use rustc_hash::FxHashMap;
use std::sync::Arc;

const JUMP_BLOCKS: usize = 32;

pub(crate) struct Positional {
    index: Arc<PositionalIndexer>,
    workers: FxHashMap<WorkerWithDpRank, LevelIndex>,
}

impl Index for Positional {
    const NAME: &'static str = "positional";
    const EXACT: bool = false;
    type Asked = PositionalIndexer;
    type Batch = Events;

    fn new(_workers: usize) -> Self {
        Self { index: Arc::new(PositionalIndexer::new(JUMP_BLOCKS)), workers: FxHashMap::default() }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        lane::prepare(content, script, part, batch);
    }

    fn apply(&mut self, batch: &mut Events) {
        for event in batch.drain(..) {
            self.index.apply_event(&mut self.workers, event, None).expect("a known parent");
        }
    }

    fn pairs(&mut self) -> usize {
        self.workers.values().map(|blocks| blocks.len()).sum()
    }

    fn asked(&self) -> &PositionalIndexer {
        &self.index
    }
}

impl Shared for Positional {
    fn shared(&self) -> Arc<PositionalIndexer> {
        Arc::clone(&self.index)
    }
}

impl Ask for PositionalIndexer {
    const CALLS: &'static [&'static str] = &["find_matches"];
    type Hash = LocalBlockHash;
    type Answer = OverlapScores;

    fn hash(local: u64) -> LocalBlockHash {
        LocalBlockHash(local)
    }

    fn ask(&self, _call: usize, query: &[LocalBlockHash], answer: &mut OverlapScores) {
        *answer = self.find_matches(query, false);
    }

    fn scores(&self, _call: usize, answer: &OverlapScores) -> Vec<(u32, u32)> {
        lane::scores(answer)
    }
}
