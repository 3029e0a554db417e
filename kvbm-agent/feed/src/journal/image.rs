//! Converts all cached blocks to events, for a peer that has no blocks yet.

use kvasir_proto::limits::BATCH_EVENTS_MAX;
use kvasir_proto::types::{BlockName, HeldBlock, KvEvent, LocalHash, StoredBlock, Tier};
use std::mem;

/// Maximum published copies of a block in one tier: readers count no more.
const COPIES_MAX: u32 = 255;

/// Events that store all `records`, in lists that each fit one batch. `records` must not exceed one event's blocks.
pub(super) fn image(records: Vec<HeldBlock>) -> Vec<Vec<KvEvent>> {
    let mut image = Image { run: Vec::new(), events: Vec::new(), done: Vec::new() };
    for record in records {
        if !image.continues(&record) {
            image.end_run();
        }
        image.run.push(record);
    }
    image.end_run();
    image.done.push(image.events);
    image.done
}

struct Image {
    /// Records that fit into one event: a chain, or names without known tokens.
    run: Vec<HeldBlock>,
    events: Vec<KvEvent>,
    done: Vec<Vec<KvEvent>>,
}

impl Image {
    /// Returns whether `next` can join the run: same copies, and the next block of a chain or another name without
    /// tokens.
    fn continues(&self, next: &HeldBlock) -> bool {
        self.run.last().is_none_or(|last| {
            let is_chain = next.parent == Some(last.name) && next.local.is_some();
            let is_list = next.local.is_none();
            let is_alike =
                last.copies == next.copies && last.local.is_some() == next.local.is_some();
            is_alike && (is_chain || is_list)
        })
    }

    /// Converts the current run to events: one store event per tier and copy. Returns immediately if the run is empty.
    fn end_run(&mut self) {
        let run = mem::take(&mut self.run);
        let Some(first) = run.first() else { return };
        for (tier, copies) in Tier::ALL.into_iter().zip(first.copies) {
            for _ in 0..copies.min(COPIES_MAX) {
                if self.events.len() >= BATCH_EVENTS_MAX {
                    self.done.push(mem::take(&mut self.events));
                }
                self.events.push(stored(first.parent, tier, &run));
            }
        }
    }
}

/// Builds the event that stores a run of records.
fn stored(parent: Option<BlockName>, tier: Tier, run: &[HeldBlock]) -> KvEvent {
    let block =
        |at: &HeldBlock| at.local.map(|local: LocalHash| StoredBlock { name: at.name, local });
    let blocks: Option<Vec<StoredBlock>> = run.iter().map(block).collect();
    match blocks {
        Some(blocks) => KvEvent::Stored { parent, tier, blocks },
        None => KvEvent::StoredNames { tier, names: run.iter().map(|at| at.name).collect() },
    }
}
