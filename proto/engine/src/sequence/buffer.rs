use super::step::{Item, Received};
use std::collections::BTreeMap;

/// Batches that came before their turn, by number.
#[derive(Debug, Clone)]
pub(super) struct Buffer<I> {
    batches: BTreeMap<u64, Received<I>>,
    bytes: usize,
}

impl<I: Item> Buffer<I> {
    pub(super) const fn new() -> Self {
        Self { batches: BTreeMap::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The batch with the lowest number.
    pub(super) fn front(&self) -> Option<&Received<I>> {
        self.batches.first_key_value().map(|(_, received)| received)
    }

    /// Holds a batch. That number is not held yet.
    pub(super) fn insert(&mut self, received: Received<I>) {
        self.bytes += received.item.bytes();
        let double = self.batches.insert(received.sequence, received);
        debug_assert!(double.is_none(), "each number is held once");
    }

    /// Takes the batch numbered `sequence` if it is the lowest.
    pub(super) fn take_front(&mut self, sequence: u64) -> Option<Received<I>> {
        let entry = self.batches.first_entry().filter(|entry| *entry.key() == sequence)?;
        let received = entry.remove();
        self.bytes -= received.item.bytes();
        Some(received)
    }

    /// Sheds the lowest numbers until both limits hold, and says how many. The newest batch always
    /// stays: it is the evidence that something is missing.
    ///
    /// The lowest go because a round of replay starts below them, and brings them before it could
    /// bring the newest: what is published after a round was asked for exists only here.
    pub(super) fn shed(&mut self, batches_max: usize, bytes_max: usize) -> u64 {
        let mut shed = 0;
        while self.len() > 1 && (self.len() > batches_max || self.bytes > bytes_max) {
            if let Some((_, received)) = self.batches.pop_first() {
                self.bytes -= received.item.bytes();
                shed += 1;
            }
        }
        shed
    }

    /// Drops the batches up to and including `sequence` and says how many there were.
    pub(super) fn drop_through(&mut self, sequence: u64) -> u64 {
        let mut dropped = 0;
        while let Some(entry) = self.batches.first_entry().filter(|entry| *entry.key() <= sequence)
        {
            self.bytes -= entry.remove().item.bytes();
            dropped += 1;
        }
        dropped
    }

    /// Drops everything and says how many batches that were.
    pub(super) fn clear(&mut self) -> u64 {
        let dropped = u64::try_from(self.len()).unwrap_or(u64::MAX);
        self.batches.clear();
        self.bytes = 0;
        dropped
    }

    /// Bytes as counted afresh, for validation.
    pub(super) fn bytes_recounted(&self) -> usize {
        self.batches.values().map(|received| received.item.bytes()).sum()
    }
}
