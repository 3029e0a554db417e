use crate::identity::BlockIdentity;
use std::time::Duration;

/// Limits of one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneLimits {
    /// Maximum queued blocks.
    pub queued_blocks_max: usize,
    /// Maximum transfers that one call starts.
    pub batch_blocks_max: usize,
    /// Maximum unfinished transfers, including cancelled ones.
    pub in_flight_transfers_max: usize,
    /// Maximum bytes of all unfinished transfers.
    pub in_flight_bytes_max: u64,
    /// Timeout after which a transfer is cancelled.
    pub transfer_timeout: Duration,
}

impl LaneLimits {
    /// 4,096 queued blocks, 16 per batch, 64 transfers and 256 MiB in flight, 30 s per transfer.
    pub const DEFAULT: Self = Self {
        queued_blocks_max: 4_096,
        batch_blocks_max: 16,
        in_flight_transfers_max: 64,
        in_flight_bytes_max: 256 << 20,
        transfer_timeout: Duration::from_secs(30),
    };
}

/// The result of offering a block to a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Offered {
    /// The block was queued.
    Queued {
        /// The block with lower priority that it displaced from a full queue.
        displaced: Option<BlockIdentity>,
    },
    /// The destination has the block already.
    Present,
    /// The block is queued or in transfer already.
    Pending,
    /// The block was not offered often enough.
    Infrequent,
    /// The queue is full, and no queued block has a lower priority.
    QueueFull,
    /// There is no lane for this route, or the block is of another tier.
    NoLane,
}

/// Gauges and counters of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LaneStats {
    /// Blocks in the queue.
    pub queued: u64,
    /// Unfinished transfers, including cancelled ones.
    pub in_flight: u64,
    /// Unfinished transfers that were cancelled.
    pub cancelling: u64,
    /// Bytes of unfinished transfers.
    pub in_flight_bytes: u64,
    /// Blocks queued since the start.
    pub offered: u64,
    /// Offers of blocks that the destination had, or that were queued or in transfer.
    pub skipped_present: u64,
    /// Offers that the frequency filter rejected.
    pub skipped_infrequent: u64,
    /// Blocks that a full queue rejected or displaced.
    pub skipped_full: u64,
    /// Blocks that were evicted while queued.
    pub gone: u64,
    /// How often the destination had no free slot.
    pub no_room: u64,
    /// Transfers started.
    pub ordered: u64,
    /// Copies registered.
    pub committed: u64,
    /// Bytes of registered copies.
    pub committed_bytes: u64,
    /// Transfers that failed or were incomplete.
    pub failed: u64,
    /// Transfers with wrong bytes.
    pub corrupt: u64,
    /// Cancelled transfers that stopped before their end.
    pub cancelled: u64,
    /// Cancelled transfers that completed nevertheless.
    pub late: u64,
    /// Copies that the destination pool refused to register.
    pub refused: u64,
    /// Outcomes of unknown transfers.
    pub unknown: u64,
}
