//! Ours as the server keeps it: behind a sharded lock that the writer holds for a bounded number
//! of block operations, after which it lets waiting readers in. The waiting is the server's
//! (`indexer-server/src/index/partition.rs`), which does not export it.

use super::kvasir::{self, Events};
use super::{Ask, Index, Shared};
use crate::workload::{Content, Operation, Script};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use kvasir_index::{Scratch, SourceId};
use kvasir_proto::types::LocalHash;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Longest time the writer steps aside for waiting readers.
const LET_IN_MAX: Duration = Duration::from_micros(100);
/// Most block operations of one hold.
const HOLD_OPERATIONS_MAX: usize = 1_024;

pub(crate) struct Locked {
    partition: Arc<Partition>,
    sources: Vec<SourceId>,
}

pub(crate) struct Partition {
    index: ShardedLock<kvasir_index::Index>,
    /// Readers that found the lock taken.
    waiting: CachePadded<AtomicU32>,
}

impl Partition {
    fn read(&self) -> ShardedLockReadGuard<'_, kvasir_index::Index> {
        if let Ok(index) = self.index.try_read() {
            return index;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        index
    }

    fn write<R>(&self, change: impl FnOnce(&mut kvasir_index::Index) -> R) -> R {
        let result = change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
        let released = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && released.elapsed() < LET_IN_MAX {
            thread::yield_now();
        }
        result
    }
}

impl Index for Locked {
    const NAME: &'static str = "kvasir";
    const EXACT: bool = true;
    type Asked = Partition;
    /// One list of events per hold.
    type Batch = Vec<Events>;

    fn new(workers: usize) -> Self {
        let (index, sources) = kvasir::build(workers);
        let index = ShardedLock::new(index);
        let waiting = CachePadded::new(AtomicU32::new(0));
        Self { partition: Arc::new(Partition { index, waiting }), sources }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Vec<Events>) {
        let mut events = Events::new();
        kvasir::prepare(content, script, part, &mut events);
        let mut room = 0;
        batch.clear();
        for event in events {
            let operations = event.1.operations();
            if operations > room {
                batch.push(Events::new());
                room = HOLD_OPERATIONS_MAX;
            }
            room = room.saturating_sub(operations);
            batch.last_mut().expect("a hold was begun").push(event);
        }
    }

    fn apply(&mut self, batch: &mut Vec<Events>) {
        for hold in batch {
            self.partition.write(|index| kvasir::apply(index, &self.sources, hold));
        }
    }

    fn pairs(&mut self) -> usize {
        self.partition.read().stats().pairs as usize
    }

    fn asked(&self) -> &Partition {
        &self.partition
    }
}

impl Shared for Locked {
    fn shared(&self) -> Arc<Partition> {
        Arc::clone(&self.partition)
    }
}

impl Ask for Partition {
    const CALLS: &'static [&'static str] = <kvasir_index::Index as Ask>::CALLS;
    type Hash = LocalHash;
    type Answer = Scratch;

    fn hash(local: u64) -> LocalHash {
        LocalHash(local)
    }

    fn ask(&self, call: usize, query: &[LocalHash], answer: &mut Scratch) {
        Ask::ask(&*self.read(), call, query, answer);
    }

    fn scores(&self, call: usize, answer: &Scratch) -> Vec<(u32, u32)> {
        Ask::scores(&*self.read(), call, answer)
    }
}
