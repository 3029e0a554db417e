use super::budget::{Budget, Bytes, ShardSize};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use kvasir_index::{Index, Limits, SourceId};
use kvasir_proto::convert::KnownName;
use kvasir_proto::types::{DpRank, SourceStatus, WorkerId};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, thread};
use tokio::time::Instant;

/// Number of polls before a reader sleeps: longer than a slice of the writer takes, unless the writer has no CPU.
const READER_LOOKS_MAX: u32 = 1_000;
/// Number of polls before the writer yields its core to waiting readers.
const LET_IN_LOOKS_MAX: u32 = 1_000;
/// Maximum time that the writer yields to waiting readers. A reader that is not in by then has no core to run on, and
/// waits for another critical section.
const LET_IN_MAX: Duration = Duration::from_micros(100);

/// Some workers of a partition, with their own index. Ids of sources and ranks are valid in this shard only.
pub struct Shard {
    number: usize,
    index: ShardedLock<Index>,
    /// Held by a writing thread until waiting readers have the lock. Keeps the next of several evicting threads from
    /// overtaking the readers.
    turn: Mutex<()>,
    /// Number of readers that found the lock taken. Untouched while no thread writes, so that readers share no cache
    /// line.
    waiting: CachePadded<AtomicU32>,
    size: ShardSize,
}

impl Shard {
    /// Creates an empty index behind a lock. The index's bytes count in `budget`.
    #[must_use]
    pub fn new(number: usize, limits: Limits, budget: &Arc<Budget>) -> Self {
        Self {
            number,
            index: ShardedLock::new(Index::new(limits)),
            turn: Mutex::new(()),
            waiting: CachePadded::new(AtomicU32::new(0)),
            size: ShardSize::new(budget),
        }
    }

    /// Number of the shard within its partition, equal to the number of its writer thread.
    #[must_use]
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Locks the index for reading. Waits for at most one critical section of the writer, which ends early for the
    /// reader. Read several shards one after the other, and lock only one at a time.
    pub fn read(&self) -> ShardedLockReadGuard<'_, Index> {
        if let Ok(index) = self.index.try_read() {
            return index;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        for _ in 0..READER_LOOKS_MAX {
            if let Ok(index) = self.index.try_read() {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return index;
            }
            spin_loop();
        }
        // A writer that panicked has aborted the process: no reader sees its half-done work.
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        index
    }

    /// Returns a worker's sources in order of arrival: name, source and status. Empty if the index lacks the worker.
    #[must_use]
    pub fn sources(
        shard: &Arc<Self>,
        worker: &WorkerId,
    ) -> Vec<(String, IndexedSource, SourceStatus)> {
        let index = shard.read();
        let sources = index.worker(worker).into_iter().flat_map(|worker| worker.sources());
        let sources = sources.map(|(id, name, status)| {
            let source = IndexedSource { shard: Arc::clone(shard), id };
            (name.to_owned(), source, status.clone())
        });
        sources.collect()
    }

    /// Whether a reader waits: the writer must release the lock after its current slice.
    #[must_use]
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Bytes of the index, as of its last change.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.size.bytes()
    }

    /// Ranks in the index, as of its last change.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.size.ranks()
    }

    /// Ranks with several KV-cache groups, as of its last change.
    #[must_use]
    pub fn grouped_ranks(&self) -> usize {
        self.size.grouped_ranks()
    }

    /// Whether the index had anything to evict at its last change.
    #[must_use]
    pub fn is_sheddable(&self) -> bool {
        self.size.is_sheddable()
    }

    /// Changes the index, then admits waiting readers. In a server only writer threads call this, at a
    /// [`Pace`](super::Pace): the shard's own thread carries out commands, and any writer thread evicts.
    pub fn write<R>(&self, change: impl FnOnce(&mut Index) -> R) -> R {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let result = {
            let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
            index.set_room_bytes(self.size.room());
            let result = change(&mut index);
            self.size.publish(&index);
            result
        };
        for _ in 0..LET_IN_LOOKS_MAX {
            if self.waiting.load(Ordering::Acquire) == 0 {
                return result;
            }
            spin_loop();
        }
        let released = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && released.elapsed() < LET_IN_MAX {
            thread::yield_now();
        }
        result
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shard({})", self.number)
    }
}

/// A source in the index, together with its shard, so that its id is never used in another shard.
#[derive(Debug, Clone)]
pub struct IndexedSource {
    pub(super) shard: Arc<Shard>,
    pub(super) id: SourceId,
}

impl IndexedSource {
    /// The shard of the source.
    #[must_use]
    pub const fn shard(&self) -> &Arc<Shard> {
        &self.shard
    }

    /// Meanings of the source's block names besides the tokens.
    #[must_use]
    pub fn meanings(&self) -> Vec<KnownName> {
        self.shard.read().meanings(self.id)
    }

    /// Ranks that the source feeds.
    #[must_use]
    pub fn ranks(&self) -> Vec<DpRank> {
        self.shard.read().ranks_of(self.id)
    }

    /// Id of the source in its shard.
    #[must_use]
    pub const fn id(&self) -> SourceId {
        self.id
    }
}
