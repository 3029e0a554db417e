use super::*;
use crate::gate::GateConfig;
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::layout::{LayoutConfig, LayoutError};
use crate::lifecycle::RegisteredBlock;
use crate::plan::{Offered, Outcome, Route, TierBlock, TransferOrder, Verdict};
use crate::pool::BlockPool;
use crate::store::PoolConfigError;
use crate::tier::{BlockTier, Device, TierMarker};
use kvasir_proto::types::{LocalHash, SequenceHash};
use std::time::Duration;

const NOW: Duration = Duration::from_secs(1);

const LAYOUT: LayoutConfig = LayoutConfig {
    num_blocks: 1,
    num_layers: 2,
    outer_dim: 2,
    page_size: 4,
    inner_dim: 8,
    dtype_width_bytes: 2,
    alignment_bytes: 64,
    base_offset_bytes: 0,
};

fn config() -> KvBlockManagerConfig {
    let mut config = KvBlockManagerConfig::new(LAYOUT);
    for (tier, blocks) in [(BlockTier::Device, 2), (BlockTier::Host, 3), (BlockTier::Disk, 4)] {
        config = config.with_tier(tier, TierConfig::new(blocks));
    }
    config
}

fn manager() -> KvBlockManagerState {
    KvBlockManagerState::new(config()).expect("a manager")
}

fn chain(blocks: u64) -> Vec<BlockIdentity> {
    let locals: Vec<_> = (1..=blocks).map(LocalHash).collect();
    BlockIdentity::chain(&locals).collect()
}

fn names(blocks: &[BlockIdentity]) -> Vec<SequenceHash> {
    blocks.iter().map(|block| block.sequence).collect()
}

fn register<T: TierMarker>(pool: &BlockPool<T>, identity: BlockIdentity) -> RegisteredBlock<T> {
    let block = pool.get_mutable_block().expect("a block");
    let complete = block.complete(identity).expect("it is consistent");
    complete.register().expect("it registers").into_block()
}

const fn done(order: &TransferOrder) -> Outcome {
    Outcome::Done { bytes: order.bytes, read: Checksum(1), written: Checksum(1) }
}

/// Executes all orders.
fn settle(manager: &KvBlockManagerState, now: Duration) -> usize {
    let mut count = 0;
    loop {
        let orders = manager.start(NOW);
        if orders.is_empty() {
            return count;
        }
        for order in orders {
            let settled = manager.finish(order.id, done(&order), now).expect("it is settled");
            assert_eq!(settled.verdict, Verdict::Committed);
            count += 1;
        }
    }
}

#[test]
fn configurations_are_checked() {
    let refused = |config| KvBlockManagerState::new(config).expect_err("a bad configuration");
    assert_eq!(refused(KvBlockManagerConfig::new(LAYOUT)), ConfigError::NoTier);
    let layout = LayoutConfig { num_layers: 0, ..LAYOUT };
    let zero = LayoutError::Zero { field: "num_layers" };
    assert_eq!(refused(KvBlockManagerConfig::new(layout)), ConfigError::Layout(zero));
    let none = config().with_tier(BlockTier::Disk, TierConfig::new(0));
    let zero = LayoutError::Zero { field: "num_blocks" };
    assert_eq!(refused(none), ConfigError::Layout(zero));
    let many = config().with_tier(BlockTier::Disk, TierConfig::new(u32::MAX));
    let error = PoolConfigError { field: "blocks", value: u32::MAX, max: 1 << 26 };
    assert_eq!(refused(many), ConfigError::Pool { tier: BlockTier::Disk, error });
    // A block has 256 bytes: no block could ever be copied.
    let mut narrow = TierConfig::new(4);
    narrow.lane.in_flight_bytes_max = 255;
    let tier = BlockTier::Disk;
    let field = "in_flight_bytes_max";
    let error = ConfigError::Lane { tier, field, value: 255, min: 256 };
    assert_eq!(refused(config().with_tier(tier, narrow)), error);
    let mut closed = TierConfig::new(4);
    closed.lane.batch_blocks_max = 0;
    let error = ConfigError::Lane { tier, field: "batch_blocks_max", value: 0, min: 1 };
    assert_eq!(refused(config().with_tier(tier, closed)), error);
}

/// All tiers have the same layout, with their own numbers of blocks.
#[test]
fn tiers_share_the_layout() {
    let config = config();
    let of = |tier| config.layout_of(tier).expect("a tier");
    assert_eq!((of(BlockTier::Device).num_blocks, of(BlockTier::Disk).num_blocks), (2, 4));
    assert_eq!(of(BlockTier::Host).block_bytes(), of(BlockTier::Device).block_bytes());
    assert_eq!(config.layout_of(BlockTier::Volume), None);
}

#[test]
fn a_prompt_is_found_by_tier() {
    let manager = manager();
    let blocks = chain(4);
    let device = manager.device().expect("a pool");
    let host = manager.host().expect("a pool");
    let _device = register(device, blocks[0]);
    let _host = [register(host, blocks[0]), register(host, blocks[1])];
    let _disk = [
        register(manager.disk().expect("a pool"), blocks[2]),
        register(manager.disk().expect("a pool"), blocks[0]),
    ];
    let found = manager.find(&names(&blocks));
    assert_eq!(found.len(), 3);
    let leading = BlockTier::ALL.map(|tier| found.leading(tier));
    assert_eq!(leading, [1, 2, 1, 0]);
    let nearest = BlockTier::ALL.map(|tier| found.nearest(tier));
    assert_eq!(nearest, [1, 1, 1, 0]);
    let tiers: Vec<_> =
        manager.match_nearest(&names(&blocks)).iter().map(TierBlock::tier).collect();
    assert_eq!(tiers, [BlockTier::Device, BlockTier::Host, BlockTier::Disk]);
    assert!(manager.find(&names(&blocks[3..])).is_empty());
    assert!(manager.volume().is_none());
}

/// Device → host → disk automatically. After the upper tiers have lost the block, it returns tier by tier.
#[test]
fn blocks_go_down_and_come_back() {
    let manager = manager();
    let block = chain(1)[0];
    let registered = register(manager.device().expect("a pool"), block);
    assert!(matches!(manager.offload(&registered, Priority(0)), Offered::Queued { .. }));
    drop(registered);
    assert_eq!(settle(&manager, NOW), 2);
    assert_eq!(manager.find(&[block.sequence]).blocks[0].iter().count(), 3);
    for tier in [BlockTier::Device, BlockTier::Host] {
        manager.pool(tier).expect("a pool").reset_inactive();
    }
    for expected in [BlockTier::Disk, BlockTier::Host, BlockTier::Device] {
        let nearest = manager.match_nearest(&[block.sequence]).pop().expect("it is somewhere");
        assert_eq!(nearest.tier(), expected);
        manager.onboard(nearest, Priority(0));
        settle(&manager, NOW);
    }
    let stats = manager.stats();
    assert_eq!(stats.lanes.values().map(|lane| lane.committed).sum::<u64>(), 4);
    assert_eq!(stats.events.held_blocks, 1);
    assert_eq!(stats.pools.len(), 3);
}

#[test]
fn tiers_that_are_missing_are_skipped() {
    let mut config = KvBlockManagerConfig::new(LAYOUT);
    for tier in [BlockTier::Host, BlockTier::Volume] {
        config = config.with_tier(tier, TierConfig::new(2));
    }
    let manager = KvBlockManagerState::new(config).expect("a manager");
    let routes: Vec<_> = manager.stats().lanes.keys().map(Route::to_string).collect();
    assert_eq!(routes, ["host_to_volume", "volume_to_host"]);
}

#[test]
fn transfers_tell_the_gate_how_fast_they_are() {
    let manager = manager();
    let block = register(manager.device().expect("a pool"), chain(1)[0]);
    manager.offload(&block, Priority(0));
    assert_eq!(settle(&manager, NOW + Duration::from_secs(1)), 2);
    let route = Route { from: BlockTier::Device, to: BlockTier::Host };
    let verdict = manager.decide(route, 3, 12.0, Duration::ZERO, NOW);
    let bytes = LAYOUT.block_bytes();
    assert_eq!(verdict.bytes_per_second, Some(256.0));
    assert_eq!((bytes, verdict.inputs.load_bytes, verdict.inputs.tokens), (256, 768, 12));
    assert_eq!(verdict.load, Some(Duration::from_secs(3)));
    assert_eq!(verdict.compute, Some(Duration::from_secs(1)));
    assert!(!verdict.is_load);
    assert_eq!(GateConfig::DEFAULT, manager.config().gate);
}

#[test]
fn time_ends_pins_and_transfers() {
    let manager = manager();
    let pool = manager.device().expect("a pool");
    let block = register::<Device>(pool, chain(1)[0]);
    pool.pin(&block, NOW).expect("a pin");
    manager.offload(&block, Priority(0));
    drop(block);
    let order = manager.start(NOW)[0];
    assert_eq!(manager.next_deadline(), Some(order.deadline));
    assert_eq!(manager.expire(NOW), []);
    assert_eq!(pool.stats().pins, 0);
    assert_eq!(manager.expire(order.deadline), [order.id]);
    assert!(!manager.cancel(order.id));
    assert_eq!(manager.cancel_onboard(order.identity.sequence), [], "it leads down");
    let settled = manager.finish(order.id, Outcome::Cancelled, NOW).expect("it is settled");
    assert_eq!(settled.verdict, Verdict::Cancelled);
    manager.decay();
    assert!(manager.events().holds(order.identity.sequence, BlockTier::Device));
}
