use super::{Batch, JournalConfig, RangeError};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Batches of a range, contiguous and in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRange {
    /// The batches; empty at the end of the range.
    pub batches: Vec<Arc<Batch>>,
    /// The newest batch of the journal; `None` before the first.
    pub head: Option<u64>,
}

/// The latest batches of one incarnation.
#[derive(Debug)]
pub(super) struct Ring {
    /// Batches with consecutive numbers.
    batches: VecDeque<Arc<Batch>>,
    bytes: usize,
    batches_max: usize,
    bytes_max: usize,
}

impl Ring {
    pub(super) fn new(config: &JournalConfig) -> Self {
        let batches_max = config.batches_max.max(1);
        let bytes_max = config.bytes_max;
        Self { batches: VecDeque::new(), bytes: 0, batches_max, bytes_max }
    }

    /// Appends the next batch, and evicts the oldest ones beyond the limits.
    pub(super) fn push(&mut self, batch: Arc<Batch>) {
        debug_assert!(self.is_next(&batch), "{} after {:?}", batch.sequence(), self.head());
        self.bytes += batch.memory_bytes();
        self.batches.push_back(batch);
        while self.batches.len() > self.batches_max
            || (self.bytes > self.bytes_max && self.batches.len() > 1)
        {
            let Some(oldest) = self.batches.pop_front() else { return };
            self.bytes -= oldest.memory_bytes();
        }
    }

    /// Appends the next batch of an image, and raises the limits to twice the image: a peer needs time to read it
    /// before its first batches are evicted.
    pub(super) fn push_image(&mut self, batch: Batch) {
        debug_assert!(self.is_next(&batch), "{} after {:?}", batch.sequence(), self.head());
        self.bytes += batch.memory_bytes();
        self.batches.push_back(Arc::new(batch));
        self.bytes_max = self.bytes_max.max(2 * self.bytes);
        self.batches_max = self.batches_max.max(2 * self.batches.len());
    }

    pub(super) fn list_batches(&self) -> Vec<Arc<Batch>> {
        self.batches.iter().map(Arc::clone).collect()
    }

    fn is_next(&self, batch: &Batch) -> bool {
        self.head().is_none_or(|head| head.checked_add(1) == Some(batch.sequence()))
    }

    pub(super) fn oldest(&self) -> Option<u64> {
        self.batches.front().map(|batch| batch.sequence())
    }

    pub(super) fn head(&self) -> Option<u64> {
        self.batches.back().map(|batch| batch.sequence())
    }

    pub(super) fn len(&self) -> usize {
        self.batches.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns up to `batches_max` batches of a range. `first` is the number of the incarnation's first batch. Fails if
    /// the range begins with an evicted batch, or more than one after the newest.
    pub(super) fn range(
        &self,
        first: u64,
        range: RangeInclusive<u64>,
        batches_max: usize,
    ) -> Result<BatchRange, RangeError> {
        let from = (*range.start()).max(first);
        let to = *range.end();
        let (Some(oldest), Some(head)) = (self.oldest(), self.head()) else {
            let batches = Vec::new();
            return match from == first {
                true => Ok(BatchRange { batches, head: None }),
                false => Err(RangeError::Ahead { head: None }),
            };
        };
        if from > head {
            return match from - 1 == head {
                true => Ok(BatchRange { batches: Vec::new(), head: Some(head) }),
                false => Err(RangeError::Ahead { head: Some(head) }),
            };
        }
        if to < from {
            return Ok(BatchRange { batches: Vec::new(), head: Some(head) });
        }
        if from < oldest {
            return Err(RangeError::TooOld { oldest, head });
        }
        let skipped = usize::try_from(from - oldest).unwrap_or(usize::MAX);
        let wanted = usize::try_from(to - from).unwrap_or(usize::MAX).saturating_add(1);
        let batches = self.batches.iter().skip(skipped).take(wanted.min(batches_max));
        Ok(BatchRange { batches: batches.map(Arc::clone).collect(), head: Some(head) })
    }
}
