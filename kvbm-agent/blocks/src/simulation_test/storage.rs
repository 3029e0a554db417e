//! Simulated bytes of the tiers.

use crate::identity::{BlockIdentity, Checksum, SlotId};
use crate::tier::BlockTier;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

pub(super) const BLOCK_BYTES: usize = 32;
pub(super) type Bytes = [u8; BLOCK_BYTES];

/// The correct bytes of a block.
pub(super) fn truth(identity: &BlockIdentity) -> Bytes {
    let mut bytes = [0; BLOCK_BYTES];
    for (part, word) in (0..).zip(bytes.chunks_exact_mut(8)) {
        let seed: u64 = part;
        word.copy_from_slice(
            &xxh3_64_with_seed(&identity.sequence.0.to_le_bytes(), seed).to_le_bytes(),
        );
    }
    bytes
}

pub(super) fn checksum(bytes: &[u8]) -> Checksum {
    Checksum(xxh3_64(bytes))
}

/// Header of a block on disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Header {
    pub(super) identity: BlockIdentity,
    pub(super) checksum: Checksum,
}

#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) bytes: Bytes,
    pub(super) header: Option<Header>,
}

#[derive(Debug)]
pub(super) struct Storage {
    tiers: BTreeMap<BlockTier, Vec<Place>>,
}

impl Storage {
    pub(super) fn new(blocks: impl Iterator<Item = (BlockTier, u32)>) -> Self {
        let place = Place { bytes: [0; BLOCK_BYTES], header: None };
        let of = |(tier, blocks)| (tier, vec![place.clone(); blocks as usize]);
        Self { tiers: blocks.map(of).collect() }
    }

    pub(super) fn at(&mut self, tier: BlockTier, slot: SlotId) -> &mut Place {
        let places = self.tiers.get_mut(&tier).expect("a tier");
        &mut places[slot.index()]
    }

    pub(super) fn places(&self, tier: BlockTier) -> &[Place] {
        &self.tiers[&tier]
    }

    /// Flips a random bit in a tier.
    pub(super) fn rot(&mut self, tier: BlockTier, random: &mut ChaCha8Rng) {
        let places = self.tiers.get_mut(&tier).expect("a tier");
        let slot = random.random_range(0..places.len());
        places[slot].bytes[random.random_range(0..BLOCK_BYTES)] ^= 1 << random.random_range(0..8);
    }

    /// Simulates a kill of the process: memory is lost.
    pub(super) fn lose_memory(&mut self, random: &mut ChaCha8Rng) {
        for (tier, places) in &mut self.tiers {
            if matches!(tier, BlockTier::Device | BlockTier::Host) {
                for place in places {
                    *place = Place { bytes: random.random(), header: None };
                }
            }
        }
    }
}
