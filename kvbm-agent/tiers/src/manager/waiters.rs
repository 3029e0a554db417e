//! Who waits for which block to come up.

use kvasir_blocks::{TierBlock, Verdict};
use kvasir_proto::types::SequenceHash;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What became of a block that somebody waits for.
#[derive(Debug, Clone)]
pub(super) enum Arrival {
    /// Its transfer has ended; the copy is in use, if there is one.
    Settled(Verdict, Option<TierBlock>),
    /// Its transfer takes too long, and may never end.
    Overdue,
    /// Its request ended without a transfer: see where the block is now.
    Look,
}

#[derive(Debug, Default)]
struct Book {
    by_sequence: FxHashMap<SequenceHash, Vec<(u64, oneshot::Sender<Arrival>)>>,
    /// Blocks whose last waiter has gone before they came.
    deserted: Vec<SequenceHash>,
    last_number: u64,
}

/// Those who wait.
#[derive(Debug, Default)]
pub(super) struct Waiters(Mutex<Book>);

/// A place among those who wait. Dropped, nobody waits there any more.
#[derive(Debug)]
pub(super) struct Waiting {
    waiters: Arc<Waiters>,
    sequence: SequenceHash,
    number: u64,
    arrival: oneshot::Receiver<Arrival>,
}

impl Waiters {
    /// Waits from now on: whatever happens later is told.
    pub(super) fn wait_for(self: &Arc<Self>, sequence: SequenceHash) -> Waiting {
        let (tell, arrival) = oneshot::channel();
        let mut book = self.0.lock();
        book.last_number += 1;
        let number = book.last_number;
        book.by_sequence.entry(sequence).or_default().push((number, tell));
        Waiting { waiters: Arc::clone(self), sequence, number, arrival }
    }

    /// Tells all who wait for a block. Whoever is told may count on it that nobody else has the copy any more.
    pub(super) fn tell(&self, sequence: SequenceHash, arrival: Arrival) {
        let mut waiting = self.0.lock().by_sequence.remove(&sequence).unwrap_or_default();
        let Some((_, last)) = waiting.pop() else { return };
        for (_, tell) in waiting {
            // Who left has let go of nothing that is in it.
            tell.send(arrival.clone()).unwrap_or_default();
        }
        last.send(arrival).unwrap_or_default();
    }

    /// Blocks that somebody waits for.
    pub(super) fn awaited(&self) -> Vec<SequenceHash> {
        let mut awaited: Vec<_> = self.0.lock().by_sequence.keys().copied().collect();
        awaited.sort_unstable();
        awaited
    }

    /// Blocks that nobody waits for any more, each told once.
    pub(super) fn take_deserted(&self) -> Vec<SequenceHash> {
        let mut book = self.0.lock();
        let mut deserted = std::mem::take(&mut book.deserted);
        deserted.retain(|sequence| !book.by_sequence.contains_key(sequence));
        deserted
    }

    fn leave(&self, sequence: SequenceHash, number: u64) {
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
    /// What became of the block.
    pub(super) async fn arrival(&mut self) -> Arrival {
        (&mut self.arrival).await.unwrap_or(Arrival::Look)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.waiters.leave(self.sequence, self.number);
    }
}
