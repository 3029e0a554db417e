//! The block manager as a source of the agent's stream.

use crate::storage::StorageBook;
use futures::FutureExt;
use kvasir_blocks::events::{Image, Registration};
use kvasir_blocks::{BlockEvent, BlockIdentity, BlockTier, Change};
use kvasir_feed::feed::Feed;
use kvasir_feed::hub::{Hub, HubError, Inlet};
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{
    BlockName, DpRank, KvEvent, SourceState, SourceStatus, StoredBlock, Tier,
};
use kvasir_tiers::manager::{EventFeed, FeedStep};
use std::sync::Arc;
use tokio::select;
use tokio_util::sync::CancellationToken;

/// Name of the source.
pub const SOURCE: &str = "blocks";

/// The block manager as a source. Blocks are named by their sequence hashes.
#[derive(Debug)]
pub struct BlockSource {
    hub: Arc<Hub>,
    inlet: Inlet,
    rank: DpRank,
    readers: Readers,
}

/// Receivers of the events besides the agent's stream.
#[derive(Debug)]
pub(super) struct Readers {
    /// Stream of the volume's pool.
    pub(super) pool: Option<Arc<Feed>>,
    pub(super) storage: Option<Arc<StorageBook>>,
}

/// Stream in which events of a tier are published.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// Stream of the worker.
    Worker,
    /// Stream of the pool.
    Pool,
}

impl Stream {
    /// Tier that the stream reports for blocks of `tier`; `None` if it leaves them out.
    const fn tier(self, tier: BlockTier) -> Option<Tier> {
        match (self, tier) {
            (Self::Worker, tier) => tier.of_worker(),
            (Self::Pool, BlockTier::Volume) => Some(Tier::OF_POOL),
            (Self::Pool, BlockTier::Device | BlockTier::Host | BlockTier::Disk) => None,
        }
    }
}

impl BlockSource {
    /// Opens the source, without publishing yet.
    pub(super) fn open(hub: &Arc<Hub>, rank: DpRank, readers: Readers) -> Result<Self, HubError> {
        // Each block is announced once in a tier and removed once, so either copy mode will do.
        let inlet = hub.open_imaged(SOURCE, hub.feed().status().copy_mode, rank)?;
        inlet.count(|counts| counts.incarnations = 1);
        Ok(Self { hub: Arc::clone(hub), inlet, rank, readers })
    }

    /// Publishes all blocks, then changes until `stop` is cancelled, then the changes recorded before the stop.
    /// Publishes nothing if `stop` is cancelled before the incarnation is settled.
    pub(super) async fn run(self, mut feed: EventFeed, stop: CancellationToken) {
        // Until then, it is undecided to which incarnation the blocks belong.
        select! {
            () = self.hub.feed().until_settled() => {}
            () = stop.cancelled() => return,
        }
        loop {
            let step = select! {
                // Changes from before the stop are published, too.
                biased;
                step = feed.next() => step,
                () = stop.cancelled() => break,
            };
            self.publish_step(&step);
        }
        while let Some(step) = feed.next().now_or_never() {
            self.publish_step(&step);
        }
    }

    /// Publishes one step of the manager's feed to the pool's stream, to storage subscribers and to the worker's
    /// stream, each if there is one.
    fn publish_step(&self, step: &FeedStep) {
        if let Some(pool) = &self.readers.pool {
            publish_pool(pool, published(step, Stream::Pool));
        }
        if let Some(storage) = &self.readers.storage {
            match step {
                FeedStep::Events(events) => storage.push(events),
                FeedStep::Image(image) => storage.lost(image.watermark),
            }
        }
        self.publish(published(step, Stream::Worker));
        let state = SourceState::Exact;
        let connected = true;
        self.inlet.show(SourceStatus { state, connected, ..SourceStatus::default() });
    }

    /// Publishes events in the worker's stream. Counts and logs refused events. Returns immediately if `events` is
    /// empty.
    fn publish(&self, events: Vec<KvEvent>) {
        if events.is_empty() {
            return;
        }
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        if let Err(error) = self.inlet.take(self.rank, events) {
            self.inlet.count_refused(operations as u64, &error);
            tracing::warn!(%error, source = SOURCE, "blocks are not published");
        }
    }
}

/// Publishes blocks of a volume. The pool has one rank.
fn publish_pool(pool: &Feed, events: Vec<KvEvent>) {
    if events.is_empty() {
        return;
    }
    if let Err(error) = pool.publish(0, events) {
        tracing::warn!(%error, source = pool.name(), "blocks of the volume are not published");
    }
}

/// Events of a step for one of the streams.
fn published(step: &FeedStep, stream: Stream) -> Vec<KvEvent> {
    match step {
        FeedStep::Events(events) => changes(events, stream),
        FeedStep::Image(image) => everything(image, stream),
    }
}

/// Converts changes to events. Skips changes in tiers that do not belong to `stream`.
fn changes(events: &[BlockEvent], stream: Stream) -> Vec<KvEvent> {
    let mut published = Vec::new();
    for BlockEvent { change, registration: Registration { tier, identity }, .. } in events {
        let Some(tier) = stream.tier(*tier) else { continue };
        match change {
            Change::Register => store(&mut published, tier, identity),
            Change::Remove => remove(&mut published, tier, identity),
        }
    }
    published
}

/// Converts an image of all registrations to events: a clear, then the blocks in the tiers of `stream`.
fn everything(image: &Image, stream: Stream) -> Vec<KvEvent> {
    let mut published = vec![KvEvent::Cleared];
    for Registration { tier, identity } in &image.registrations {
        if let Some(tier) = stream.tier(*tier) {
            store(&mut published, tier, identity);
        }
    }
    published
}

fn store(published: &mut Vec<KvEvent>, tier: Tier, identity: &BlockIdentity) {
    let name = |sequence: u64| BlockName(sequence);
    let parent = identity.parent.map(|parent| name(parent.0));
    let block = StoredBlock { name: name(identity.sequence.0), local: identity.local };
    KvEvent::push_stored(published, parent, tier, block);
}

/// Adds the removal of a block to `published`. Joins the last event if it also removes from this tier and has room.
fn remove(published: &mut Vec<KvEvent>, tier: Tier, identity: &BlockIdentity) {
    let name = BlockName(identity.sequence.0);
    if let Some(KvEvent::Removed { tier: at, names }) = published.last_mut()
        && *at == tier
        && names.len() < EVENT_BLOCKS_MAX
    {
        names.push(name);
        return;
    }
    published.push(KvEvent::Removed { tier, names: vec![name] });
}

#[cfg(test)]
#[path = "source_test.rs"]
mod tests;
