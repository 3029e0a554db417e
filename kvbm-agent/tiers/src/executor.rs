//! Batches of transfers, on threads of their own.

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

/// One block's transfer. It holds the slot of memory that it reads or writes.
#[derive(Debug)]
pub enum Job {
    /// From memory into the storage.
    Store {
        /// Where to.
        place: Place,
        /// Which block.
        block: NewBlock,
        /// Where from.
        source: ReadSlot,
    },
    /// From the storage into memory.
    Load {
        /// Where from.
        place: Place,
        /// Which block.
        block: Sealed,
        /// Where to.
        target: WriteSlot,
    },
    /// Out of the storage.
    Erase {
        /// Where.
        place: Place,
        /// Which block.
        sequence_hash: u64,
    },
}

impl Job {
    /// Bytes that are moved.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Store { block, .. } => block.bytes,
            Self::Load { block, .. } => block.bytes,
            Self::Erase { .. } => 0,
        }
    }
}

/// A transfer that has stopped: nothing touches its slots any more.
#[derive(Debug)]
pub struct Done {
    /// Its place in the batch.
    pub index: usize,
    /// What it was, with the slots.
    pub job: Job,
    /// The block as it is stored, or was loaded; none if it was erased.
    pub result: Result<Option<Sealed>, TransferError>,
}

/// How an executor works.
#[derive(Debug, Clone)]
pub struct ExecutorConfig {
    /// What its threads are called.
    pub name: String,
    /// How many there are: transfers that run at a time.
    pub threads: usize,
    /// Most transfers that wait.
    pub waiting_blocks_max: usize,
    /// Most bytes of transfers that wait. One batch may exceed it if nothing else waits.
    pub waiting_bytes_max: usize,
}

/// A batch that was not taken, with all that it holds.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Too much waits already.
    #[error("{waiting_blocks} transfers of {waiting_bytes} bytes wait already")]
    Full {
        /// Transfers that wait.
        waiting_blocks: usize,
        /// Bytes that they move.
        waiting_bytes: usize,
        /// The batch.
        jobs: Vec<Job>,
    },
    /// The executor stops.
    #[error("the executor stops")]
    Stopped {
        /// The batch.
        jobs: Vec<Job>,
    },
}

/// A batch under way. Dropping it stops nothing: slots are free when the last transfer has stopped.
#[derive(Debug)]
pub struct Transfer {
    cancel: Cancel,
    outcomes: mpsc::Receiver<Done>,
}

impl Transfer {
    /// Wishes that the batch stops. Each transfer still reports, once it has stopped.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }

    /// The same wish, for somebody else to have.
    #[must_use]
    pub fn canceller(&self) -> Cancel {
        self.cancel.clone()
    }

    /// The next transfer that has stopped, in whatever order they do; none after the last one.
    pub async fn next(&mut self) -> Option<Done> {
        self.outcomes.recv().await
    }

    /// Waits for all of them on this thread, which must not be one of an async runtime. In the order of the batch.
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
    /// What each thread carries out.
    running: Vec<Option<Cancel>>,
    is_stopped: bool,
}

#[derive(Debug)]
struct Shared {
    storage: Arc<dyn Storage>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// Threads that carry out transfers of one storage.
#[derive(Debug)]
pub struct Executor {
    shared: Arc<Shared>,
    config: ExecutorConfig,
    threads: Vec<JoinHandle<()>>,
}

impl Executor {
    /// Starts the threads.
    ///
    /// # Errors
    /// If one cannot be started.
    pub fn start(storage: Arc<dyn Storage>, config: ExecutorConfig) -> io::Result<Self> {
        let queue = Mutex::default();
        let changed = Condvar::new();
        let shared = Arc::new(Shared { storage, queue, changed });
        // From here on, dropping it stops what was started.
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

    /// Takes a batch, whose transfers begin in order and run side by side. Does not wait.
    ///
    /// # Errors
    /// If too much waits already, or the executor stops. The batch comes back.
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
        // As many as there are outcomes: sending one never waits.
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

    /// Transfers that wait, and their bytes.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        let queue = self.shared.queue.lock();
        (queue.waiting.len(), queue.bytes)
    }

    /// Takes nothing more, finishes what waits, and returns when the last thread has ended.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.shared.queue.lock().is_stopped = true;
        self.shared.changed.notify_all();
        for thread in mem::take(&mut self.threads) {
            // What a thread runs catches panics.
            thread.join().unwrap_or_default();
        }
    }
}

impl Drop for Executor {
    /// Like [`stop`](Self::stop), but what waits or runs is cancelled.
    fn drop(&mut self) {
        {
            let queue = self.shared.queue.lock();
            let waiting = queue.waiting.iter().map(|waiting| &waiting.cancel);
            waiting.chain(queue.running.iter().flatten()).for_each(Cancel::cancel);
        }
        self.end();
    }
}

impl Shared {
    fn run(&self, thread: usize) {
        while let Some(Waiting { index, mut job, cancel, outcome }) = self.next(thread) {
            let storage = &*self.storage;
            // What a storage left half-done is behind its own locks; the block does not count.
            let body = AssertUnwindSafe(|| transfer(storage, &mut job, &cancel));
            let result = catch_unwind(body).unwrap_or(Err(TransferError::Panicked));
            // If nobody waits for the outcome, the slots are free now.
            outcome.try_send(Done { index, job, result }).unwrap_or_default();
        }
    }

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
