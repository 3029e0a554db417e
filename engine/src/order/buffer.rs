use std::collections::VecDeque;

/// Capacity that an empty buffer retains: enough for a source in order.
const CAPACITY_RETAINED: usize = 8;

/// A batch with its number.
pub(crate) trait Numbered {
    /// Its number within its incarnation.
    fn sequence(&self) -> u64;
    /// Memory that its payload takes, in bytes.
    fn bytes(&self) -> usize;
}

/// Batches that came before their turn, by number.
///
/// Live batches come in ascending order, and so do those of a replay, most of which are applied
/// before the next one comes: there is little to move when one goes in between.
#[derive(Debug, Clone)]
pub(crate) struct Buffer<B> {
    /// Ascending by number.
    batches: VecDeque<B>,
    bytes: usize,
}

impl<B: Numbered> Buffer<B> {
    pub(crate) const fn new() -> Self {
        Self { batches: VecDeque::new(), bytes: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The batch with the lowest number.
    pub(crate) fn front(&self) -> Option<&B> {
        self.batches.front()
    }

    /// Holds a batch. That number is not held yet.
    pub(crate) fn insert(&mut self, received: B) {
        self.bytes += received.bytes();
        let at = self.batches.partition_point(|held| held.sequence() < received.sequence());
        debug_assert!(
            self.batches.get(at).is_none_or(|held| held.sequence() > received.sequence()),
            "each number is held once"
        );
        self.batches.insert(at, received);
    }

    /// The highest number held.
    pub(crate) fn back(&self) -> Option<u64> {
        self.batches.back().map(Numbered::sequence)
    }

    /// Whether a batch of that number is held.
    pub(crate) fn holds(&self, sequence: u64) -> bool {
        self.batches.binary_search_by_key(&sequence, Numbered::sequence).is_ok()
    }

    /// Takes the batch numbered `sequence` if it is the lowest.
    pub(crate) fn take_front(&mut self, sequence: u64) -> Option<B> {
        self.take_front_if(|front| front == sequence)
    }

    fn take_front_if(&mut self, wanted: impl FnOnce(u64) -> bool) -> Option<B> {
        if !wanted(self.batches.front()?.sequence()) {
            return None;
        }
        let received = self.batches.pop_front()?;
        self.bytes -= received.bytes();
        debug_assert!(!self.batches.is_empty() || self.bytes == 0, "bytes without a batch");
        if self.batches.is_empty() && self.batches.capacity() > CAPACITY_RETAINED {
            self.batches = VecDeque::new();
        }
        Some(received)
    }

    /// Sheds the lowest numbers until both limits hold; returns how many. The newest batch always
    /// stays: it is the evidence that something is missing.
    ///
    /// The lowest go because recovery starts below them and brings them again first. The newest may
    /// have been published after the request, and then exist only here.
    pub(crate) fn shed(&mut self, batches_max: usize, bytes_max: usize) -> u64 {
        let mut shed = 0;
        while self.len() > 1 && (self.len() > batches_max || self.bytes > bytes_max) {
            shed += u64::from(self.take_front_if(|_| true).is_some());
        }
        shed
    }

    /// The numbers held, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.batches.iter().map(Numbered::sequence)
    }

    /// Drops the batch of a number; `false` if none is held.
    pub(crate) fn remove(&mut self, sequence: u64) -> bool {
        let found = self.batches.binary_search_by_key(&sequence, Numbered::sequence);
        let removed = found.ok().and_then(|place| self.batches.remove(place));
        self.bytes -= removed.as_ref().map_or(0, Numbered::bytes);
        removed.is_some()
    }

    /// Drops the batches up to and including `sequence` and returns their number.
    pub(crate) fn drop_through(&mut self, sequence: u64) -> u64 {
        let mut dropped = 0;
        while self.take_front_if(|front| front <= sequence).is_some() {
            dropped += 1;
        }
        dropped
    }

    /// Drops all batches and returns their number.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = u64::try_from(self.len()).unwrap_or(u64::MAX);
        self.batches = VecDeque::new();
        self.bytes = 0;
        dropped
    }

    /// Bytes, recounted for validation.
    pub(crate) fn bytes_recounted(&self) -> usize {
        self.batches.iter().map(Numbered::bytes).sum()
    }
}
