use super::speculative::{Layer, SpeculativeSize};
use crossbeam_utils::{
    CachePadded,
    sync::{ShardedLock, ShardedLockReadGuard},
};
use dashmap::DashMap;
use kvasir_index::{Index, Limits, PlacedMatch, PlacedScratch};
use kvasir_proto::{
    code::ErrorCode,
    limits::PARTITIONS_MAX,
    types::{LocalHash, PartitionKey},
};
use std::{
    fmt,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::time::Instant;

/// How long the writer steps aside for waiting readers between two holds. They were woken when it
/// let go and need to be scheduled only; one that is not by then waits for another hold.
const LET_IN_MAX: Duration = Duration::from_micros(100);

/// One (model, tenant) with its index.
pub struct Partition {
    key: PartitionKey,
    block_size: u32,
    index: ShardedLock<Index>,
    /// Readers that found the lock taken. Untouched while nobody writes, so that readers share no
    /// cache line.
    waiting: CachePadded<AtomicU32>,
    speculative: Layer,
}

impl Partition {
    fn new(key: PartitionKey, block_size: u32, limits: Limits) -> Self {
        Self {
            key,
            block_size,
            index: ShardedLock::new(Index::new(limits)),
            waiting: CachePadded::new(AtomicU32::new(0)),
            speculative: Layer::default(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn key(&self) -> &PartitionKey {
        &self.key
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The index, for reading. Waits for one hold of the writer at most.
    pub fn read(&self) -> ShardedLockReadGuard<'_, Index> {
        if let Ok(index) = self.index.try_read() {
            return index;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        // A writer that panicked has ended the process: nobody sees its half-done work.
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        index
    }

    pub(super) const fn speculative(&self) -> &Layer {
        &self.speculative
    }

    /// Ranks that placements announced leading blocks of a prompt for, and how many, at `now` since
    /// the origin.
    pub fn find_speculative<'a>(
        &self,
        locals: &[LocalHash],
        now: Duration,
        scratch: &'a mut PlacedScratch,
    ) -> &'a [PlacedMatch] {
        self.speculative.find(locals, now, scratch)
    }

    /// How much is speculative.
    #[must_use]
    pub fn speculative_size(&self) -> SpeculativeSize {
        self.speculative.size()
    }

    /// Changes the index, then lets waiting readers in. For the writer thread only.
    pub(super) fn write<R>(&self, change: impl FnOnce(&mut Index) -> R) -> R {
        let result = change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
        let released = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && released.elapsed() < LET_IN_MAX {
            thread::yield_now();
        }
        result
    }
}

impl fmt::Debug for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Partition({}, {})", self.key, self.block_size)
    }
}

/// Why a partition cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PartitionError {
    /// Its workers have blocks of another size.
    #[error(
        "block_size is {asked}, but the workers of model {:?}, tenant {:?} have {present}: \
         all workers of a partition must agree",
        key.model(), key.tenant()
    )]
    BlockSize {
        /// The partition.
        key: PartitionKey,
        /// Its block size, in tokens.
        present: u32,
        /// The one asked for.
        asked: u32,
    },
    /// There are too many.
    #[error("the server has {PARTITIONS_MAX} partitions, the limit")]
    TooMany,
}

impl PartitionError {
    /// Code to report it with.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::BlockSize { .. } => ErrorCode::FailedPrecondition,
            Self::TooMany => ErrorCode::ResourceExhausted,
        }
    }
}

/// All partitions of this server.
#[derive(Debug, Default)]
pub struct Partitions {
    map: DashMap<PartitionKey, Arc<Partition>>,
    limits: Limits,
}

impl Partitions {
    /// One partition.
    #[must_use]
    pub fn get(&self, key: &PartitionKey) -> Option<Arc<Partition>> {
        self.map.get(key).map(|entry| Arc::clone(&entry))
    }

    /// One partition, made if it is not there.
    ///
    /// # Errors
    /// If it is there with another block size, or there are too many.
    pub fn get_or_create(
        &self,
        key: &PartitionKey,
        block_size: u32,
    ) -> Result<Arc<Partition>, PartitionError> {
        let full = self.map.len() >= PARTITIONS_MAX;
        let entry = match self.map.entry(key.clone()) {
            dashmap::Entry::Occupied(entry) => Arc::clone(entry.get()),
            dashmap::Entry::Vacant(_) if full => return Err(PartitionError::TooMany),
            dashmap::Entry::Vacant(entry) => {
                let partition = Partition::new(key.clone(), block_size, self.limits);
                Arc::clone(&entry.insert(Arc::new(partition)))
            }
        };
        if entry.block_size != block_size {
            return Err(PartitionError::BlockSize {
                key: key.clone(),
                present: entry.block_size,
                asked: block_size,
            });
        }
        Ok(entry)
    }

    /// Forgets a partition, with all it holds.
    pub fn remove(&self, key: &PartitionKey) {
        self.map.remove(key);
    }

    /// All partitions, by name.
    #[must_use]
    pub fn list(&self) -> Vec<Arc<Partition>> {
        let mut list: Vec<_> = self.map.iter().map(|entry| Arc::clone(&entry)).collect();
        list.sort_by(|a, b| a.key.cmp(&b.key));
        list
    }
}
