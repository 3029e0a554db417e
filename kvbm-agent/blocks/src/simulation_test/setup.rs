//! Derives tiers, limits and prompts from a seed.

use super::storage::BLOCK_BYTES;
use crate::identity::BlockIdentity;
use crate::inactive::EvictionPolicy;
use crate::layout::LayoutConfig;
use crate::manager::{KvBlockManagerConfig, TierConfig};
use crate::plan::LaneLimits;
use crate::store::DuplicatePolicy;
use crate::tier::BlockTier;
use kvasir_proto::types::LocalHash;
use rand::Rng;
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

pub(super) const PROMPT_BLOCKS: usize = 6;

pub(super) fn prompts(random: &mut ChaCha8Rng) -> Vec<Vec<BlockIdentity>> {
    let mut locals: Vec<Vec<LocalHash>> = Vec::new();
    for _ in 0..random.random_range(2..6) {
        // A prompt begins like an earlier prompt.
        let mut prompt = match locals.len() {
            0 => Vec::new(),
            count => {
                let from: &Vec<LocalHash> = &locals[random.random_range(0..count)];
                from[..random.random_range(0..from.len())].to_vec()
            }
        };
        prompt.resize_with(PROMPT_BLOCKS, || LocalHash(random.random()));
        locals.push(prompt);
    }
    locals.iter().map(|locals| BlockIdentity::chain(locals).collect()).collect()
}

pub(super) fn config(random: &mut ChaCha8Rng) -> KvBlockManagerConfig {
    use BlockTier::{Device, Disk, Host, Volume};
    let tiers: &[BlockTier] = match random.random_range(0..6) {
        0 => &[Host, Disk],
        1 => &[Device, Host],
        2 => &[Device, Disk],
        3 => &[Host, Disk, Volume],
        4 => &[Device, Host, Volume],
        _ => &[Device, Host, Disk, Volume],
    };
    let layout = LayoutConfig {
        num_blocks: 1,
        num_layers: 2,
        outer_dim: 2,
        page_size: 4,
        inner_dim: 2,
        dtype_width_bytes: 1,
        alignment_bytes: 1,
        base_offset_bytes: 0,
    };
    let mut config = KvBlockManagerConfig::new(layout);
    config.queued_events_max = random.random_range(1..40);
    for tier in tiers {
        let eviction = match random.random_range(0..4) {
            0 => EvictionPolicy::Lru,
            1 => EvictionPolicy::TinyLfu,
            _ => EvictionPolicy::Lineage,
        };
        let is_allowed: bool = random.random();
        let duplicates = if is_allowed { DuplicatePolicy::Allow } else { DuplicatePolicy::Reject };
        let transfers = random.random_range(1..6);
        let lane = LaneLimits {
            queued_blocks_max: random.random_range(1..8),
            batch_blocks_max: random.random_range(1..4),
            in_flight_transfers_max: transfers,
            in_flight_bytes_max: (transfers * BLOCK_BYTES) as u64,
            transfer_timeout: Duration::from_millis(random.random_range(10..200)),
        };
        let offers_min = u64::from(*tier == Disk) * random.random_range(0..3);
        let blocks = random.random_range(2..10);
        let at = TierConfig { blocks, eviction, duplicates, pins_max: 2, lane, offers_min };
        config = config.with_tier(*tier, at);
    }
    config
}
