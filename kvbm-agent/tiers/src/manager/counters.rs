//! Counters of the block manager.

use super::metrics::{CommitCounts, OnboardCounts, SessionCounts, TransferCounts};
use kvasir_blocks::BlockTier;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that only increases.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(super) fn add_len(&self, count: usize) {
        self.add(u64::try_from(count).unwrap_or(u64::MAX));
    }

    pub(super) fn up(&self) {
        self.add(1);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// All counters of a block manager.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) sessions_opened: Counter,
    pub(super) sessions_lost: Counter,
    pub(super) leases: Counter,
    pub(super) leases_over: Counter,
    pub(super) leases_aborted: Counter,
    pub(super) commits_new: Counter,
    pub(super) commits_duplicate: Counter,
    pub(super) commits_existing: Counter,
    pub(super) commits_refused: Counter,
    pub(super) onboard_requests: Counter,
    pub(super) onboard_in_memory: Counter,
    pub(super) onboard_loaded: Counter,
    pub(super) onboard_missing: Counter,
    pub(super) onboard_corrupt: Counter,
    pub(super) onboard_unreadable: Counter,
    pub(super) onboard_timed_out: Counter,
    pub(super) onboard_given_up: Counter,
    pub(super) reads_verified: Counter,
    pub(super) unreadable: Counter,
    pub(super) executor_refusals: Counter,
    pub(super) erased: Counter,
    pub(super) erase_failures: Counter,
    pub(super) restored: Counter,
    pub(super) restored_in_volume: Counter,
    pub(super) restore_refused: Counter,
    pub(super) damaged_records: Counter,
    corrupt: [Counter; BlockTier::COUNT],
}

impl Counters {
    /// Returns the counter of corrupt blocks found in a tier.
    pub(super) fn corrupt(&self, tier: BlockTier) -> &Counter {
        let [device, host, disk, volume] = &self.corrupt;
        match tier {
            BlockTier::Device => device,
            BlockTier::Host => host,
            BlockTier::Disk => disk,
            BlockTier::Volume => volume,
        }
    }

    pub(super) fn sessions(&self, open: usize) -> SessionCounts {
        SessionCounts {
            open: u64::try_from(open).unwrap_or(u64::MAX),
            opened: self.sessions_opened.get(),
            lost: self.sessions_lost.get(),
            leases: self.leases.get(),
            leases_over: self.leases_over.get(),
            leases_aborted: self.leases_aborted.get(),
        }
    }

    pub(super) fn commits(&self) -> CommitCounts {
        CommitCounts {
            new: self.commits_new.get(),
            duplicate: self.commits_duplicate.get(),
            existing: self.commits_existing.get(),
            refused: self.commits_refused.get(),
        }
    }

    pub(super) fn onboards(&self) -> OnboardCounts {
        OnboardCounts {
            requests: self.onboard_requests.get(),
            blocks_in_memory: self.onboard_in_memory.get(),
            blocks_loaded: self.onboard_loaded.get(),
            stopped_missing: self.onboard_missing.get(),
            stopped_corrupt: self.onboard_corrupt.get(),
            stopped_unreadable: self.onboard_unreadable.get(),
            stopped_timed_out: self.onboard_timed_out.get(),
            stopped_given_up: self.onboard_given_up.get(),
        }
    }

    pub(super) fn transfers(&self) -> TransferCounts {
        TransferCounts {
            reads_verified: self.reads_verified.get(),
            unreadable: self.unreadable.get(),
            executor_refusals: self.executor_refusals.get(),
            erased: self.erased.get(),
            erase_failures: self.erase_failures.get(),
            restored: self.restored.get(),
            restored_in_volume: self.restored_in_volume.get(),
            restore_refused: self.restore_refused.get(),
            damaged_records: self.damaged_records.get(),
        }
    }
}
