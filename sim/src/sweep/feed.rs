//! The index of a run, which receives events with a delay.

use crate::engine::timed::{CacheChange, Nanos};
use anyhow::{Context, Result};
use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, TierSet, WorkerId,
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
    /// Creates an index over this many engines, with this delay of events.
    ///
    /// # Errors
    /// If the index rejects an engine.
    pub fn new(engines: usize, delay: Nanos) -> Result<Self> {
        let mut index = Index::new(Limits::default());
        let mut sources = Vec::with_capacity(engines);
        for number in 0..engines {
            let worker = worker_id(number)?;
            let id = index.add_source(&worker, "events", 0, CopyMode::Counted)?;
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

    /// Number of each engine's leading blocks, as known to the index.
    ///
    /// # Errors
    /// If the index rejects an event.
    pub fn overlaps(&mut self, names: &[u64], now: Nanos) -> Result<Vec<TierBlocks>> {
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
                prompt: None,
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

/// Converts changes of a cache to events. Consecutive removals from one tier become one event.
fn kv_events(changes: Vec<CacheChange>) -> Vec<KvEvent> {
    let mut events = Vec::new();
    for change in changes {
        match (change, events.last_mut()) {
            (CacheChange::Stored { tier, names, parent, .. }, _) => {
                let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
                let blocks = names.into_iter().map(block).collect();
                events.push(KvEvent::Stored { parent: parent.map(BlockName), tier, blocks });
            }
            (
                CacheChange::Removed { tier, name, .. },
                Some(KvEvent::Removed { names, tier: last }),
            ) if *last == tier => names.push(BlockName(name)),
            (CacheChange::Removed { tier, name, .. }, _) => {
                events.push(KvEvent::Removed { tier, names: vec![BlockName(name)] });
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
