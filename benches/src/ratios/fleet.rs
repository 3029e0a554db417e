//! An index to measure: 64 workers, 1,024 prompts of 512 blocks, each held by two: 1 M pairs.

use crate::load::mixed;
use kvasir_index::{Index, Limits, SourceId};
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier, WorkerId};

const WORKERS: usize = 64;
/// Prompts of the fleet.
pub const PROMPTS: u64 = 1_024;
/// Blocks of a prompt.
pub const PROMPT_BLOCKS: usize = 512;
/// Blocks of an event.
pub const EVENT_BLOCKS: usize = 16;

/// The index and who feeds it.
pub struct Fleet {
    pub index: Index,
    pub sources: Vec<SourceId>,
}

/// Local hashes of a prompt.
pub fn locals(prompt: u64) -> Vec<LocalHash> {
    (0..PROMPT_BLOCKS as u64).map(|block| LocalHash(mixed(prompt << 32 | block))).collect()
}

/// The events that announce a prompt.
pub fn stored(locals: &[LocalHash]) -> Vec<KvEvent> {
    let names: Vec<BlockName> = sequence_hashes(locals).map(|name| BlockName(name.0)).collect();
    let blocks: Vec<StoredBlock> =
        names.iter().zip(locals).map(|(&name, &local)| StoredBlock { name, local }).collect();
    let parents = names.iter().copied().skip(EVENT_BLOCKS - 1).step_by(EVENT_BLOCKS).map(Some);
    let parents = std::iter::once(None).chain(parents);
    let event = |(blocks, parent): (&[StoredBlock], Option<BlockName>)| KvEvent::Stored {
        parent,
        tier: Tier::Device,
        blocks: blocks.to_vec(),
    };
    blocks.chunks(EVENT_BLOCKS).zip(parents).map(event).collect()
}

/// The events that take it back, tail first.
pub fn removed(locals: &[LocalHash]) -> Vec<KvEvent> {
    let names: Vec<BlockName> = sequence_hashes(locals).map(|name| BlockName(name.0)).collect();
    let event =
        |names: &[BlockName]| KvEvent::Removed { tier: Tier::Device, names: names.to_vec() };
    names.chunks(EVENT_BLOCKS).rev().map(event).collect()
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
            let events = stored(&locals(prompt));
            fleet.apply(prompt, &events);
            fleet.apply(prompt * 7 + 31, &events);
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
