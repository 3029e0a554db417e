//! Figures as plain values, for whoever publishes them.

use kvasir_blocks::{BlockTier, ManagerStats};
use std::collections::BTreeMap;

/// Sessions and leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SessionCounts {
    /// Sessions that are open now.
    pub open: u64,
    /// Sessions ever opened.
    pub opened: u64,
    /// Of these, sessions that were dropped without being ended.
    pub lost: u64,
    /// Slots ever leased.
    pub leases: u64,
    /// Leases that ended by themselves.
    pub leases_over: u64,
    /// Leases that the engine gave back.
    pub leases_aborted: u64,
}

/// Blocks that engines committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitCounts {
    /// The first of their content.
    pub new: u64,
    /// Second ones that kept their slots.
    pub duplicate: u64,
    /// Second ones whose slots were free at once.
    pub existing: u64,
    /// Refused.
    pub refused: u64,
}

/// Blocks that engines asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OnboardCounts {
    /// Requests.
    pub requests: u64,
    /// Blocks that were in the engines' memory already.
    pub blocks_in_memory: u64,
    /// Blocks that were brought up, and verified.
    pub blocks_loaded: u64,
    /// Requests that stopped at a block that is in no tier.
    pub stopped_missing: u64,
    /// Requests that stopped at a block with wrong bytes.
    pub stopped_corrupt: u64,
    /// Requests that stopped at a block that can't be read.
    pub stopped_unreadable: u64,
    /// Requests that stopped because their time was over.
    pub stopped_timed_out: u64,
    /// Requests that stopped for another reason: too much waits, or the session holds too much.
    pub stopped_given_up: u64,
}

/// What the driver did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TransferCounts {
    /// Blocks whose bytes were verified for a read.
    pub reads_verified: u64,
    /// Blocks that were withdrawn because they could not be read.
    pub unreadable: u64,
    /// Transfers that an executor refused: a defect of its limits.
    pub executor_refusals: u64,
    /// Records erased.
    pub erased: u64,
    /// Records that could not be erased, and are tried again.
    pub erase_failures: u64,
    /// Blocks of the disk that were there before the start, and were registered.
    pub restored: u64,
    /// Blocks of the volume that an earlier start or another agent had stored, and were registered.
    pub restored_in_volume: u64,
    /// Blocks of the disk that were found and not taken.
    pub restore_refused: u64,
    /// Records of the disk that were damaged.
    pub damaged_records: u64,
}

/// What waits for a storage's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Transfers.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Figures of a manager at one moment.
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
    /// Times that wrong bytes were found, by the tier that they were in.
    pub corrupt: BTreeMap<BlockTier, u64>,
    /// What waits for each storage's threads.
    pub waits: BTreeMap<BlockTier, Waits>,
}
