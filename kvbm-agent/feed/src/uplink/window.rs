//! Sliding window of one stream's unacknowledged batches.

use super::UplinkError;
use std::collections::VecDeque;

/// Maximum number of unacknowledged batches.
pub(super) const UNACKED_BATCHES_MAX: usize = 64;
/// Number of unacknowledged bytes from which the next batch waits.
pub(super) const UNACKED_BYTES_MAX: usize = 16 << 20;

#[derive(Debug)]
struct Unacked {
    sequence: u64,
    bytes: usize,
}

/// Batches sent and not acknowledged yet, in order.
#[derive(Debug, Default)]
pub(super) struct Window {
    unacked: VecDeque<Unacked>,
    bytes: usize,
}

impl Window {
    /// Whether another batch may be sent.
    pub(super) fn has_room(&self) -> bool {
        self.unacked.len() < UNACKED_BATCHES_MAX && self.bytes < UNACKED_BYTES_MAX
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unacked.is_empty()
    }

    pub(super) fn sent(&mut self, sequence: u64, bytes: usize) {
        debug_assert!(self.has_room(), "batch {sequence} is one too many");
        self.bytes += bytes;
        self.unacked.push_back(Unacked { sequence, bytes });
    }

    /// Removes the oldest batch from the window. Fails if the acknowledgement is for another batch.
    pub(super) fn acknowledged(&mut self, sequence: u64) -> Result<(), UplinkError> {
        match self.unacked.pop_front() {
            Some(oldest) if oldest.sequence == sequence => {
                self.bytes -= oldest.bytes;
                Ok(())
            }
            Some(_) => Err(UplinkError::Malformed("an ack of another batch")),
            None => Err(UplinkError::Malformed("an ack of no batch")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_bounded_by_number_and_by_bytes() {
        let mut window = Window::default();
        for sequence in 0..UNACKED_BATCHES_MAX as u64 {
            assert!(window.has_room());
            window.sent(sequence, 1);
        }
        assert!(!window.has_room());
        window.acknowledged(0).expect("the oldest");
        assert!(window.has_room());
        // A batch may be larger than the remaining room, but then the next one waits.
        window.sent(64, UNACKED_BYTES_MAX);
        for sequence in 1..64 {
            assert!(!window.has_room());
            window.acknowledged(sequence).expect("in order");
        }
        assert!(!window.has_room());
        window.acknowledged(64).expect("the last");
        assert!(window.has_room() && window.is_empty() && window.bytes == 0);
    }

    #[test]
    fn answers_come_in_order() {
        let mut window = Window::default();
        window.sent(5, 1);
        window.sent(6, 1);
        let error = window.acknowledged(6).expect_err("5 is first");
        assert_eq!(error.to_string(), "malformed answer: an ack of another batch");
        let error = Window::default().acknowledged(0).expect_err("nothing was sent");
        assert_eq!(error.to_string(), "malformed answer: an ack of no batch");
    }
}
