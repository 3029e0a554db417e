//! Effects of each outcome, and the limits of lanes.

use super::*;
use crate::events::EventManager;
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::lifecycle::RegisteredBlock;
use crate::pool::BlockPool;
use crate::store::{PoolConfig, SlotState};
use crate::tier::{BlockTier, Device, Disk, Host};
use kvasir_proto::types::LocalHash;
use std::sync::Arc;
use std::time::Duration;

const BYTES: u64 = 64;
const STATED: Checksum = Checksum(7);
const WRONG: Checksum = Checksum(8);
const NOW: Duration = Duration::from_secs(100);

struct Tiers {
    device: BlockPool<Device>,
    host: BlockPool<Host>,
    lane: Lane<Device, Host>,
}

fn tiers(limits: LaneLimits, filter: Option<FrequencyFilter>) -> Tiers {
    let events = EventManager::new(1_000);
    let device = BlockPool::new(PoolConfig::new(8, 4), Arc::clone(&events)).expect("a pool");
    let host = BlockPool::<Host>::new(PoolConfig::new(4, 4), events).expect("a pool");
    let lane = Lane::new(host.clone(), BYTES, limits, filter);
    Tiers { device, host, lane }
}

fn identity(local: u64) -> BlockIdentity {
    BlockIdentity::first(LocalHash(local))
}

impl Tiers {
    fn new() -> Self {
        tiers(LaneLimits::DEFAULT, None)
    }

    fn block(&self, local: u64, checksum: Option<Checksum>) -> RegisteredBlock<Device> {
        let block = self.device.get_mutable_block().expect("a block");
        let block = block.complete(identity(local)).expect("it is consistent");
        block.with_checksum(checksum).register().expect("it registers").into_block()
    }

    /// Offers a block and starts its transfer.
    fn ordered(&mut self, local: u64) -> (RegisteredBlock<Device>, TransferOrder) {
        let block = self.block(local, Some(STATED));
        self.lane.offer(&block, Priority(0));
        let mut orders = self.lane.start(NOW);
        (block, orders.pop().expect("an order"))
    }

    fn is_below(&self, local: u64) -> bool {
        self.host.contains(identity(local).sequence)
    }
}

const fn done(read: Checksum, written: Checksum) -> Outcome {
    Outcome::Done { bytes: BYTES, read, written }
}

const QUEUED: Offered = Offered::Queued { displaced: None };

#[test]
fn an_order_has_all_that_an_executor_needs() {
    let mut tiers = Tiers::new();
    let (block, order) = tiers.ordered(1);
    let route = Route { from: BlockTier::Device, to: BlockTier::Host };
    assert_eq!((order.id.route, order.bytes, order.checksum), (route, BYTES, Some(STATED)));
    assert_eq!(
        (order.identity, order.source),
        (*block.identity(), crate::lifecycle::Block::slot(&block))
    );
    assert_eq!(order.deadline, NOW + LaneLimits::DEFAULT.transfer_timeout);
    assert_eq!(tiers.host.slot_state(order.destination), Some(SlotState::Quarantined));
    assert_eq!((route.to_string().as_str(), route.is_up()), ("device_to_host", false));
}

#[test]
fn a_verified_copy_is_registered_once_with_its_checksum() {
    let mut tiers = Tiers::new();
    let (block, order) = tiers.ordered(1);
    drop(block);
    assert_eq!(tiers.device.stats().active, 1, "the source is kept until the end");
    assert!(!tiers.is_below(1), "not before the end");
    let later = NOW + Duration::from_secs(2);
    let settled = tiers.lane.finish(order.id, done(STATED, STATED), later).expect("it is settled");
    assert_eq!((settled.verdict, settled.took), (Verdict::Committed, Duration::from_secs(2)));
    let copy = settled.copy.expect("a copy");
    assert_eq!(
        (copy.tier(), copy.slot(), copy.checksum()),
        (BlockTier::Host, order.destination, Some(STATED))
    );
    assert_eq!(tiers.device.stats().active, 0);
    assert!(tiers.lane.finish(order.id, done(STATED, STATED), later).is_none(), "once");
    let stats = tiers.lane.stats();
    assert_eq!((stats.committed, stats.committed_bytes, stats.unknown), (1, BYTES, 1));
    assert_eq!(tiers.host.stats().registrations, 1);
}

/// The first known checksum of a block also applies to its source.
#[test]
fn a_checksum_that_nobody_stated_is_the_one_that_was_read() {
    let mut tiers = Tiers::new();
    let block = tiers.block(1, None);
    tiers.lane.offer(&block, Priority(0));
    let order = tiers.lane.start(NOW)[0];
    assert_eq!(order.checksum, None);
    let settled = tiers.lane.finish(order.id, done(STATED, STATED), NOW).expect("it is settled");
    assert_eq!(settled.copy.expect("a copy").checksum(), Some(STATED));
    assert_eq!(block.checksum(), Some(STATED));
}

/// Each outcome other than a complete, correct copy registers no copy and frees the slot. The source is kept, unless
/// the source itself is wrong.
#[test]
fn nothing_else_is_registered() {
    let corrupt = |side| Verdict::Corrupt { side };
    let cases = [
        (Outcome::Short { bytes: 9 }, Verdict::Short { bytes: 9 }, true),
        (
            Outcome::Done { bytes: BYTES - 1, read: STATED, written: STATED },
            Verdict::Short { bytes: BYTES - 1 },
            true,
        ),
        (
            Outcome::Done { bytes: BYTES + 1, read: STATED, written: STATED },
            Verdict::Short { bytes: BYTES + 1 },
            true,
        ),
        (Outcome::Cancelled, Verdict::Cancelled, true),
        (
            Outcome::Failed { failure: Failure::NoSpace },
            Verdict::Failed { failure: Failure::NoSpace },
            true,
        ),
        (Outcome::Failed { failure: Failure::Io }, Verdict::Failed { failure: Failure::Io }, true),
        (done(STATED, WRONG), corrupt(Side::Destination), true),
        (Outcome::Corrupt { side: Side::Destination }, corrupt(Side::Destination), true),
        (done(WRONG, WRONG), corrupt(Side::Source), false),
        (done(WRONG, STATED), corrupt(Side::Source), false),
        (Outcome::Corrupt { side: Side::Source }, corrupt(Side::Source), false),
    ];
    for (outcome, verdict, is_source_kept) in cases {
        let mut tiers = Tiers::new();
        let (block, order) = tiers.ordered(1);
        let settled = tiers.lane.finish(order.id, outcome, NOW).expect("it is settled");
        assert_eq!(settled.verdict, verdict);
        assert!(settled.copy.is_none());
        assert!(!tiers.is_below(1));
        assert_eq!(tiers.host.stats().free, 4, "{outcome:?}");
        assert_eq!(block.is_registered(), is_source_kept, "{outcome:?}");
        let stats = tiers.lane.stats();
        assert_eq!(stats.committed + stats.queued + stats.in_flight, 0, "nothing is tried again");
        assert_eq!(stats.failed + stats.corrupt + stats.cancelled, 1);
    }
}

#[test]
fn a_cancelled_transfer_keeps_its_slots_until_it_has_stopped() {
    let mut tiers = Tiers::new();
    let (block, order) = tiers.ordered(1);
    drop(block);
    assert!(tiers.lane.cancel(order.id));
    assert!(!tiers.lane.cancel(order.id), "once");
    assert_eq!(tiers.host.slot_state(order.destination), Some(SlotState::Quarantined));
    assert_eq!(tiers.device.slot_state(order.source), Some(SlotState::Active));
    let stats = tiers.lane.stats();
    assert_eq!((stats.in_flight, stats.cancelling, stats.in_flight_bytes), (1, 1, BYTES));
    let settled = tiers.lane.finish(order.id, done(STATED, STATED), NOW).expect("it is settled");
    assert_eq!(settled.verdict, Verdict::Late);
    assert!(!tiers.is_below(1));
    assert_eq!(tiers.host.slot_state(order.destination), Some(SlotState::Free));
    assert_eq!(tiers.device.slot_state(order.source), Some(SlotState::Inactive));
    assert_eq!(tiers.lane.stats().late, 1);
}

#[test]
fn time_cancels() {
    let mut tiers = Tiers::new();
    let (_block, order) = tiers.ordered(1);
    assert_eq!(tiers.lane.next_deadline(), Some(order.deadline));
    assert_eq!(tiers.lane.expire(order.deadline - Duration::from_nanos(1)), []);
    assert_eq!(tiers.lane.expire(order.deadline), [order.id]);
    assert_eq!(tiers.lane.expire(order.deadline), []);
    assert_eq!(tiers.lane.next_deadline(), None);
    let settled = tiers.lane.finish(order.id, Outcome::Cancelled, NOW).expect("it is settled");
    assert_eq!(settled.verdict, Verdict::Cancelled);
}

#[test]
fn a_block_is_cancelled_wherever_it_is() {
    let mut tiers = Tiers::new();
    let (_first, order) = tiers.ordered(1);
    let second = tiers.block(2, Some(STATED));
    tiers.lane.offer(&second, Priority(0));
    assert_eq!(tiers.lane.cancel_block(identity(2).sequence), None);
    assert_eq!(tiers.lane.stats().queued, 0);
    assert_eq!(tiers.lane.cancel_block(identity(1).sequence), Some(order.id));
    assert_eq!(tiers.lane.cancel_block(identity(3).sequence), None);
}

#[test]
fn what_is_below_or_on_its_way_is_not_offered_again() {
    let mut tiers = Tiers::new();
    let block = tiers.block(1, Some(STATED));
    assert_eq!(tiers.lane.offer(&block, Priority(0)), QUEUED);
    assert_eq!(tiers.lane.offer(&block, Priority(0)), Offered::Pending);
    let order = tiers.lane.start(NOW)[0];
    assert_eq!(tiers.lane.offer(&block, Priority(0)), Offered::Pending);
    let settled = tiers.lane.finish(order.id, done(STATED, STATED), NOW);
    assert_eq!(tiers.lane.offer(&block, Priority(0)), Offered::Present);
    assert_eq!(tiers.lane.request(block, Priority(0)), Offered::Present);
    assert_eq!(tiers.lane.stats().skipped_present, 4);
    drop(settled);
}

#[test]
fn higher_priorities_go_first_and_displace_lower_ones() {
    let limits = LaneLimits { queued_blocks_max: 2, batch_blocks_max: 1, ..LaneLimits::DEFAULT };
    let mut tiers = tiers(limits, None);
    let blocks: Vec<_> = (1..=4).map(|local| tiers.block(local, None)).collect();
    assert_eq!(tiers.lane.offer(&blocks[0], Priority(1)), QUEUED);
    assert_eq!(tiers.lane.offer(&blocks[1], Priority(1)), QUEUED);
    assert_eq!(tiers.lane.offer(&blocks[2], Priority(1)), Offered::QueueFull);
    let displaced = Some(identity(2));
    assert_eq!(tiers.lane.offer(&blocks[3], Priority(2)), Offered::Queued { displaced });
    let order: Vec<_> = (0..3).flat_map(|_| tiers.lane.start(NOW)).map(|at| at.identity).collect();
    assert_eq!(order, [identity(4), identity(1)]);
    assert_eq!(tiers.lane.stats().skipped_full, 2);
}

#[test]
fn transfers_bytes_and_batches_are_limited() {
    let by_count = LaneLimits { in_flight_transfers_max: 3, ..LaneLimits::DEFAULT };
    let by_bytes = LaneLimits { in_flight_bytes_max: 3 * BYTES + 1, ..LaneLimits::DEFAULT };
    for limits in [by_count, by_bytes] {
        let mut tiers = tiers(LaneLimits { batch_blocks_max: 2, ..limits }, None);
        for local in 1..=4 {
            let block = tiers.block(local, None);
            tiers.lane.offer(&block, Priority(0));
        }
        let first = tiers.lane.start(NOW);
        assert_eq!(first.len(), 2);
        assert_eq!(tiers.lane.start(NOW).len(), 1);
        assert_eq!(tiers.lane.start(NOW).len(), 0);
        let settled = tiers.lane.finish(first[0].id, Outcome::Cancelled, NOW);
        assert_eq!(settled.map(|settled| settled.verdict), Some(Verdict::Cancelled));
        assert_eq!(tiers.lane.start(NOW).len(), 1);
    }
}

#[test]
fn an_offer_keeps_nothing_and_a_request_keeps_its_block() {
    let mut tiers = Tiers::new();
    let offered = tiers.block(1, None);
    tiers.lane.offer(&offered, Priority(0));
    drop(offered);
    let requested = tiers.block(2, None);
    tiers.lane.request(requested, Priority(0));
    let all = tiers.device.get_mutable_blocks(7).expect("all but the one that is kept");
    let order: Vec<_> = tiers.lane.start(NOW).into_iter().map(|order| order.identity).collect();
    assert_eq!(order, [identity(2)]);
    assert_eq!(tiers.lane.stats().gone, 1);
    drop(all);
}

#[test]
fn a_destination_without_room_is_waited_for() {
    let mut tiers = Tiers::new();
    let (_block, order) = tiers.ordered(1);
    let settled = tiers.lane.finish(order.id, Outcome::Cancelled, NOW);
    let all = tiers.host.get_mutable_blocks(4).expect("all");
    let block = tiers.block(1, None);
    tiers.lane.offer(&block, Priority(0));
    assert_eq!(tiers.lane.start(NOW), []);
    assert_eq!((tiers.lane.stats().queued, tiers.lane.stats().no_room), (1, 1));
    drop((all, settled));
    assert_eq!(tiers.lane.start(NOW).len(), 1);
}

/// A dropped lane may have transfers in flight: their slots are never used again.
#[test]
fn a_plan_that_goes_leaves_written_slots_alone() {
    let mut tiers = Tiers::new();
    let (_block, order) = tiers.ordered(1);
    drop(tiers.lane);
    assert_eq!(tiers.host.slot_state(order.destination), Some(SlotState::Quarantined));
    assert_eq!(tiers.host.stats().abandoned, 1);
}

#[test]
fn a_count_doubles_with_each_offer_and_decays_with_each_tick() {
    let mut filter = FrequencyFilter::new(2, 2);
    let hash = |local| identity(local).sequence;
    assert!(!filter.admit(hash(1)));
    assert!(filter.admit(hash(1)));
    assert!(filter.admit(hash(1)));
    assert_eq!(filter.count(hash(1)), 4);
    filter.decay();
    assert_eq!(filter.count(hash(1)), 3);
    assert!(!filter.admit(hash(2)));
    assert!(!filter.admit(hash(3)), "2 gave way to it");
    assert_eq!((filter.len(), filter.count(hash(2))), (2, 0));
    for _ in 0..3 {
        filter.decay();
    }
    assert!(filter.is_empty());
    for _ in 0..100 {
        filter.admit(hash(1));
    }
    assert!(filter.count(hash(1)) <= 1 << 20);
}

#[test]
fn the_filter_lets_through_what_comes_again() {
    let mut tiers = tiers(LaneLimits::DEFAULT, Some(FrequencyFilter::new(2, 100)));
    let block = tiers.block(1, None);
    assert_eq!(tiers.lane.offer(&block, Priority(0)), Offered::Infrequent);
    assert_eq!(tiers.lane.offer(&block, Priority(0)), QUEUED);
    let other = tiers.block(2, None);
    assert_eq!(tiers.lane.offer(&other, Priority(0)), Offered::Infrequent);
    tiers.lane.decay();
    assert_eq!(tiers.lane.offer(&other, Priority(0)), Offered::Infrequent, "it was forgotten");
    assert_eq!(tiers.lane.request(other, Priority(0)), QUEUED, "a request is not filtered");
}

/// Lanes of all tiers: a copy continues downwards automatically, and upwards on request. Upward transfers start first.
#[test]
fn a_plan_leads_down_and_up() {
    let events = EventManager::new(1_000);
    let config = PoolConfig::new(4, 4);
    let device = BlockPool::<Device>::new(config, Arc::clone(&events)).expect("a pool");
    let host = BlockPool::<Host>::new(config, Arc::clone(&events)).expect("a pool");
    let disk = BlockPool::<Disk>::new(config, events).expect("a pool");
    let mut plan = Plan::new();
    plan.add_lane::<Device, Host>(host.clone(), BYTES, LaneLimits::DEFAULT, None);
    plan.add_lane::<Host, Disk>(disk.clone(), BYTES, LaneLimits::DEFAULT, None);
    plan.add_lane::<Host, Device>(device.clone(), BYTES, LaneLimits::DEFAULT, None);
    plan.add_lane::<Disk, Host>(host.clone(), BYTES, LaneLimits::DEFAULT, None);
    assert_eq!(
        (plan.below(BlockTier::Host), plan.above(BlockTier::Host)),
        (Some(BlockTier::Disk), Some(BlockTier::Device))
    );
    assert_eq!((plan.below(BlockTier::Disk), plan.above(BlockTier::Device)), (None, None));
    let block = device.get_mutable_block().expect("a block");
    let block = block.complete(identity(1)).expect("it is consistent");
    let block = block.with_checksum(Some(STATED)).register().expect("it registers").into_block();
    assert_eq!(plan.offload(Device::wrap(block), Priority(0)), QUEUED);
    let mut seen = Vec::new();
    for _ in 0..2 {
        for order in plan.start(NOW) {
            seen.push(order.id.route.to_string());
            let settled = plan.finish(order.id, done(STATED, STATED), NOW).expect("it is settled");
            assert_eq!(settled.verdict, Verdict::Committed);
        }
    }
    assert_eq!(seen, ["device_to_host", "host_to_disk"]);
    assert_eq!((device.reset_inactive().len(), host.reset_inactive().len()), (1, 1));
    let found = disk.match_prefix(&[identity(1).sequence]).pop().expect("it is on disk");
    let on_disk = TierBlock::Disk(found);
    assert_eq!(on_disk.identity(), &identity(1));
    assert_eq!(plan.onboard(on_disk.clone(), Priority(0)), QUEUED);
    assert_eq!(plan.offload(on_disk, Priority(0)), Offered::NoLane);
    let order = plan.start(NOW)[0];
    assert_eq!(order.id.route.to_string(), "disk_to_host");
    let settled = plan.finish(order.id, done(STATED, STATED), NOW).expect("it is settled");
    let copy = settled.copy.expect("a copy");
    assert_eq!(plan.onboard(copy, Priority(0)), QUEUED);
    assert_eq!(plan.start(NOW)[0].id.route.to_string(), "host_to_device");
    assert_eq!(plan.stats().values().map(|lane| lane.committed).sum::<u64>(), 3);
    assert_eq!(plan.routes().count(), 4);
}
