//! Waiters: the requests that wait for a block to be onboarded.

use kvasir_blocks::{TierBlock, Verdict};
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Notification for the waiters of a block.
#[derive(Debug, Clone)]
pub(super) enum Arrival {
    /// The transfer has ended. Contains the copy, in use, if there is one.
    Settled(Verdict, Option<TierBlock>),
    /// The transfer is overdue, and may never end.
    Overdue,
    /// The request ended without a transfer. Check where the block is now.
    Look,
}

#[derive(Debug, Default)]
struct Book {
    by_sequence: FxHashMap<SequenceHash, Vec<(u64, oneshot::Sender<Arrival>)>>,
    /// Blocks whose last waiter has left before they arrived.
    deserted: Vec<SequenceHash>,
    last_number: u64,
}

/// All waiters, by block.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Book>);

/// Registration of one waiter. Dropping it removes the waiter.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    sequence: SequenceHash,
    number: u64,
    arrival: oneshot::Receiver<Arrival>,
}

impl Waiters {
    /// Registers a waiter, which receives every later notification.
    pub(super) fn wait_for(self: &Arc<Self>, sequence: SequenceHash) -> Waiting {
        let (tell, arrival) = oneshot::channel();
        let mut book = self.0.lock();
        book.last_number += 1;
        let number = book.last_number;
        book.by_sequence.entry(sequence).or_default().push((number, tell));
        Waiting { waiters: Arc::clone(self), sequence, number, arrival }
    }

    /// Notifies all waiters of a block. Returns immediately if there are none. Only the notifications own handles to
    /// the copy: the sender keeps none.
    pub(super) fn notify_waiters(&self, sequence: SequenceHash, arrival: Arrival) {
        let mut waiting = self.0.lock().by_sequence.remove(&sequence).unwrap_or_default();
        let Some((_, last)) = waiting.pop() else { return };
        for (_, tell) in waiting {
            // If the waiter has left, the notification and its handle are dropped.
            tell.send(arrival.clone()).unwrap_or_default();
        }
        last.send(arrival).unwrap_or_default();
    }

    /// Blocks with waiters.
    pub(super) fn awaited_blocks(&self) -> Vec<SequenceHash> {
        let mut awaited: Vec<_> = self.0.lock().by_sequence.keys().copied().collect();
        awaited.sort_unstable();
        awaited
    }

    /// Returns the blocks that have no waiters any more, each once.
    pub(super) fn take_deserted(&self) -> Vec<SequenceHash> {
        let mut book = self.0.lock();
        let mut deserted = std::mem::take(&mut book.deserted);
        deserted.retain(|sequence| !book.by_sequence.contains_key(sequence));
        deserted
    }

    /// Removes a waiter. A block without waiters is listed as deserted, so that its transfer is cancelled.
    fn remove_waiter(&self, sequence: SequenceHash, number: u64) {
        let mut book = self.0.lock();
        let Some(waiting) = book.by_sequence.get_mut(&sequence) else { return };
        waiting.retain(|(other, _)| *other != number);
        if waiting.is_empty() {
            book.by_sequence.remove(&sequence);
            book.deserted.push(sequence);
        }
    }
}

impl Waiting {
    /// Waits for the notification.
    pub(super) async fn arrival(&mut self) -> Arrival {
        (&mut self.arrival).await.unwrap_or(Arrival::Look)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiters.remove_waiter(self.sequence, self.number);
    }
}
