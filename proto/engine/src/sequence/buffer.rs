use super::step::{Item, Received};
use std::collections::VecDeque;

/// Room for batches that an empty buffer keeps: that of a source in order.
const CAPACITY_KEPT: usize = 8;

/// Batches that came before their turn, by number.
///
/// Live batches come in ascending order, and so do those of a replay, most of which are applied
/// before the next one comes: there is little to move when one goes in between.
#[derive(Debug, Clone)]
pub(super) struct Buffer<I> {
    /// Ascending by number.
    batches: VecDeque<Received<I>>,
    bytes: usize,
}

impl<I: Item> Buffer<I> {
    pub(super) const fn new() -> Self {
        Self { batches: VecDeque::new(), bytes: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The batch with the lowest number.
    pub(super) fn front(&self) -> Option<&Received<I>> {
        self.batches.front()
    }

    /// Holds a batch. That number is not held yet.
    pub(super) fn insert(&mut self, received: Received<I>) {
        self.bytes += received.item.bytes();
        let at = self.batches.partition_point(|held| held.sequence < received.sequence);
        debug_assert!(
            self.batches.get(at).is_none_or(|held| held.sequence > received.sequence),
            "each number is held once"
        );
        self.batches.insert(at, received);
    }

    /// Takes the batch numbered `sequence` if it is the lowest.
    pub(super) fn take_front(&mut self, sequence: u64) -> Option<Received<I>> {
        self.take_front_if(|front| front == sequence)
    }

    fn take_front_if(&mut self, wanted: impl FnOnce(u64) -> bool) -> Option<Received<I>> {
        if !wanted(self.batches.front()?.sequence) {
            return None;
        }
        let received = self.batches.pop_front()?;
        self.bytes -= received.item.bytes();
        if self.batches.is_empty() && self.batches.capacity() > CAPACITY_KEPT {
            self.batches = VecDeque::new();
        }
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
            shed += u64::from(self.take_front_if(|_| true).is_some());
        }
        shed
    }

    /// Drops the batches up to and including `sequence` and says how many there were.
    pub(super) fn drop_through(&mut self, sequence: u64) -> u64 {
        let mut dropped = 0;
        while self.take_front_if(|front| front <= sequence).is_some() {
            dropped += 1;
        }
        dropped
    }

    /// Drops everything and says how many batches that were.
    pub(super) fn clear(&mut self) -> u64 {
        let dropped = u64::try_from(self.len()).unwrap_or(u64::MAX);
        self.batches = VecDeque::new();
        self.bytes = 0;
        dropped
    }

    /// Bytes as counted afresh, for validation.
    pub(super) fn bytes_recounted(&self) -> usize {
        self.batches.iter().map(|received| received.item.bytes()).sum()
    }
}
