use crate::identity::BlockIdentity;
use std::time::Duration;

/// What a lane may have at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// Blocks that wait.
    pub queued_blocks_max: usize,
    /// Transfers that one call orders.
    pub batch_blocks_max: usize,
    /// Transfers that have not ended, cancelled ones included.
    pub in_flight_transfers_max: usize,
    /// Bytes of these.
    pub in_flight_bytes_max: u64,
    /// Time after which a transfer is cancelled.
    pub transfer_timeout: Duration,
}

impl LaneLimits {
    /// 4,096 blocks waiting, 16 a batch, 64 transfers and 256 MiB in flight, 30 s each.
    pub const DEFAULT: Self = Self {
        queued_blocks_max: 4_096,
        batch_blocks_max: 16,
        in_flight_transfers_max: 64,
        in_flight_bytes_max: 256 << 20,
        transfer_timeout: Duration::from_secs(30),
    };
}

/// What became of a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offered {
    /// It waits.
    Queued {
        /// What gave way to it.
        displaced: Option<BlockIdentity>,
    },
    /// The destination has it already.
    Present,
    /// It waits already, or is on its way.
    Pending,
    /// It was not offered often enough.
    Infrequent,
    /// The queue is full of blocks that are as important.
    QueueFull,
    /// There is no such lane, or the block is of another tier.
    NoLane,
}

/// Gauges and counters of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneStats {
    /// Blocks that wait.
    pub queued: u64,
    /// Transfers that have not ended.
    pub in_flight: u64,
    /// Of these, transfers that were cancelled.
    pub cancelling: u64,
    /// Bytes of transfers that have not ended.
    pub in_flight_bytes: u64,
    /// Blocks ever queued.
    pub offered: u64,
    /// Offers of blocks that the destination had, or that were pending.
    pub skipped_present: u64,
    /// Offers that came too seldom.
    pub skipped_infrequent: u64,
    /// Blocks that found no place in the queue, or lost it.
    pub skipped_full: u64,
    /// Blocks that were evicted while they waited.
    pub gone: u64,
    /// Times that the destination had no room.
    pub no_room: u64,
    /// Transfers ever ordered.
    pub ordered: u64,
    /// Copies registered.
    pub committed: u64,
    /// Bytes of these.
    pub committed_bytes: u64,
    /// Transfers that failed or ended short.
    pub failed: u64,
    /// Transfers with wrong bytes.
    pub corrupt: u64,
    /// Transfers that were cancelled and stopped.
    pub cancelled: u64,
    /// Transfers that came to their end after they were cancelled.
    pub late: u64,
    /// Copies that their pool refused.
    pub refused: u64,
    /// Outcomes of transfers that are not in flight.
    pub unknown: u64,
}
