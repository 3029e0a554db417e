//! Converts chains of blocks to events of the index, and dumps workers.

use kvasir_index::{DumpRecord, Index};
use kvasir_proto::hash::sequence_hashes;
use kvasir_proto::types::{BlockName, KvEvent, LocalHash, StoredBlock, Tier, WorkerId};
use std::hint::black_box;

const DUMP_CHUNK: usize = 2_048;

/// The blocks of a prompt, with names derived from their content.
pub fn blocks_of(locals: &[LocalHash]) -> Vec<StoredBlock> {
    let names = sequence_hashes(locals).map(|name| BlockName(name.0));
    locals.iter().zip(names).map(|(&local, name)| StoredBlock { name, local }).collect()
}

/// The events that store a chain, with `event_blocks` blocks each.
pub fn stored(chain: &[StoredBlock], event_blocks: usize) -> Vec<KvEvent> {
    let mut parent = None;
    let event = |part: &[StoredBlock]| {
        let event = KvEvent::Stored { parent, tier: Tier::Device, blocks: part.to_vec() };
        parent = part.last().map(|block| block.name);
        event
    };
    chain.chunks(event_blocks).map(event).collect()
}

/// The events that remove a chain, last block first.
pub fn removed(chain: &[StoredBlock], event_blocks: usize) -> Vec<KvEvent> {
    let names: Vec<BlockName> = chain.iter().rev().map(|block| block.name).collect();
    let event = |part: &[BlockName]| KvEvent::Removed { tier: Tier::Device, names: part.to_vec() };
    names.chunks(event_blocks).map(event).collect()
}

/// Dumps a worker and returns the number of its records. `chunk` is the reused buffer for records.
///
/// # Panics
/// If the worker is unknown.
#[expect(clippy::expect_used, reason = "nothing disturbs the dump")]
pub fn dump(index: &mut Index, worker: &WorkerId, chunk: &mut Vec<DumpRecord>) -> usize {
    let mut scan = index.begin_dump(worker, None).expect("a known worker");
    let mut records = 0;
    loop {
        chunk.clear();
        let more = index.dump_chunk(&mut scan, DUMP_CHUNK, chunk).expect("undisturbed");
        records += black_box(&*chunk).len();
        if !more {
            break;
        }
    }
    index.finish_dump(scan).expect("undisturbed");
    records
}
