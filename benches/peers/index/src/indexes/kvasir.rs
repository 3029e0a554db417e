//! Adapter for Kvasir's index, without a lock.

use super::{Ask, Index};
use crate::workload::{Action, Content, Operation, Script};
use kvasir_index::{Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier, TierSet, WorkerId,
};

pub(crate) const RANK: u32 = 0;

pub(crate) struct Kvasir {
    index: kvasir_index::Index,
    sources: Vec<SourceId>,
}

/// An event and the worker that sent it.
pub(crate) type Events = Vec<(u32, KvEvent)>;

/// A worker by its number.
pub(crate) fn worker_id(worker: usize) -> WorkerId {
    WorkerId::new(&worker.to_string()).expect("a short name")
}

/// Adds a worker's only source, as for one engine.
pub(crate) fn add_source(index: &mut kvasir_index::Index, worker: &WorkerId) -> SourceId {
    index.add_source(worker, "engine", RANK, CopyMode::Counted).expect("a new source")
}

pub(crate) fn build(workers: usize) -> (kvasir_index::Index, Vec<SourceId>) {
    let mut index = kvasir_index::Index::new(Limits::default());
    let sources = (0..workers).map(|worker| add_source(&mut index, &worker_id(worker))).collect();
    (index, sources)
}

pub(crate) fn apply(index: &mut kvasir_index::Index, sources: &[SourceId], events: &Events) {
    for (worker, event) in events {
        let counts = index.apply(sources[*worker as usize], RANK, event).expect("a known source");
        debug_assert_eq!(counts.applied, event.operations() as u64);
    }
}

pub(crate) fn prepare(content: &Content, script: &Script, part: &[Operation], into: &mut Events) {
    into.clear();
    let name = |block: u32| BlockName(content.name(block));
    into.extend(part.iter().map(|operation| {
        let event = match operation.action {
            Action::Store { parent, blocks } => KvEvent::Stored {
                parent: parent.map(name),
                tier: Tier::Device,
                blocks: content
                    .blocks(blocks)
                    .map(|(name, local)| StoredBlock {
                        name: BlockName(name),
                        local: LocalHash(local),
                    })
                    .collect(),
            },
            Action::Remove { listed } => KvEvent::Removed {
                tier: Tier::Device,
                names: script.removed(listed).iter().copied().map(name).collect(),
            },
        };
        (operation.worker, event)
    }));
}

impl Index for Kvasir {
    const NAME: &'static str = "kvasir";
    const EXACT: bool = true;
    type Asked = kvasir_index::Index;
    type Batch = Events;

    fn new(workers: usize) -> Self {
        let (index, sources) = build(workers);
        Self { index, sources }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        prepare(content, script, part, batch);
    }

    fn apply(&mut self, batch: &mut Events) {
        apply(&mut self.index, &self.sources, batch);
    }

    fn pairs(&mut self) -> usize {
        self.index.stats().pairs as usize
    }

    fn accounted_bytes(&self) -> Option<u64> {
        Some(self.index.stats().bytes)
    }

    fn asked(&self) -> &kvasir_index::Index {
        &self.index
    }
}

impl Ask for kvasir_index::Index {
    const CALLS: &'static [&'static str] = &["find"];
    type Hash = LocalHash;
    type Answer = Scratch;

    fn hash(local: u64) -> LocalHash {
        LocalHash(local)
    }

    fn ask(&self, _call: usize, query: &[LocalHash], answer: &mut Scratch) {
        let key = QueryKey::Locals(query);
        let query =
            Query { key, tiers: TierSet::ALL, workers: None, minimum_overlap: 1, shared: None, prompt: None };
        self.find(query, answer);
    }

    fn scores(&self, _call: usize, answer: &Scratch) -> Vec<(u32, u32)> {
        let worker = |holder| {
            let view = self.holder(holder).expect("a holder that was just found");
            view.worker().as_str().parse().expect("a number")
        };
        answer.matches().iter().map(|at| (worker(at.holder), at.blocks)).collect()
    }
}
