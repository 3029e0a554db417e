use kvasir_feed::feed::Feed;
use kvasir_feed::journal::AppendError;
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, KvEvent, StoredBlock, Tier};
use std::cell::LazyCell;
use std::collections::HashMap;
use std::sync::Arc;

/// Pool of a store that workers share. The relays of an agent publish their engines' announcements of it in a separate
/// stream. Blocks in the pool outlive the engines.
#[derive(Debug, Clone)]
pub struct EnginePool {
    /// Stream of the pool.
    pub feed: Arc<Feed>,
    /// Stream of the worker. Engines may announce the store's blocks by name only, and announce their tokens in this
    /// stream.
    pub worker: Arc<Feed>,
}

/// Identity of a name: the block's parent, and the block.
type Identity = (Option<BlockName>, StoredBlock);

/// Outcome of block operations in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PoolOutcome {
    /// Number of published operations.
    pub(super) published: u64,
    /// Number of operations that were not published, because only the block's name is known.
    pub(super) unknown: u64,
}

impl EnginePool {
    /// Publishes an engine's announcements about the pool. `own` has the worker's events of the same batch, which
    /// identify new blocks. A pool has one rank.
    pub(super) fn publish(
        &self,
        rank: DpRank,
        events: Vec<KvEvent>,
        own: &[KvEvent],
    ) -> Result<PoolOutcome, AppendError> {
        let mut published = Vec::with_capacity(events.len());
        let mut outcome = PoolOutcome::default();
        let just_stored = LazyCell::new(|| just_stored(own));
        for event in events {
            match event {
                KvEvent::StoredNames { names, .. } => {
                    let known = |name| just_stored.get(&name).copied();
                    outcome.unknown += self.identify(rank, known, &names, &mut published);
                }
                event @ (KvEvent::Stored { .. }
                | KvEvent::Removed { .. }
                | KvEvent::Gone { .. }
                | KvEvent::Cleared
                | KvEvent::ClearedTier(_)) => published.push(event),
            }
        }
        if published.is_empty() {
            return Ok(outcome);
        }
        outcome.published = published.iter().map(|event| event.operations() as u64).sum();
        self.feed.publish(0, published)?;
        Ok(outcome)
    }

    /// Clears the pool, because its blocks are no longer certain.
    pub(super) fn clear(&self) {
        if let Err(error) = self.feed.publish(0, vec![KvEvent::Cleared]) {
            tracing::error!(%error, pool = self.feed.name(), "cannot clear blocks of the engine's pool");
        }
    }

    /// Copies the worker's state to the pool, because the same engines announce both.
    pub(super) fn update_state(&self) {
        self.feed.set_state(self.worker.feed_state());
    }

    /// Adds stored blocks to `published`, with the parents and hashes found under `names`: in the same batch, the
    /// worker's stream or the pool's stream. Returns the number of names without an identity.
    fn identify(
        &self,
        rank: DpRank,
        just_stored: impl Fn(BlockName) -> Option<Identity>,
        names: &[BlockName],
        published: &mut Vec<KvEvent>,
    ) -> u64 {
        let mut unknown = 0;
        for names in names.chunks(EVENT_BLOCKS_MAX) {
            let of_worker = self.worker.held(rank, names);
            // The worker may have evicted the block meanwhile.
            let of_pool = self.feed.held(0, names);
            for at in 0..names.len() {
                let known = |held: &[HeldBlock]| {
                    let held = held.get(at)?;
                    Some((held.parent, StoredBlock { name: held.name, local: held.local? }))
                };
                let new = names.get(at).and_then(|&name| just_stored(name));
                match new.or_else(|| known(&of_worker)).or_else(|| known(&of_pool)) {
                    Some((parent, block)) => {
                        KvEvent::push_stored(published, parent, Tier::OF_POOL, block);
                    }
                    None => unknown += 1,
                }
            }
        }
        unknown
    }
}

/// Returns the blocks stored by `events`, by name, each with its parent.
fn just_stored(events: &[KvEvent]) -> HashMap<BlockName, Identity> {
    let mut stored = HashMap::new();
    for event in events {
        let KvEvent::Stored { parent, blocks, .. } = event else { continue };
        let mut parent = *parent;
        for &block in blocks {
            stored.insert(block.name, (parent, block));
            parent = Some(block.name);
        }
    }
    stored
}
