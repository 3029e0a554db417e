//! Thread pool that executes batches of transfers for one storage.

use crate::block::{NewBlock, Sealed};
use crate::cancel::Cancel;
use crate::error::TransferError;
use crate::storage::{Place, Storage};
use kvasir_memory::{ReadSlot, WriteSlot};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::{io, mem};
use tokio::sync::mpsc;

/// One block's transfer. It owns the guard of the memory slot that it reads or writes.
#[derive(Debug)]
pub enum Job {
    /// Copies a block from memory into the storage.
    Store {
        /// Destination in the storage.
        place: Place,
        /// The block to store.
        block: NewBlock,
        /// The memory slot to read.
        source: ReadSlot,
    },
    /// Copies a block from the storage into memory.
    Load {
        /// Source in the storage.
        place: Place,
        /// The block to load.
        block: Sealed,
        /// The memory slot to write.
        target: WriteSlot,
    },
    /// Erases a block from the storage.
    Erase {
        /// Place of the block in the storage.
        place: Place,
        /// Sequence hash of the block.
        sequence_hash: u64,
    },
}

impl Job {
    /// Bytes to move.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Store { block, .. } => block.bytes,
            Self::Load { block, .. } => block.bytes,
            Self::Erase { .. } => 0,
        }
    }
}

/// A stopped transfer: nothing accesses its slots any more.
#[derive(Debug)]
pub struct Done {
    /// Index of the job in its batch.
    pub index: usize,
    /// The job, with the guard of its slot.
    pub job: Job,
    /// The stored or loaded block; `None` if it was erased.
    pub result: Result<Option<Sealed>, TransferError>,
}

/// Configuration of an executor.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// Name of the threads.
    pub name: String,
    /// Number of threads, which is the number of concurrent transfers.
    pub threads: usize,
    /// Maximum queued transfers. One batch may exceed it if nothing else is queued.
    pub waiting_blocks_max: usize,
    /// Maximum bytes of queued transfers. One batch may exceed it if nothing else is queued.
    pub waiting_bytes_max: usize,
}

/// A batch that was refused. Returns its jobs to the caller.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The queue is full (backpressure).
    #[error("{waiting_blocks} transfers of {waiting_bytes} bytes wait already")]
    Full {
        /// Queued transfers.
        waiting_blocks: usize,
        /// Bytes of queued transfers.
        waiting_bytes: usize,
        /// The refused batch.
        jobs: Vec<Job>,
    },
    /// The executor is stopping.
    #[error("the executor stops")]
    Stopped {
        /// The refused batch.
        jobs: Vec<Job>,
    },
}

/// A running batch. Dropping it does not stop the batch: slots are released as their transfers stop.
#[derive(Debug)]
pub struct Transfer {
    cancel: Cancel,
    outcomes: mpsc::Receiver<Done>,
}

impl Transfer {
    /// Requests cancellation of the batch. Each transfer still reports its result once it has stopped.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The batch's cancellation token.
    #[must_use]
    pub fn canceller(&self) -> Cancel {
        self.cancel.clone()
    }

    /// Returns the next stopped transfer, in any order; `None` after the last one.
    pub async fn next(&mut self) -> Option<Done> {
        self.outcomes.recv().await
    }

    /// Blocks this thread until all transfers have stopped. Must not be called on a thread of an async runtime. Returns
    /// the results in the order of the batch.
    #[must_use]
    pub fn wait(mut self) -> Vec<Done> {
        let mut all = Vec::new();
        while let Some(done) = self.outcomes.blocking_recv() {
            all.push(done);
        }
        all.sort_by_key(|done| done.index);
        all
    }
}

#[derive(Debug)]
struct Waiting {
    index: usize,
    job: Job,
    cancel: Cancel,
    outcome: mpsc::Sender<Done>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: usize,
    /// Cancellation token of each thread's current job.
    running: Vec<Option<Cancel>>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Shared {
    storage: Arc<dyn Storage>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// A pool of threads that execute transfers of one storage.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    config: ExecutorConfig,
    threads: Vec<JoinHandle<()>>,
}

impl Executor {
    /// Starts the threads of an executor for one storage.
    ///
    /// # Errors
    /// If a thread can't be started.
    pub fn start(storage: Arc<dyn Storage>, config: ExecutorConfig) -> io::Result<Self> {
        let queue = Mutex::default();
        let changed = Condvar::new();
        let shared = Arc::new(Shared { storage, queue, changed });
        // From here on, dropping `executor` stops the threads already started.
        let mut executor = Self { shared, config, threads: Vec::new() };
        for number in 0..executor.config.threads.max(1) {
            executor.shared.queue.lock().running.push(None);
            let shared = Arc::clone(&executor.shared);
            let name = format!("{}-{number}", executor.config.name);
            executor
                .threads
                .push(thread::Builder::new().name(name).spawn(move || shared.run(number))?);
        }
        Ok(executor)
    }

    /// Queues a batch. Its transfers start in order and run concurrently. Never waits.
    ///
    /// # Errors
    /// If the batch does not fit into the queue beside queued transfers (an empty queue takes any batch), or the
    /// executor is stopping. The error returns the batch.
    pub fn submit(&self, jobs: Vec<Job>) -> Result<Transfer, Refused> {
        let mut queue = self.shared.queue.lock();
        if queue.is_stopped {
            return Err(Refused::Stopped { jobs });
        }
        let waiting_blocks = queue.waiting.len();
        let waiting_bytes = queue.bytes;
        let bytes = jobs.iter().map(Job::bytes).sum::<usize>();
        let is_too_much = waiting_blocks + jobs.len() > self.config.waiting_blocks_max
            || waiting_bytes.saturating_add(bytes) > self.config.waiting_bytes_max;
        if is_too_much && waiting_blocks > 0 {
            return Err(Refused::Full { waiting_blocks, waiting_bytes, jobs });
        }
        // One place per outcome, so that sending never waits.
        let (outcome, outcomes) = mpsc::channel(jobs.len().max(1));
        let cancel = Cancel::new();
        for (index, job) in jobs.into_iter().enumerate() {
            let cancel = cancel.clone();
            let outcome = outcome.clone();
            queue.waiting.push_back(Waiting { index, job, cancel, outcome });
        }
        queue.bytes += bytes;
        self.shared.changed.notify_all();
        Ok(Transfer { cancel, outcomes })
    }

    /// Number and bytes of queued transfers.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let queue = self.shared.queue.lock();
        (queue.waiting.len(), queue.bytes)
    }

    /// Accepts no more batches, finishes queued ones, and returns when all threads have ended.
    pub fn stop(mut self) {
        self.stop_threads();
    }

    /// Stops the threads after the queued transfers, and joins them.
    fn stop_threads(&mut self) {
        self.shared.queue.lock().is_stopped = true;
        self.shared.changed.notify_all();
        for thread in mem::take(&mut self.threads) {
            // The thread's main function catches panics.
            thread.join().unwrap_or_default();
        }
    }
}

impl Drop for Executor {
    /// Like [`stop`](Self::stop), but cancels queued and running transfers.
    fn drop(&mut self) {
        {
            let queue = self.shared.queue.lock();
            let waiting = queue.waiting.iter().map(|waiting| &waiting.cancel);
            waiting.chain(queue.running.iter().flatten()).for_each(Cancel::cancel);
        }
        self.stop_threads();
    }
}

impl Shared {
    /// Executes transfers on one thread until the executor is stopped. A panic fails only the transfer.
    fn run(&self, thread: usize) {
        while let Some(Waiting { index, mut job, cancel, outcome }) = self.next(thread) {
            let storage = &*self.storage;
            // Storages protect inconsistent state by their own locks; the block does not count as stored.
            let body = AssertUnwindSafe(|| transfer(storage, &mut job, &cancel));
            let result = catch_unwind(body).unwrap_or(Err(TransferError::Panicked));
            // If the receiver is gone, the slots are released now.
            outcome.try_send(Done { index, job, result }).unwrap_or_default();
        }
    }

    /// Waits for the next transfer of a thread. Returns `None` once the executor is stopped and the queue is empty.
    fn next(&self, thread: usize) -> Option<Waiting> {
        let mut queue = self.queue.lock();
        loop {
            let next = queue.waiting.pop_front();
            if let Some(running) = queue.running.get_mut(thread) {
                *running = next.as_ref().map(|next| next.cancel.clone());
            }
            if let Some(next) = next {
                queue.bytes -= next.job.bytes();
                return Some(next);
            }
            if queue.is_stopped {
                return None;
            }
            self.changed.wait(&mut queue);
        }
    }
}

/// Executes a job on its storage. Fails if the job was cancelled before. Returns the block that was stored or loaded,
/// or `None` after an erasure.
fn transfer(
    storage: &dyn Storage,
    job: &mut Job,
    cancel: &Cancel,
) -> Result<Option<Sealed>, TransferError> {
    cancel.check()?;
    match job {
        Job::Store { place, block, source } => {
            storage.store(*place, block, source, cancel).map(Some)
        }
        Job::Load { place, block, target } => {
            storage.load(*place, block, target, cancel).map(|()| Some(*block))
        }
        Job::Erase { place, sequence_hash } => {
            storage.erase(*place, *sequence_hash, cancel).map(|()| None)
        }
    }
}

#[cfg(test)]
#[path = "executor_test.rs"]
mod tests;
