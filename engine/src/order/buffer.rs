use std::collections::VecDeque;

/// Capacity that an empty buffer keeps: enough for a source without gaps.
const CAPACITY_RETAINED: usize = 8;

/// A batch with a sequence number.
pub(crate) trait Numbered {
    /// Sequence number within the batch's incarnation.
    fn sequence(&self) -> u64;
    /// Memory of the batch's payload, in bytes.
    fn bytes(&self) -> usize;
}

/// Reorder buffer: batches received before their predecessors, by number.
///
/// Live batches arrive in ascending order. Replayed batches do too, and most are applied before the next one
/// arrives. Insertions in the middle therefore move few batches.
#[derive(Debug, Clone)]
pub(crate) struct Buffer<B> {
    /// Batches in ascending order of their numbers.
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

    /// Inserts a batch. The buffer must not contain its number.
    pub(crate) fn insert(&mut self, received: B) {
        self.bytes += received.bytes();
        let at = self.batches.partition_point(|held| held.sequence() < received.sequence());
        debug_assert!(
            self.batches.get(at).is_none_or(|held| held.sequence() > received.sequence()),
            "each number is held once"
        );
        self.batches.insert(at, received);
    }

    /// The highest buffered number.
    pub(crate) fn highest_number(&self) -> Option<u64> {
        self.batches.back().map(Numbered::sequence)
    }

    /// Whether the buffer contains this number.
    pub(crate) fn holds(&self, sequence: u64) -> bool {
        self.batches.binary_search_by_key(&sequence, Numbered::sequence).is_ok()
    }

    /// Removes and returns the batch `sequence`, if it is the lowest.
    pub(crate) fn take_front(&mut self, sequence: u64) -> Option<B> {
        self.take_front_if(|front| front == sequence)
    }

    /// Removes the lowest batch, if its number is wanted.
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

    /// Drops the lowest numbers until both limits are met; returns how many. The newest batch always stays,
    /// because it shows that batches are missing.
    ///
    /// The lowest numbers are dropped because recovery starts below them and obtains them again first. The
    /// newest may have been published after the request, and may exist only here.
    pub(crate) fn drop_lowest(&mut self, batches_max: usize, bytes_max: usize) -> u64 {
        let mut shed = 0;
        while self.len() > 1 && (self.len() > batches_max || self.bytes > bytes_max) {
            shed += u64::from(self.take_front_if(|_| true).is_some());
        }
        shed
    }

    /// The buffered numbers, ascending.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u64> {
        self.batches.iter().map(Numbered::sequence)
    }

    /// Drops the batch with this number. Returns `false` if it is not buffered.
    pub(crate) fn remove(&mut self, sequence: u64) -> bool {
        let found = self.batches.binary_search_by_key(&sequence, Numbered::sequence);
        let removed = found.ok().and_then(|place| self.batches.remove(place));
        self.bytes -= removed.as_ref().map_or(0, Numbered::bytes);
        removed.is_some()
    }

    /// Drops the batches up to and including `sequence`; returns how many.
    pub(crate) fn drop_through(&mut self, sequence: u64) -> u64 {
        let mut dropped = 0;
        while self.take_front_if(|front| front <= sequence).is_some() {
            dropped += 1;
        }
        dropped
    }

    /// Drops all batches; returns how many.
    pub(crate) fn clear(&mut self) -> u64 {
        let dropped = u64::try_from(self.len()).unwrap_or(u64::MAX);
        self.batches = VecDeque::new();
        self.bytes = 0;
        dropped
    }

    /// Recounts the bytes, for validation.
    pub(crate) fn bytes_recounted(&self) -> usize {
        self.batches.iter().map(Numbered::bytes).sum()
    }
}
