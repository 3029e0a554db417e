//! The index of a run, which receives events with a delay.

use crate::engine::timed::{CacheChange, Nanos};
use anyhow::{Context, Result};
use kvasir_index::{Index, Limits, Prompt, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, Group, GroupKind, KvEvent, LocalHash, StoredBlock, Tier, TierSet, WorkerId,
};
use router_client::route::TierBlocks;
use std::collections::VecDeque;

/// The index, and the events that it has not received yet.
#[derive(Debug)]
pub struct Feed {
    index: Index,
    scratch: Scratch,
    delay: Nanos,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    worker: WorkerId,
    id: SourceId,
    /// Delayed events, by the time at which they happened.
    late: VecDeque<(Nanos, Vec<KvEvent>)>,
}

// === impl Feed ===

impl Feed {
    /// Creates an index over this many engines, with this delay of events. `states` is the group of an engine's state
    /// layers, if it has any.
    ///
    /// # Errors
    /// If the index rejects an engine.
    pub fn new(engines: usize, delay: Nanos, states: Option<Group>) -> Result<Self> {
        let mut index = Index::new(Limits::default());
        let mut sources = Vec::with_capacity(engines);
        for number in 0..engines {
            let worker = worker_id(number)?;
            let id = index.add_source(&worker, "events", 0, CopyMode::Counted)?;
            if let Some(group) = states {
                index.apply(id, 0, &stored(None, Tier::Device, vec![group.declaration()]))?;
            }
            sources.push(Source { worker, id, late: VecDeque::new() });
        }
        Ok(Self { index, scratch: Scratch::default(), delay, sources })
    }

    /// Queues the changes of an engine's cache.
    pub fn cache_changed(&mut self, engine: usize, at: Nanos, changes: Vec<CacheChange>) {
        if let Some(source) = self.sources.get_mut(engine) {
            source.late.push_back((at, kv_events(changes)));
        }
    }

    /// Number of each engine's blocks in the index.
    #[must_use]
    pub fn held_blocks(&self) -> Vec<u64> {
        let of = |source: &Source| {
            let worker = self.index.worker(&source.worker).into_iter();
            worker.flat_map(|worker| worker.holders()).map(|holder| holder.placed_blocks()).sum()
        };
        self.sources.iter().map(of).collect()
    }

    /// Number of each engine's leading blocks, as known to the index. `prompt` counts only blocks from which the engine
    /// can resume; `None` counts the main group alone.
    ///
    /// # Errors
    /// If the index rejects an event.
    pub fn overlaps(
        &mut self,
        names: &[u64],
        prompt: Option<Prompt>,
        now: Nanos,
    ) -> Result<Vec<TierBlocks>> {
        let Self { index, scratch, delay, sources } = self;
        for source in &mut *sources {
            let heard = source.late.partition_point(|(at, _)| at.saturating_add(*delay) <= now);
            for event in source.late.drain(..heard).flat_map(|(_, events)| events) {
                index.apply(source.id, 0, &event)?;
            }
        }
        let locals: Vec<_> = names.iter().map(|&name| LocalHash(name)).collect();
        let key = QueryKey::Locals(&locals);
        index.find(
            Query {
                key,
                tiers: TierSet::ALL,
                workers: None,
                minimum_overlap: 1,
                shared: None,
                prompt,
            },
            scratch,
        );
        let mut held = vec![TierBlocks::default(); sources.len()];
        for found in scratch.matches() {
            let holder = index.holder(found.holder).context("a holder that is not there")?;
            let engine = sources.iter().position(|source| source.worker == *holder.worker());
            if let Some(blocks) = engine.and_then(|engine| held.get_mut(engine)) {
                let [device, host, disk] = found.by_best_tier;
                *blocks = TierBlocks { device, host, disk, pool: 0 };
            }
        }
        Ok(held)
    }
}

/// Number of the group of state layers.
const STATES: u32 = 1;

/// The group of state layers, for blocks of this many tokens.
#[must_use]
pub const fn state_group(block_size: u32) -> Group {
    let kind = GroupKind::Mamba;
    Group { number: STATES, kind, block_size, unit: block_size, window: 0 }
}

const fn stored(parent: Option<BlockName>, tier: Tier, blocks: Vec<StoredBlock>) -> KvEvent {
    KvEvent::Stored { parent, tier, blocks }
}

/// Converts changes of a cache to events. Consecutive removals from one tier become one event.
fn kv_events(changes: Vec<CacheChange>) -> Vec<KvEvent> {
    let mut events = Vec::new();
    for change in changes {
        match (change, events.last_mut()) {
            (CacheChange::Stored { tier, names, parent, .. }, _) => {
                let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
                let blocks = names.into_iter().map(block).collect();
                events.push(stored(parent.map(BlockName), tier, blocks));
            }
            (
                CacheChange::Removed { tier, name, .. },
                Some(KvEvent::Removed { names, tier: last }),
            ) if *last == tier => names.push(BlockName(name)),
            (CacheChange::Removed { tier, name, .. }, _) => {
                events.push(KvEvent::Removed { tier, names: vec![BlockName(name)] });
            }
            (CacheChange::StateStored { name }, _) => {
                let block = Group::block(STATES, BlockName(name));
                events.push(stored(None, Tier::Device, vec![block]));
            }
            (CacheChange::StateRemoved { name }, _) => {
                let names = vec![Group::name(STATES, BlockName(name))];
                events.push(KvEvent::Removed { tier: Tier::Device, names });
            }
        }
    }
    events
}

/// The worker id of an engine. Ids sort in the order of engines.
///
/// # Errors
/// If the id is invalid.
pub fn worker_id(number: usize) -> Result<WorkerId> {
    Ok(WorkerId::new(&format!("engine-{number:04}"))?)
}
