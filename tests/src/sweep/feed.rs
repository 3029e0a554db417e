//! The index of a run, and what it has not heard yet.

use crate::engine::timed::{CacheChange, Nanos};
use anyhow::{Context, Result};
use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, TierSet, WorkerId,
};
use router_client::route::TierBlocks;
use std::collections::VecDeque;

/// The index, and what it has not heard yet.
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
    /// Events on their way, by the time at which they happened.
    late: VecDeque<(Nanos, Vec<KvEvent>)>,
}

// === impl Feed ===

impl Feed {
    /// An index that hears of so many engines so late.
    ///
    /// # Errors
    /// If the index refuses an engine.
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

    /// The cache of an engine changed.
    pub fn cache_changed(&mut self, engine: usize, at: Nanos, changes: Vec<CacheChange>) {
        if let Some(source) = self.sources.get_mut(engine) {
            source.late.push_back((at, kv_events(changes)));
        }
    }

    /// Blocks that each engine holds, as far as the index has heard.
    #[must_use]
    pub fn held_blocks(&self) -> Vec<u64> {
        let of = |source: &Source| {
            let worker = self.index.worker(&source.worker).into_iter();
            worker.flat_map(|worker| worker.holders()).map(|holder| holder.placed_blocks()).sum()
        };
        self.sources.iter().map(of).collect()
    }

    /// Leading blocks that each engine holds, as far as the index has heard.
    ///
    /// # Errors
    /// If the index refuses an event.
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
            Query { key, tiers: TierSet::ALL, workers: None, minimum_overlap: 1, shared: None },
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

/// What the index is told of changes of a cache. Consecutive removals from one tier become one event.
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

/// Ids in the order of engines.
///
/// # Errors
/// If the id cannot be one.
pub fn worker_id(number: usize) -> Result<WorkerId> {
    Ok(WorkerId::new(&format!("engine-{number:04}"))?)
}
