use super::StorageConfig;
use kvasir_blocks::events::{Image, Registration};
use kvasir_blocks::{BlockEvent, BlockIdentity, BlockTier, Change};
use kvasir_proto::convert::{
    StorageBatch, StorageBlock, StorageChange, StorageContent, StorageImagePart, WorkerAddress,
};
use kvasir_proto::limits::STORAGE_BATCH_EVENTS_MAX;
use kvasir_proto::types::Incarnation;
use std::collections::BTreeMap;

/// Metadata key for the number of blocks before a block.
const POSITION: &str = "position";

/// Encodes events as numbered batches. Each location has its own numbers, so that a subscriber of one location detects
/// every gap.
#[derive(Debug)]
pub struct Outbox {
    address: WorkerAddress,
    incarnation: Incarnation,
    block_bytes: u64,
    locations: Vec<Location>,
}

#[derive(Debug)]
struct Location {
    tier: BlockTier,
    name: String,
    /// Number of the location's last batch.
    sequence: u64,
    /// Whether the location had a batch in this round.
    is_heard: bool,
}

impl Outbox {
    /// Creates an outbox for the tiers of a worker's block manager, whose blocks have `block_bytes` bytes.
    #[must_use]
    pub fn new(
        address: WorkerAddress,
        incarnation: Incarnation,
        block_bytes: u64,
        tiers: impl IntoIterator<Item = BlockTier>,
        config: &StorageConfig,
    ) -> Self {
        let location =
            |tier| Location { tier, name: config.location(tier), sequence: 0, is_heard: false };
        let locations = tiers.into_iter().map(location).collect();
        Self { address, incarnation, block_bytes, locations }
    }

    /// Builds batches of changes, at most one per location. Skips locations without a change.
    pub fn changes(&mut self, events: &[BlockEvent]) -> Vec<StorageBatch> {
        debug_assert!(events.len() <= STORAGE_BATCH_EVENTS_MAX, "they are one batch");
        let bytes = self.block_bytes;
        let change = |event: &BlockEvent| {
            let block = block(&event.registration.identity, bytes);
            match event.change {
                Change::Register => StorageChange::Store(block),
                Change::Remove => StorageChange::Remove(block),
            }
        };
        let mut batches = Vec::new();
        for at in 0..self.locations.len() {
            let tier = self.locations.get(at).map(|location| location.tier);
            let here = events.iter().filter(|event| Some(event.registration.tier) == tier);
            let changes: Vec<_> = here.map(change).collect();
            if !changes.is_empty() {
                batches.extend(self.batch(at, StorageContent::Changes(changes)));
            }
        }
        batches
    }

    /// Builds heartbeats: an empty batch for each location without a batch since the last call.
    pub fn signs_of_life(&mut self) -> Vec<StorageBatch> {
        let mut batches = Vec::new();
        for at in 0..self.locations.len() {
            if self.locations.get(at).is_some_and(|location| !location.is_heard) {
                batches.extend(self.batch(at, StorageContent::Changes(Vec::new())));
            }
        }
        self.locations.iter_mut().for_each(|location| location.is_heard = false);
        batches
    }

    /// Batches of all registrations, one location after the other, encoded lazily.
    pub const fn image<'a>(&'a mut self, image: &'a Image) -> ImageBatches<'a> {
        ImageBatches { outbox: self, image, location: 0, next: 0 }
    }

    /// Builds the next batch of the location with index `location`. Returns `None` if the index is out of range.
    fn batch(&mut self, location: usize, content: StorageContent) -> Option<StorageBatch> {
        let location = self.locations.get_mut(location)?;
        location.sequence += 1;
        location.is_heard = true;
        Some(StorageBatch {
            address: self.address.clone(),
            location: location.name.clone(),
            incarnation: self.incarnation,
            sequence: location.sequence,
            content,
        })
    }
}

/// Batches of an image.
#[derive(Debug)]
pub struct ImageBatches<'a> {
    outbox: &'a mut Outbox,
    image: &'a Image,
    location: usize,
    /// Index of the next registration to check for this location.
    next: usize,
}

impl Iterator for ImageBatches<'_> {
    type Item = StorageBatch;

    /// Builds the next batch of the image, with at most [`STORAGE_BATCH_EVENTS_MAX`] blocks of one location. Returns
    /// `None` after the last location.
    fn next(&mut self) -> Option<StorageBatch> {
        let tier = self.outbox.locations.get(self.location)?.tier;
        let begins = self.next == 0;
        let mut blocks = Vec::new();
        for Registration { tier: at, identity } in self.image.registrations.iter().skip(self.next) {
            if blocks.len() == STORAGE_BATCH_EVENTS_MAX {
                break;
            }
            self.next += 1;
            if *at == tier {
                blocks.push(block(identity, self.outbox.block_bytes));
            }
        }
        let location = self.location;
        let ends = self.next == self.image.registrations.len();
        if ends {
            (self.location, self.next) = (location + 1, 0);
        }
        let part = StorageImagePart { begins, ends, blocks };
        self.outbox.batch(location, StorageContent::Image(part))
    }
}

fn block(identity: &BlockIdentity, bytes: u64) -> StorageBlock {
    StorageBlock {
        sequence: identity.sequence,
        prefix: identity.parent,
        bytes,
        metadata: BTreeMap::from([(POSITION.to_owned(), identity.position.to_string())]),
    }
}

#[cfg(test)]
#[path = "outbox_test.rs"]
mod tests;
