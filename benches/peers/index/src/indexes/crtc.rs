//! Adapter for `dynamo-kv-router`: `ConcurrentRadixTreeCompressed`, "CRTC".

use super::dynamo::{self, Asked, Events, Lane};
use super::{Index, Shared};
use crate::workload::{Content, Operation, Script};
use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use std::sync::Arc;

pub(crate) struct Crtc {
    lane: Lane,
    index: Arc<Asked<ConcurrentRadixTreeCompressed>>,
}

impl Index for Crtc {
    const NAME: &'static str = "crtc";
    const EXACT: bool = false;
    type Asked = Asked<ConcurrentRadixTreeCompressed>;
    type Batch = Events;

    fn new(_workers: usize) -> Self {
        let index = Arc::new(Asked(ConcurrentRadixTreeCompressed::new()));
        Self { lane: Lane::start(&index), index }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        dynamo::prepare(content, script, part, batch);
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

    fn asked(&self) -> &Self::Asked {
        &self.index
    }
}

impl Shared for Crtc {
    fn shared(&self) -> Arc<Self::Asked> {
        Arc::clone(&self.index)
    }
}
