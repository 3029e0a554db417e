//! State shared by sessions and the driver.

use super::config::ManagerConfig;
use super::counters::Counters;
use super::leases::{Held, Lease};
use super::memory::EngineMemory;
use super::metrics::{ManagerMetrics, Waits};
use super::waiters::Waiters;
use kvasir_blocks::{BlockTier, KvBlockManagerState, Offered, Priority, TierBlock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// A practically infinite wait, because an [`Instant`] has no infinity.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The moment `wait` after another one.
pub(super) fn after(moment: Instant, wait: Duration) -> Instant {
    moment.checked_add(wait).unwrap_or_else(|| moment + FOREVER)
}

/// Pools, memory, counters, and the signal that wakes the driver.
pub(super) struct Shared {
    pub(super) config: ManagerConfig,
    pub(super) state: KvBlockManagerState,
    pub(super) memory: EngineMemory,
    pub(super) waiters: Arc<Waiters>,
    pub(super) counters: Counters,
    /// Wakes the driver.
    pub(super) wake: Notify,
    /// Leases of lost sessions, until their grace ends.
    pub(super) orphans: Mutex<Vec<Lease>>,
    pub(super) waits: Mutex<BTreeMap<BlockTier, Waits>>,
    pub(super) is_feed_taken: AtomicBool,
    is_stopping: AtomicBool,
    began: Instant,
}

impl fmt::Debug for Shared {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.debug_struct("Shared").field("memory", &self.memory.tier()).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(
        config: ManagerConfig,
        state: KvBlockManagerState,
        memory: EngineMemory,
    ) -> Arc<Self> {
        Arc::new(Self {
            config,
            state,
            memory,
            waiters: Arc::default(),
            counters: Counters::default(),
            wake: Notify::new(),
            orphans: Mutex::default(),
            waits: Mutex::default(),
            is_feed_taken: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            began: Instant::now(),
        })
    }

    /// Time since the manager's start, which is the clock of the pools.
    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(super) fn begin_stopping(&self) {
        self.is_stopping.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        usize::try_from(self.state.block().bytes()).unwrap_or(usize::MAX)
    }

    /// Offers a block of the engines' memory to the next lower tier, if offloading is enabled.
    pub(super) fn offer_block(&self, block: &TierBlock, priority: Priority) {
        if !self.config.is_offloading {
            return;
        }
        let offered = match block {
            TierBlock::Device(block) => self.state.offload(block, priority),
            TierBlock::Host(block) => self.state.offload(block, priority),
            TierBlock::Disk(_) | TierBlock::Volume(_) => return,
        };
        // Other results need no work of the driver.
        if matches!(offered, Offered::Queued { .. }) {
            self.wake.notify_one();
        }
    }

    /// Counts and logs wrong bytes found in a tier. The caller withdraws the block.
    pub(super) fn report_corrupt(&self, block: &TierBlock) {
        let tier = block.tier();
        self.counters.corrupt(tier).up();
        let sequence = block.identity().sequence;
        tracing::error!(%tier, %sequence, slot = block.slot().0, "block has wrong bytes, withdrawn");
    }

    /// Releases a block that a session held, and wakes the driver, because the slot may be free.
    pub(super) fn release(&self, held: Held) {
        drop(held);
        self.wake.notify_one();
    }

    pub(super) fn metrics(&self, open_sessions: usize) -> ManagerMetrics {
        let corrupt = |tier| (tier, self.counters.corrupt(tier).get());
        ManagerMetrics {
            blocks: self.state.stats(),
            sessions: self.counters.sessions(open_sessions),
            commits: self.counters.commits(),
            onboards: self.counters.onboards(),
            transfers: self.counters.transfers(),
            corrupt: BlockTier::ALL.into_iter().map(corrupt).collect(),
            waits: self.waits.lock().clone(),
        }
    }
}
