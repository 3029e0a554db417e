//! `dynamo-kv-router`: `ConcurrentRadixTreeCompressed`, "CRTC".

use super::lane::{self, Events, Lane};
use super::{Ask, Index, Shared};
use crate::workload::{Content, Operation, Script};
use dynamo_kv_router::protocols::{LocalBlockHash, OverlapScores};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, SyncIndexer};
use std::sync::Arc;

pub(crate) struct Crtc {
    lane: Lane,
    index: Arc<ConcurrentRadixTreeCompressed>,
}

impl Index for Crtc {
    const NAME: &'static str = "crtc";
    const EXACT: bool = false;
    type Asked = ConcurrentRadixTreeCompressed;
    type Batch = Events;

    fn new(_workers: usize) -> Self {
        let index = Arc::new(ConcurrentRadixTreeCompressed::new());
        Self { lane: Lane::start(&index), index }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        lane::prepare(content, script, part, batch);
    }

    fn apply(&mut self, batch: &mut Events) {
        self.lane.apply(batch);
    }

    fn pairs(&mut self) -> usize {
        self.lane.pairs()
    }

    fn tidy(&mut self) {
        self.lane.clean();
    }

    fn asked(&self) -> &ConcurrentRadixTreeCompressed {
        &self.index
    }
}

impl Shared for Crtc {
    fn shared(&self) -> Arc<ConcurrentRadixTreeCompressed> {
        Arc::clone(&self.index)
    }
}

impl Ask for ConcurrentRadixTreeCompressed {
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
