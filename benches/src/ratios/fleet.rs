//! An index to measure: 64 workers and 1,024 prompts of 512 blocks, each at two workers: 1 M pairs.

use crate::events::{blocks_of, stored};
use bench_figures::random::mixed;
use kvasir_index::{Index, Limits, SourceId};
use kvasir_proto::types::{CopyMode, KvEvent, LocalHash, WorkerId};

const WORKERS: usize = 64;
/// Number of prompts of the fleet.
pub const PROMPTS: u64 = 1_024;
/// Blocks per prompt.
pub const PROMPT_BLOCKS: usize = 512;
/// Blocks per event.
pub const EVENT_BLOCKS: usize = 16;

/// The index and its sources.
pub struct Fleet {
    pub index: Index,
    pub sources: Vec<SourceId>,
}

/// Local hashes of a prompt.
pub fn locals(prompt: u64) -> Vec<LocalHash> {
    (0..PROMPT_BLOCKS as u64).map(|block| LocalHash(mixed(prompt << 32 | block))).collect()
}

/// The first blocks of the fleet's prompts, in a cycle.
pub struct Turns {
    prompts: Vec<Vec<LocalHash>>,
    next: usize,
}

impl Turns {
    /// Prompts of `blocks` blocks.
    pub fn new(blocks: usize) -> Self {
        let first = |prompt| locals(prompt).into_iter().take(blocks).collect();
        Self { prompts: (0..PROMPTS).map(|at| first(mixed(at) % PROMPTS)).collect(), next: 0 }
    }

    /// The next prompt.
    pub fn next_prompt(&mut self) -> &[LocalHash] {
        let at = self.next;
        self.next = (at + 1) % self.prompts.len();
        self.prompts.get(at).map_or(&[], Vec::as_slice)
    }
}

impl Fleet {
    #[expect(clippy::expect_used, reason = "names are valid and the index has room")]
    pub fn build() -> Self {
        let mut index = Index::new(Limits::default());
        let add = |worker: usize| {
            let worker = WorkerId::new(&format!("worker-{worker}")).expect("a name");
            index.add_source(&worker, "source", 0, CopyMode::Set).expect("room for a source")
        };
        let sources: Vec<SourceId> = (0..WORKERS).map(add).collect();
        let mut fleet = Self { index, sources };
        for prompt in 0..PROMPTS {
            let events = stored(&blocks_of(&locals(prompt)), EVENT_BLOCKS);
            fleet.apply(prompt, &events);
            fleet.apply(prompt * 7 + 31, &events);
        }
        fleet
    }

    /// Builds the fleet with a pool that all workers read and that has all prompts.
    #[expect(clippy::expect_used, reason = "names are valid and the index has room")]
    pub fn build_with_pool() -> Self {
        let mut fleet = Self::build();
        let pool = WorkerId::new("pool").expect("a name");
        fleet.index.set_pool(&pool);
        for worker in 0..WORKERS {
            let worker = WorkerId::new(&format!("worker-{worker}")).expect("a name");
            fleet.index.set_reads(&worker, std::slice::from_ref(&pool));
        }
        let source = fleet.index.add_source(&pool, "source", 0, CopyMode::Set);
        let source = source.expect("room for a source");
        for prompt in 0..PROMPTS {
            for event in stored(&blocks_of(&locals(prompt)), EVENT_BLOCKS) {
                fleet.index.apply(source, 0, &event).expect("a known source");
            }
        }
        fleet
    }

    /// Applies events of one worker.
    #[expect(clippy::expect_used, reason = "the source is in the index")]
    pub fn apply(&mut self, worker: u64, events: &[KvEvent]) {
        let at = usize::try_from(worker % WORKERS as u64).unwrap_or_default();
        let Some(&source) = self.sources.get(at) else { return };
        for event in events {
            self.index.apply(source, 0, event).expect("a known source");
        }
    }
}
