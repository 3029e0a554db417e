use super::message::{SYNC_ITEMS_MAX, SYNC_MESSAGE_BYTES_MAX, SyncItem, SyncMessage};
use crate::route::active::RouterId;

/// Size after which only a digest is added to a flush; the rest goes into the next one.
pub(super) const FLUSH_BYTES_MAX: usize = 8 * SYNC_MESSAGE_BYTES_MAX;

/// Splits items into messages.
#[derive(Debug)]
pub(super) struct Pack {
    closed: Vec<SyncMessage>,
    closed_bytes: usize,
    open: SyncMessage,
    open_bytes: usize,
}

// === impl Pack ===

impl Pack {
    pub(super) const fn new(from: RouterId) -> Self {
        let open = SyncMessage { from, items: Vec::new() };
        Self { closed: Vec::new(), closed_bytes: 0, open, open_bytes: 0 }
    }

    /// Whether the size limit of a flush is reached.
    pub(super) const fn is_full(&self) -> bool {
        self.closed_bytes + self.open_bytes >= FLUSH_BYTES_MAX
    }

    /// Adds an item. Begins another message at the limit of items or bytes.
    pub(super) fn push(&mut self, item: SyncItem) {
        let bytes = item.bytes_max();
        if self.open.items.len() >= SYNC_ITEMS_MAX
            || self.open_bytes + bytes > SYNC_MESSAGE_BYTES_MAX
        {
            self.close();
        }
        if self.open.items.is_empty() {
            self.open_bytes = self.open.bytes_max();
        }
        self.open_bytes += bytes;
        self.open.items.push(item);
        debug_assert!(self.open_bytes <= SYNC_MESSAGE_BYTES_MAX, "each item fits into a message");
    }

    pub(super) fn into_messages(mut self) -> Vec<SyncMessage> {
        self.close();
        self.closed
    }

    /// Moves the open message to the closed ones, if it has items.
    fn close(&mut self) {
        if self.open.items.is_empty() {
            return;
        }
        debug_assert_eq!(self.open_bytes, self.open.bytes_max(), "counted as it grew");
        let next = SyncMessage { from: self.open.from, items: Vec::new() };
        self.closed.push(std::mem::replace(&mut self.open, next));
        self.closed_bytes += std::mem::take(&mut self.open_bytes);
    }
}
