//! Adapter for `dynamo-kv-router`: `PositionalIndexer`, with jumps of 32 blocks as in its documents.

use super::dynamo::{self, Asked, Events};
use super::{Index, Shared};
use crate::workload::{Content, Operation, Script};
use dynamo_kv_router::PositionalIndexer;
use dynamo_kv_router::indexer::positional::LevelIndex;
use dynamo_kv_router::protocols::WorkerWithDpRank;
use rustc_hash::FxHashMap;
use std::sync::Arc;

const JUMP_BLOCKS: usize = 32;

pub(crate) struct Positional {
    index: Arc<Asked<PositionalIndexer>>,
    workers: FxHashMap<WorkerWithDpRank, LevelIndex>,
}

impl Index for Positional {
    const NAME: &'static str = "positional";
    const EXACT: bool = false;
    type Asked = Asked<PositionalIndexer>;
    type Batch = Events;

    fn new(_workers: usize) -> Self {
        let index = Arc::new(Asked(PositionalIndexer::new(JUMP_BLOCKS)));
        Self { index, workers: FxHashMap::default() }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        dynamo::prepare(content, script, part, batch);
    }

    fn apply(&mut self, batch: &mut Events) {
        for event in batch.drain(..) {
            self.index.0.apply_event(&mut self.workers, event, None).expect("a known parent");
        }
    }

    fn pairs(&mut self) -> usize {
        self.workers.values().map(|blocks| blocks.len()).sum()
    }

    fn asked(&self) -> &Self::Asked {
        &self.index
    }
}

impl Shared for Positional {
    fn shared(&self) -> Arc<Self::Asked> {
        Arc::clone(&self.index)
    }
}
