//! Adapter for `kv-index`: `ChainIndex`, with the lane map that removals need for each worker.

use super::{Ask, Index, Shared};
use crate::workload::{Action, Content, Operation, Script};
use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use std::ops::Range;
use std::sync::Arc;

/// Position of each call in `CALLS`.
const FIND_MATCHES: usize = 0;

pub(crate) struct Chain {
    index: Arc<ChainIndex>,
    ids: Vec<u32>,
    maps: Vec<ChainBlockMap>,
}

enum Step {
    Store { parent: Option<SequenceHash>, blocks: Range<usize> },
    Remove { names: Range<usize> },
}

/// Events as slices of shared lists, because the index takes references.
#[derive(Default)]
pub(crate) struct Steps {
    steps: Vec<(u32, Step)>,
    blocks: Vec<StoredBlock>,
    names: Vec<SequenceHash>,
}

impl Index for Chain {
    const NAME: &'static str = "chain";
    const EXACT: bool = true;
    type Asked = ChainIndex;
    type Batch = Steps;

    fn new(workers: usize) -> Self {
        let index = ChainIndex::with_max_workers(workers);
        let id = |worker: usize| index.intern_worker(&worker.to_string()).expect("a free id");
        let ids: Vec<u32> = (0..workers).map(id).collect();
        assert!(ids.iter().zip(0..).all(|(&id, worker)| id == worker), "ids count from 0");
        let maps = (0..workers).map(|_| ChainBlockMap::new()).collect();
        Self { index: Arc::new(index), ids, maps }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Steps) {
        batch.steps.clear();
        batch.blocks.clear();
        batch.names.clear();
        let name = |block: u32| SequenceHash(content.name(block));
        for operation in part {
            let step = match operation.action {
                Action::Store { parent, blocks } => {
                    let start = batch.blocks.len();
                    batch.blocks.extend(content.blocks(blocks).map(|(name, local)| StoredBlock {
                        seq_hash: SequenceHash(name),
                        content_hash: ContentHash(local),
                    }));
                    Step::Store { parent: parent.map(name), blocks: start..batch.blocks.len() }
                }
                Action::Remove { listed } => {
                    let start = batch.names.len();
                    batch.names.extend(script.removed(listed).iter().copied().map(name));
                    Step::Remove { names: start..batch.names.len() }
                }
            };
            batch.steps.push((operation.worker, step));
        }
    }

    fn apply(&mut self, batch: &mut Steps) {
        for (worker, step) in &batch.steps {
            let id = self.ids[*worker as usize];
            let map = &mut self.maps[*worker as usize];
            match step {
                Step::Store { parent, blocks } => {
                    let blocks = &batch.blocks[blocks.clone()];
                    self.index.apply_stored(id, blocks, *parent, map).expect("a known parent");
                }
                Step::Remove { names } => {
                    self.index.apply_removed(id, &batch.names[names.clone()], map);
                }
            }
        }
    }

    fn pairs(&mut self) -> usize {
        self.index.current_size()
    }

    fn asked(&self) -> &ChainIndex {
        &self.index
    }
}

impl Shared for Chain {
    fn shared(&self) -> Arc<ChainIndex> {
        Arc::clone(&self.index)
    }
}

/// The map that `find_matches` returns, or the list that `score_into` fills.
#[derive(Default)]
pub(crate) struct Found {
    map: kv_index::OverlapScores,
    list: Vec<(u32, u32)>,
}

impl Ask for ChainIndex {
    const CALLS: &'static [&'static str] = &["find_matches", "score_into"];
    type Hash = ContentHash;
    type Answer = Found;

    fn hash(local: u64) -> ContentHash {
        ContentHash(local)
    }

    fn ask(&self, call: usize, query: &[ContentHash], answer: &mut Found) {
        if call == FIND_MATCHES {
            answer.map = self.find_matches(query, false);
        } else {
            let list = &mut answer.list;
            list.clear();
            self.score_into(query, |hash| hash.0, false, |id, blocks| list.push((id, blocks)));
        }
    }

    fn scores(&self, call: usize, answer: &Found) -> Vec<(u32, u32)> {
        match call {
            FIND_MATCHES => answer.map.scores.iter().map(|(&id, &blocks)| (id, blocks)).collect(),
            _ => answer.list.clone(),
        }
    }
}
