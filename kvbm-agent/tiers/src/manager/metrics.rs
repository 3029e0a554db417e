//! Metrics of the block manager as plain values, for exporters.

use kvasir_blocks::{BlockTier, ManagerStats};
use std::collections::BTreeMap;

/// Counts of sessions and leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionCounts {
    /// Open sessions.
    pub open: u64,
    /// Sessions opened since the start.
    pub opened: u64,
    /// Sessions that were dropped without being ended.
    pub lost: u64,
    /// Slots leased since the start.
    pub leases: u64,
    /// Leases that expired.
    pub leases_over: u64,
    /// Leases that engines released without a commit.
    pub leases_aborted: u64,
}

/// Blocks that engines committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitCounts {
    /// Blocks that are the first with their content.
    pub new: u64,
    /// Duplicates that kept their slots.
    pub duplicate: u64,
    /// Duplicates whose slots were freed immediately.
    pub existing: u64,
    /// Refused commits.
    pub refused: u64,
}

/// Counts of onboard requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnboardCounts {
    /// Onboard requests.
    pub requests: u64,
    /// Requested blocks that were already in the engines' memory.
    pub blocks_in_memory: u64,
    /// Blocks that were loaded and verified.
    pub blocks_loaded: u64,
    /// Requests that stopped at a block that is in no tier.
    pub stopped_missing: u64,
    /// Requests that stopped at a block with wrong bytes.
    pub stopped_corrupt: u64,
    /// Requests that stopped at a block that can't be read.
    pub stopped_unreadable: u64,
    /// Requests that timed out.
    pub stopped_timed_out: u64,
    /// Requests that stopped for another reason: too many queued transfers, or the session's limit.
    pub stopped_given_up: u64,
}

/// Counts of the driver's transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferCounts {
    /// Blocks verified for a read.
    pub reads_verified: u64,
    /// Blocks withdrawn because they could not be read.
    pub unreadable: u64,
    /// Transfers that an executor refused, which is a bug in its limits.
    pub executor_refusals: u64,
    /// Records erased.
    pub erased: u64,
    /// Failed attempts to erase a record. They are retried.
    pub erase_failures: u64,
    /// Blocks found on the disk at the start and registered.
    pub restored: u64,
    /// Blocks of the volume, stored by an earlier start or another agent, that were registered.
    pub restored_in_volume: u64,
    /// Blocks found on the disk and refused.
    pub restore_refused: u64,
    /// Damaged records on the disk.
    pub damaged_records: u64,
}

/// Queued transfers of one storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Number of transfers.
    pub blocks: u64,
    /// Bytes of the transfers.
    pub bytes: u64,
}

/// Metrics of a block manager at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagerMetrics {
    /// Pools, lanes and events.
    pub blocks: ManagerStats,
    /// Sessions and leases.
    pub sessions: SessionCounts,
    /// Commits.
    pub commits: CommitCounts,
    /// Onboards.
    pub onboards: OnboardCounts,
    /// Transfers, erased records, restored blocks.
    pub transfers: TransferCounts,
    /// Corrupt blocks found, by their tier.
    pub corrupt: BTreeMap<BlockTier, u64>,
    /// Queued transfers of each storage.
    pub waits: BTreeMap<BlockTier, Waits>,
}
