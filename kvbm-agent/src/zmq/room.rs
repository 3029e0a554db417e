//! Byte budget for unsent payloads (backpressure). The sockets' queues are limited by number of messages of any size,
//! and do not report how full they are. So a payload counts until its last copy is dropped.

use super::config::MESSAGE_OVERHEAD_BYTES;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Byte budget for unsent payloads.
#[derive(Debug, Clone)]
pub(super) struct Room {
    left: Arc<Semaphore>,
    bytes_max: u32,
}

/// A payload that counts until its last copy is dropped.
struct Counted {
    payload: Vec<u8>,
    _room: OwnedSemaphorePermit,
    /// Slot of the replay, if it must outlive the replay.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.payload
    }
}

impl Room {
    /// Creates a budget of `bytes_max` bytes.
    pub(super) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS);
        let left = Arc::new(Semaphore::new(bytes_max));
        Self { left, bytes_max: u32::try_from(bytes_max).unwrap_or(u32::MAX) }
    }

    /// Adds a payload if there is room.
    pub(super) fn try_take(&self, payload: Vec<u8>) -> Option<Bytes> {
        let room = Arc::clone(&self.left).try_acquire_many_owned(self.cost(&payload)).ok()?;
        Some(Bytes::from_owner(Counted { payload, _room: room, _place: None }))
    }

    /// Waits until the payload fits into the budget, then returns it as bytes that release the budget when dropped.
    /// Always succeeds, because the budget is never closed.
    pub(super) async fn add_payload(
        &self,
        payload: Vec<u8>,
        place: &Arc<OwnedSemaphorePermit>,
    ) -> Option<Bytes> {
        let cost = self.cost(&payload);
        let room = Arc::clone(&self.left).acquire_many_owned(cost).await.ok()?;
        let place = Some(Arc::clone(place));
        Some(Bytes::from_owner(Counted { payload, _room: room, _place: place }))
    }

    /// Waits until no payload is unsent.
    pub(super) async fn emptied(&self) {
        // Cannot fail: the semaphore is never closed.
        let _all = self.left.acquire_many(self.bytes_max).await;
    }

    /// Counted bytes of a payload; the complete budget if it is larger.
    fn cost(&self, payload: &[u8]) -> u32 {
        let bytes = payload.len().saturating_add(MESSAGE_OVERHEAD_BYTES);
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.bytes_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_payload_counts_until_its_last_copy_is_gone() {
        let room = Room::new(3 * MESSAGE_OVERHEAD_BYTES);
        let first = room.try_take(vec![1; MESSAGE_OVERHEAD_BYTES]).expect("two of three");
        let copy = first.clone();
        let second = room.try_take(vec![]).expect("the third");
        assert_eq!((first.as_ref(), second.len()), ([1; MESSAGE_OVERHEAD_BYTES].as_slice(), 0));
        assert_eq!(room.try_take(vec![]), None);
        drop(first);
        assert_eq!(room.try_take(vec![]), None);
        drop(copy);
        let third = room.try_take(vec![]).expect("room again");
        drop((second, third));
        room.emptied().await;
        // A payload larger than the budget is sent alone.
        let large = room.try_take(vec![0; 1 << 20]).expect("alone");
        assert_eq!(room.try_take(vec![]), None);
        drop(large);
        room.emptied().await;
    }
}
