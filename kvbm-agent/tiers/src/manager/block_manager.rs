//! The block manager: pools, storages and the driver task.

use super::config::{ManagerConfig, TierStorages};
use super::convert::restored;
use super::driver::{Driver, Left, Seats, Stop};
use super::error::{FeedTaken, PinError, SessionError, StartError};
use super::executors::Executors;
use super::feed::EventFeed;
use super::memory::EngineMemory;
use super::metrics::ManagerMetrics;
use super::records::{Record, Records};
use super::relay::Relays;
use super::session::{Seat, Session};
use super::shared::{Shared, after};
use super::waiters::Arrival;
use crate::block::Sealed;
use kvasir_blocks::{
    BlockTier, Found, GateVerdict, KvBlockManagerState, Offered, PinId, Priority, RestoreError,
    Route, SlotId, TierBlock,
};
use kvasir_memory::Arena;
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

/// A pinned block in one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pin {
    /// The tier.
    pub tier: BlockTier,
    /// Id of the pin in the tier's pool.
    pub id: PinId,
}

/// Result of a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Whether all queued transfers were finished.
    pub is_drained: bool,
    /// Transfers that were cancelled.
    pub cancelled: usize,
    /// Batches that did not stop in time. Their threads are abandoned.
    pub stuck: usize,
}

/// Block manager: pools, storages and the driver task. If it is dropped without [`shutdown`](Self::shutdown), running
/// transfers are cancelled.
#[derive(Debug)]
pub struct KvBlockManager {
    shared: Arc<Shared>,
    seats: Arc<Seats>,
    last_session: AtomicU64,
    stop: mpsc::Sender<Stop>,
    /// The driver task, `kvasir-tiers`.
    driver: Mutex<JoinSet<(Left, Executors)>>,
}

impl KvBlockManager {
    /// Starts the threads of all storages, and the driver on the current runtime. Blocks found on the disk are
    /// registered before it returns.
    ///
    /// # Errors
    /// [`StartError`] names the invalid setting.
    pub fn start(config: ManagerConfig, storages: &TierStorages) -> Result<Self, StartError> {
        let state = KvBlockManagerState::new(config.blocks.clone())?;
        storages.check(&config, state.block().bytes())?;
        let host = storages.host.as_ref().map(|host| &host.arena);
        let memory = EngineMemory::new(&state, storages.device.as_ref(), host);
        let shared = Shared::new(config, state, memory.ok_or(StartError::NoMemory)?);
        let relays = Relays::new(&shared.config, shared.block_bytes())?;
        let executors = Executors::start(&shared.config, storages)?;
        let records = restore(&shared, storages);
        let seats: Arc<Seats> = Arc::default();
        let (stop, stops) = mpsc::channel(1);
        let mut driver = JoinSet::new();
        let of_driver = Arc::clone(&shared);
        let of_seats = Arc::clone(&seats);
        driver.spawn(Driver::new(of_driver, of_seats, executors, relays, records).run(stops));
        let driver = Mutex::new(driver);
        let last_session = AtomicU64::new(0);
        Ok(Self { shared, seats, last_session, stop, driver })
    }

    /// Pools and copy plan.
    #[must_use]
    pub fn state(&self) -> &KvBlockManagerState {
        &self.shared.state
    }

    /// The tier that engines read and write.
    #[must_use]
    pub fn engine_tier(&self) -> BlockTier {
        self.shared.memory.tier()
    }

    /// The slots of the tier that engines use.
    #[must_use]
    pub fn arena(&self) -> &Arc<Arena> {
        &self.shared.memory.arena
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.shared.block_bytes()
    }

    /// Opens a session for an engine.
    ///
    /// # Errors
    /// If too many sessions are open, or the manager is stopping.
    pub fn open_session(&self, name: &str) -> Result<Session, SessionError> {
        if self.shared.is_stopping() {
            return Err(SessionError::Stopping);
        }
        let mut seats = self.seats.lock();
        seats.retain(|_, seat| seat.strong_count() > 0);
        let max = self.shared.config.sessions_max;
        if seats.len() >= max {
            return Err(SessionError::TooMany { max });
        }
        let seat = Arc::new(Seat::new(Arc::clone(&self.shared), name.to_owned()));
        let number = self.last_session.fetch_add(1, Ordering::Relaxed);
        seats.insert(number, Arc::downgrade(&seat));
        self.shared.counters.sessions_opened.up();
        Ok(Session::new(seat))
    }

    /// Returns the tiers of a prompt's leading blocks.
    #[must_use]
    pub fn find(&self, sequences: &[SequenceHash]) -> Found {
        self.shared.state.find(sequences)
    }

    fn nearest(&self, sequence: SequenceHash) -> Option<TierBlock> {
        self.shared.state.match_nearest(&[sequence]).pop()
    }

    /// Offers a block from its nearest tier to the next lower tier. Returns [`Offered::NoLane`] if no tier has the
    /// block.
    pub fn offload(&self, sequence: SequenceHash, priority: Priority) -> Offered {
        let state = &self.shared.state;
        let offered = match self.nearest(sequence) {
            None => return Offered::NoLane,
            Some(TierBlock::Device(block)) => state.offload(&block, priority),
            Some(TierBlock::Host(block)) => state.offload(&block, priority),
            Some(TierBlock::Disk(block)) => state.offload(&block, priority),
            Some(TierBlock::Volume(block)) => state.offload(&block, priority),
        };
        self.shared.wake.notify_one();
        offered
    }

    /// Decides whether to load `blocks` blocks on a route or to compute them again; see
    /// [`decide`](KvBlockManagerState::decide).
    #[must_use]
    pub fn decide(
        &self,
        route: Route,
        blocks: u32,
        prefill_tokens_per_second: f64,
        prefill_wait: Duration,
    ) -> GateVerdict {
        let now = self.shared.now();
        self.shared.state.decide(route, blocks, prefill_tokens_per_second, prefill_wait, now)
    }

    /// Pins a block in its nearest tier for `ttl`. Pins belong to no session.
    ///
    /// # Errors
    /// [`PinError`] states how to fix the request.
    pub fn pin(&self, sequence: SequenceHash, ttl: Duration) -> Result<Pin, PinError> {
        let max = self.shared.config.pin_ttl_max;
        if ttl.is_zero() || ttl > max {
            return Err(PinError::Ttl { ttl, max });
        }
        let block = self.nearest(sequence).ok_or(PinError::Missing)?;
        let tier = block.tier();
        let pool = self.shared.state.pool(tier).ok_or(PinError::Missing)?;
        let deadline = self.shared.now().saturating_add(ttl);
        let id = pool.pin(&block, deadline)?.ok_or(PinError::Missing)?;
        Ok(Pin { tier, id })
    }

    /// Registers blocks that are stored in the volume, as long as its tier has free slots. Call it after a start, and
    /// when other agents may have stored more blocks. With `evicts`, unused blocks are evicted to make room. Bytes are
    /// verified when blocks are loaded. Returns the number of new blocks: 0 if there is no volume tier.
    pub fn restore_volume(&self, blocks: &[Sealed], evicts: bool) -> usize {
        let Some(pool) = self.shared.state.pool(BlockTier::Volume) else { return 0 };
        let bytes = self.block_bytes();
        let mut count = 0;
        for block in blocks.iter().filter(|block| block.bytes == bytes) {
            if pool.contains(SequenceHash(block.identity.sequence_hash)) {
                continue;
            }
            while let Some(SlotId(at)) = pool.free_slot(evicts) {
                match pool.restore(restored(at, block)) {
                    Ok(()) => count += 1,
                    // Another call has taken the slot: try another one.
                    Err(RestoreError::NotFree(_)) => continue,
                    // The block is registered by now, or contradicts a registered block.
                    Err(_) => {}
                }
                break;
            }
        }
        self.shared.counters.restored_in_volume.add_len(count);
        count
    }

    /// Ends a pin early. Returns whether the pin existed.
    pub fn unpin(&self, pin: Pin) -> bool {
        let was_there = self.shared.state.pool(pin.tier).is_some_and(|pool| pool.unpin(pin.id));
        self.shared.wake.notify_one();
        was_there
    }

    /// The stream of registrations and their changes.
    ///
    /// # Errors
    /// If the stream already has a reader.
    pub fn events(&self) -> Result<EventFeed, FeedTaken> {
        EventFeed::acquire(&self.shared)
    }

    /// Current metrics.
    #[must_use]
    pub fn metrics(&self) -> ManagerMetrics {
        let open = self.seats.lock().values().filter(|seat| seat.strong_count() > 0).count();
        self.shared.metrics(open)
    }

    /// Shuts down (graceful drain). Sessions refuse calls immediately. Queued transfers are finished for up to
    /// `drain_max`; then running transfers are cancelled and have `stop_max` to stop. Later calls return immediately,
    /// and report a drain that did not complete.
    pub async fn shutdown(&self, drain_max: Duration, stop_max: Duration) -> ShutdownReport {
        self.shared.begin_stopping();
        let drain_until = after(Instant::now(), drain_max);
        let stop_until = after(drain_until, stop_max);
        let seats: Vec<_> = self.seats.lock().values().filter_map(|seat| seat.upgrade()).collect();
        seats.iter().for_each(|seat| seat.release_all());
        let mut driver = std::mem::take(&mut *self.driver.lock());
        // If the driver has ended, there is no receiver.
        self.stop.try_send(Stop { drain_until, stop_until }).unwrap_or_default();
        let Some(Ok((left, mut executors))) = driver.join_next().await else {
            return ShutdownReport { is_drained: false, cancelled: 0, stuck: 0 };
        };
        let ended = executors.stop_all();
        if left.stuck == 0 {
            // No transfer is running, so this is quick. Otherwise the threads are abandoned.
            drop(timeout_at(after(stop_until, stop_max), ended).await);
        }
        let Left { is_drained, cancelled, stuck } = left;
        ShutdownReport { is_drained, cancelled, stuck }
    }
}

impl Drop for KvBlockManager {
    /// Makes sessions refuse calls, and wakes all waiters.
    fn drop(&mut self) {
        self.shared.begin_stopping();
        for sequence in self.shared.waiters.awaited_blocks() {
            self.shared.waiters.notify_waiters(sequence, Arrival::Look);
        }
    }
}

/// Registers the blocks found on the disk. Returns the records to erase: the records of blocks that the pool refused.
fn restore(shared: &Shared, storages: &TierStorages) -> Records {
    let mut records = Records::default();
    let Some(disk) = &storages.disk else { return records };
    shared.counters.damaged_records.add(disk.damaged_records.into());
    let bytes = shared.block_bytes();
    for found in &disk.blocks {
        let info = restored(found.slot, &found.block);
        let pool = shared.state.pool(BlockTier::Disk).filter(|_| found.block.bytes == bytes);
        match pool.map(|pool| pool.restore(info)) {
            Some(Ok(())) => shared.counters.restored.up(),
            Some(Err(_)) | None => {
                shared.counters.restore_refused.up();
                let SlotId(slot) = info.slot;
                records.mark_stale(Record::Slot(slot, info.identity.sequence));
            }
        }
    }
    records
}
