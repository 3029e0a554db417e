//! The storages' thread pools, and the conversion of orders to jobs.

use super::config::{ManagerConfig, TierStorages};
use super::convert::{new_block, sealed_block};
use super::error::StartError;
use super::metrics::Waits;
use super::records::Record;
use crate::error::TransferError;
use crate::executor::{Executor, ExecutorConfig, Job, Transfer};
use crate::storage::{Place, Storage};
use kvasir_blocks::{BlockTier, TransferOrder};
use kvasir_memory::Arena;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use tokio::sync::oneshot;

/// Maximum records erased concurrently.
pub(super) const ERASING_MAX: usize = 64;

/// The storages' executors, and the tiers in memory.
#[derive(Debug)]
pub(super) struct Executors {
    memory: BTreeMap<BlockTier, Arc<Arena>>,
    storages: BTreeMap<BlockTier, Executor>,
}

/// The place of a block in a tier.
fn place(tier: BlockTier, slot: u32) -> Place {
    if tier == BlockTier::Volume { Place::Named } else { Place::Slot(slot) }
}

impl Executors {
    /// Starts the threads of the host, disk and volume storages. Copies of device memory run on the threads of the
    /// lower tier.
    pub(super) fn start(
        config: &ManagerConfig,
        storages: &TierStorages,
    ) -> Result<Self, StartError> {
        let mut memory = BTreeMap::new();
        let mut all: BTreeMap<BlockTier, Arc<dyn Storage>> = BTreeMap::new();
        if let Some(device) = &storages.device {
            memory.insert(BlockTier::Device, Arc::clone(device));
        }
        if let Some(host) = &storages.host {
            memory.insert(BlockTier::Host, Arc::clone(&host.arena));
            all.insert(BlockTier::Host, Arc::clone(&host.storage));
        }
        if let Some(disk) = &storages.disk {
            all.insert(BlockTier::Disk, Arc::clone(&disk.storage));
        }
        if let Some(volume) = &storages.volume {
            all.insert(BlockTier::Volume, Arc::clone(volume));
        }
        // Has room for all transfers that the lanes may have in flight, so that nothing is refused.
        let lanes = config.blocks.tiers.values().map(|tier| tier.lane.in_flight_transfers_max);
        let in_flight = lanes.fold(0, usize::saturating_add).saturating_mul(2);
        let waiting_blocks_max = in_flight.saturating_add(ERASING_MAX);
        let mut executors = BTreeMap::new();
        for (tier, storage) in all {
            let of_storage = ExecutorConfig {
                name: format!("kvasir-{tier}"),
                threads: config.threads,
                waiting_blocks_max,
                waiting_bytes_max: usize::MAX,
            };
            executors.insert(tier, Executor::start(storage, of_storage)?);
        }
        Ok(Self { memory, storages: executors })
    }

    /// Whether an order copies between two storages that are not memory.
    pub(super) fn is_relay(&self, order: &TransferOrder) -> bool {
        let route = order.id.route;
        !self.memory.contains_key(&route.from) && !self.memory.contains_key(&route.to)
    }

    /// Converts an order to a job, and returns the storage that executes it.
    ///
    /// # Errors
    /// If a slot is in use, or the block has no checksum for verification.
    pub(super) fn job(&self, order: &TransferOrder) -> Result<(BlockTier, Job), TransferError> {
        let route = order.id.route;
        if route.is_up() {
            let memory = self.memory.get(&route.to).ok_or(TransferError::Place)?;
            let block = sealed_block(order).ok_or(TransferError::Missing)?;
            let target = memory.write(order.destination.0)?;
            let place = place(route.from, order.source.0);
            return Ok((route.from, Job::Load { place, block, target }));
        }
        let memory = self.memory.get(&route.from).ok_or(TransferError::Place)?;
        let source = memory.read(order.source.0)?;
        let place = place(route.to, order.destination.0);
        Ok((route.to, Job::Store { place, block: new_block(order), source }))
    }

    /// Builds the first job of a relay: from the source into a relay slot.
    ///
    /// # Errors
    /// Same errors as [`job`](Self::job).
    pub(super) fn fetch(
        order: &TransferOrder,
        relay: &Arc<Arena>,
        slot: u32,
    ) -> Result<(BlockTier, Job), TransferError> {
        let from = order.id.route.from;
        let block = sealed_block(order).ok_or(TransferError::Missing)?;
        let target = relay.write(slot)?;
        Ok((from, Job::Load { place: place(from, order.source.0), block, target }))
    }

    /// Builds the second job of a relay: from the relay slot to the destination.
    pub(super) fn forward(
        order: &TransferOrder,
        relay: &Arc<Arena>,
        slot: u32,
    ) -> Result<(BlockTier, Job), TransferError> {
        let to = order.id.route.to;
        let source = relay.read(slot)?;
        let place = place(to, order.destination.0);
        Ok((to, Job::Store { place, block: new_block(order), source }))
    }

    /// The job that erases a record.
    pub(super) fn erase(record: Record) -> (BlockTier, Job) {
        let (place, sequence) = match record {
            Record::Slot(slot, sequence) => (Place::Slot(slot), sequence),
            Record::Name(sequence) => (Place::Named, sequence),
        };
        (record.tier(), Job::Erase { place, sequence_hash: sequence.0 })
    }

    /// Submits a batch to a storage's threads. If it is refused, returns `None` and releases the slots.
    pub(super) fn submit(&self, tier: BlockTier, jobs: Vec<Job>) -> Option<Transfer> {
        self.storages.get(&tier)?.submit(jobs).ok()
    }

    /// Stops the threads of all storages. The returned receiver gets a message once they have ended. A storage that
    /// hangs blocks only a waiting thread, not the caller or the end of the runtime.
    pub(super) fn stop_all(&mut self) -> oneshot::Receiver<()> {
        let storages = std::mem::take(&mut self.storages);
        let (tell, ended) = oneshot::channel();
        let wait = move || {
            drop(storages);
            tell.send(()).unwrap_or_default();
        };
        // If the thread can't be started, all threads have ended when this returns.
        drop(thread::Builder::new().name("kvasir-end".to_owned()).spawn(wait));
        ended
    }

    /// Queued transfers of each storage.
    pub(super) fn waits(&self) -> BTreeMap<BlockTier, Waits> {
        let wide = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let of = |(tier, executor): (&BlockTier, &Executor)| {
            let (blocks, bytes) = executor.waiting();
            (*tier, Waits { blocks: wide(blocks), bytes: wide(bytes) })
        };
        self.storages.iter().map(of).collect()
    }
}

impl Drop for Executors {
    fn drop(&mut self) {
        drop(self.stop_all());
    }
}
