//! Converts a scheduler's events to the form that an engine without a publisher passes to an agent: hashes instead of
//! tokens, and only the main group.

use super::scheduler::MAIN_GROUP;
use super::wire::EngineEvent;
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::types::{BlockName, KvEvent, StoredBlock, Tier};

/// The events of one step. Consecutive removals are merged into one event.
#[must_use]
pub fn kv_events(events: &[EngineEvent], block_size: usize) -> Vec<KvEvent> {
    let mut out = Vec::new();
    for event in events {
        match event {
            EngineEvent::Stored { group: MAIN_GROUP, names, parent, tokens, .. } => {
                let mut locals = Vec::new();
                let seed = Namespace::default().seed();
                local_hashes(&tokens_le(tokens), block_size, seed, &[], &mut locals);
                let blocks = names.iter().zip(locals);
                let blocks =
                    blocks.map(|(&name, local)| StoredBlock { name: BlockName(name), local });
                let parent = parent.map(BlockName);
                let tier = Tier::Device;
                out.push(KvEvent::Stored { parent, tier, blocks: blocks.collect() });
            }
            EngineEvent::Removed { group: MAIN_GROUP, name, .. } => match out.last_mut() {
                Some(KvEvent::Removed { names, .. }) => names.push(BlockName(*name)),
                _ => {
                    let names = vec![BlockName(*name)];
                    out.push(KvEvent::Removed { tier: Tier::Device, names });
                }
            },
            EngineEvent::Cleared => out.push(KvEvent::Cleared),
            EngineEvent::Stored { .. } | EngineEvent::Removed { .. } => {}
        }
    }
    out
}
