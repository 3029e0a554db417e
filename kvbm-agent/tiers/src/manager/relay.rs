//! Relay memory: buffers blocks that are copied between two storages that are not memory.

use super::config::ManagerConfig;
use super::error::StartError;
use kvasir_blocks::{TransferId, TransferOrder};
use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator};
use std::collections::VecDeque;
use std::sync::Arc;

/// Alignment that direct I/O requires.
const ALIGNMENT_BYTES: usize = 4_096;

/// Relay slots, and the queue of orders that wait for one. The lanes' limits bound the queue.
#[derive(Debug)]
pub(super) struct Relays {
    pub(super) arena: Arc<Arena>,
    free: Vec<u32>,
    waiting: VecDeque<TransferOrder>,
}

impl Relays {
    /// Allocates the memory of the relay slots.
    pub(super) fn new(config: &ManagerConfig, block_bytes: usize) -> Result<Self, StartError> {
        let slots = config.relay_slots.max(1);
        let refused = |reason: String| StartError::Relay { slots, reason };
        let layout = SlotLayout::aligned(block_bytes, ALIGNMENT_BYTES, slots);
        let layout = layout.map_err(|error| refused(error.to_string()))?;
        let bytes = layout.bytes().map_err(|error| refused(error.to_string()))?;
        let region = SystemAllocator.allocate(bytes, ALIGNMENT_BYTES);
        let region = region.map_err(|error| refused(error.to_string()))?;
        let arena = Arena::new(region, layout).map_err(|error| refused(error.to_string()))?;
        Ok(Self { arena, free: (0..slots).rev().collect(), waiting: VecDeque::new() })
    }

    pub(super) fn wait(&mut self, order: TransferOrder) {
        self.waiting.push_back(order);
    }

    /// Returns the next waiting order with a free relay slot, or `None` if either is missing.
    pub(super) fn next(&mut self) -> Option<(TransferOrder, u32)> {
        let slot = self.free.pop()?;
        match self.waiting.pop_front() {
            Some(order) => Some((order, slot)),
            None => {
                self.free.push(slot);
                None
            }
        }
    }

    /// Removes a waiting order.
    pub(super) fn remove_order(&mut self, id: TransferId) -> Option<TransferOrder> {
        let at = self.waiting.iter().position(|order| order.id == id)?;
        self.waiting.remove(at)
    }

    /// Removes and returns all waiting orders.
    pub(super) fn take_waiting(&mut self) -> VecDeque<TransferOrder> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn give_back(&mut self, slot: u32) {
        self.free.push(slot);
    }
}
