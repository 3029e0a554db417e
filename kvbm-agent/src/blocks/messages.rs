//! Converts the manager's values to and from the wire.

use kvasir_blocks::{
    BlockIdentity, BlockTier, GateVerdict, LaneStats, Offered, PinId, PoolStats, Route,
};
use kvasir_proto::convert::{BlockKey, NamedPin};
use kvasir_proto::pb;
use kvasir_tiers::manager::{
    CommitError, CommitKind, Committed, HeldBlock, Pin, PinError, ReadError, StopReason,
};
use std::time::Duration;

pub(super) const fn tier(tier: BlockTier) -> pb::BlockTier {
    match tier {
        BlockTier::Device => pb::BlockTier::Device,
        BlockTier::Host => pb::BlockTier::Host,
        BlockTier::Disk => pb::BlockTier::Disk,
        BlockTier::Volume => pb::BlockTier::Volume,
    }
}

fn read_tier(tier: pb::BlockTier) -> Option<BlockTier> {
    BlockTier::ALL.into_iter().find(|known| self::tier(*known) == tier)
}

pub(super) const fn read_key(key: &BlockKey) -> BlockIdentity {
    let BlockKey { sequence, parent, local, position } = *key;
    BlockIdentity { sequence, parent, local, position }
}

/// Converts a held block.
pub(super) fn held(block: &HeldBlock) -> pb::HeldBlock {
    let BlockIdentity { sequence, parent, local, position } = block.identity;
    pb::HeldBlock {
        slot: block.slot.0,
        identity: Some(pb::BlockIdentity {
            sequence_hash: sequence.0,
            parent: parent.map(|parent| parent.0),
            local_hash: local.0,
            position,
        }),
        checksum: block.checksum.0,
        found_in: tier(block.found_in).into(),
    }
}

pub(super) fn all_held(blocks: &[HeldBlock]) -> Vec<pb::HeldBlock> {
    blocks.iter().map(held).collect()
}

/// Converts a committed block, with the outcome `New`, `Duplicate` or `Existing`.
pub(super) fn committed(committed: &Committed) -> pb::CommittedBlock {
    let outcome = match committed.kind {
        CommitKind::New => pb::CommitOutcome::New,
        CommitKind::Duplicate => pb::CommitOutcome::Duplicate,
        CommitKind::Existing => pb::CommitOutcome::Existing,
    };
    let block = Some(held(&committed.block));
    pb::CommittedBlock { outcome: outcome.into(), block, error: String::new() }
}

/// Converts the error of a block that was not committed: `ChecksumMismatch`, `LeaseOver`, `Limit` or `Refused`. Other
/// blocks of the request may be committed.
pub(super) fn not_committed(error: &CommitError) -> pb::CommittedBlock {
    let outcome = match error {
        CommitError::Checksum { .. } => pb::CommitOutcome::ChecksumMismatch,
        CommitError::LeaseOver { .. } | CommitError::NotLeased { .. } | CommitError::Session(_) => {
            pb::CommitOutcome::LeaseOver
        }
        CommitError::Limit { .. } => pb::CommitOutcome::Limit,
        CommitError::Identity | CommitError::Register(_) | CommitError::Unreadable { .. } => {
            pb::CommitOutcome::Refused
        }
    };
    pb::CommittedBlock { outcome: outcome.into(), block: None, error: error.to_string() }
}

/// Converts the reason why an onboard stopped. Also returns the tier of a corrupt or unreadable copy.
pub(super) const fn fault(reason: StopReason) -> (pb::BlockFault, Option<BlockTier>) {
    match reason {
        StopReason::Missing => (pb::BlockFault::Missing, None),
        StopReason::Corrupt { tier } => (pb::BlockFault::Corrupt, Some(tier)),
        StopReason::Unreadable { tier } => (pb::BlockFault::Unreadable, Some(tier)),
        StopReason::TimedOut => (pb::BlockFault::TimedOut, None),
        StopReason::Busy => (pb::BlockFault::Busy, None),
        StopReason::Limit => (pb::BlockFault::Limit, None),
        StopReason::Stopping => (pb::BlockFault::Stopping, None),
    }
}

/// Fault of a held block's bytes; `None` if the request is wrong.
pub(super) const fn read_fault(error: &ReadError) -> Option<pb::BlockFault> {
    match error {
        ReadError::Corrupt { .. } => Some(pb::BlockFault::Corrupt),
        ReadError::Unreadable { .. } => Some(pb::BlockFault::Unreadable),
        ReadError::Session(_) | ReadError::NotHeld { .. } | ReadError::Access(_) => None,
    }
}

/// Converts the answer to an offload request.
pub(super) const fn offload_outcome(offered: &Offered) -> pb::OffloadOutcome {
    match offered {
        Offered::Queued { .. } => pb::OffloadOutcome::Queued,
        Offered::Present => pb::OffloadOutcome::Present,
        Offered::Pending => pb::OffloadOutcome::Pending,
        Offered::Infrequent => pb::OffloadOutcome::Infrequent,
        Offered::QueueFull => pb::OffloadOutcome::QueueFull,
        Offered::NoLane => pb::OffloadOutcome::Nowhere,
    }
}

/// Converts the result of pinning a block: the pin, or the fault `Limit` or `Missing`.
pub(super) fn pinned(pin: Result<Pin, PinError>) -> pb::PinnedBlock {
    let fault = match pin {
        Ok(Pin { tier: at, id }) => {
            let (deadline, pin_id) = id.parts();
            let deadline_ns = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
            let pin = Some(pb::BlockPin { tier: tier(at).into(), pin_id, deadline_ns });
            return pb::PinnedBlock { pin, fault: pb::BlockFault::Unspecified.into() };
        }
        Err(PinError::Exhausted(_)) => pb::BlockFault::Limit,
        Err(PinError::Missing | PinError::Ttl { .. }) => pb::BlockFault::Missing,
    };
    pb::PinnedBlock { pin: None, fault: fault.into() }
}

pub(super) fn read_pin(pin: &NamedPin) -> Option<Pin> {
    let tier = read_tier(pin.tier)?;
    Some(Pin { tier, id: PinId::of_parts(pin.deadline, pin.number) })
}

/// Converts the recommendation to load or to compute `blocks` blocks.
pub(super) fn verdict(verdict: &GateVerdict, blocks: u32) -> pb::LoadVerdict {
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    pb::LoadVerdict {
        from: tier(verdict.inputs.route.from).into(),
        blocks,
        is_load: verdict.is_load,
        load_us: verdict.load.map(micros),
        compute_us: verdict.compute.map(micros).unwrap_or_default(),
        bytes_per_second: verdict.bytes_per_second.map(whole),
        load_bytes: verdict.inputs.load_bytes,
        queued_bytes: verdict.inputs.queued_bytes,
        tokens: verdict.inputs.tokens,
    }
}

/// The rate without its fraction. Such rates are far below the limit of the type.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates, which is what is wanted"
)]
pub(super) const fn whole(rate: f64) -> u64 {
    rate as u64
}

/// Converts the figures of a tier's pool. Slots being written include quarantined slots.
pub(super) fn pool(at: BlockTier, pool: &PoolStats, corrupt: u64) -> pb::BlockPoolStats {
    pb::BlockPoolStats {
        tier: tier(at).into(),
        blocks_max: pool.blocks,
        free: pool.free,
        writing: pool.mutable + pool.quarantined,
        active: pool.active,
        inactive: pool.inactive,
        pins: pool.pins,
        registered: pool.registrations,
        evicted: pool.evictions,
        withdrawn: pool.withdrawals,
        corrupt,
    }
}

/// Converts the figures of a route between two tiers. Late and refused copies count as failed.
pub(super) fn lane(route: Route, lane: &LaneStats, bytes_per_second: u64) -> pb::BlockLaneStats {
    pb::BlockLaneStats {
        from: tier(route.from).into(),
        to: tier(route.to).into(),
        queued: lane.queued,
        in_flight: lane.in_flight,
        committed: lane.committed,
        committed_bytes: lane.committed_bytes,
        failed: lane.failed + lane.late + lane.refused,
        corrupt: lane.corrupt,
        bytes_per_second,
    }
}
