//! Adapter for Kvasir's index with the server's locking: a sharded lock that the writer holds for a bounded number of
//! block operations, in steps, and releases after the step in which a reader arrived. The rules are those of the server
//! (`indexer-server/src/partitions/shard.rs`, `pace.rs` and `command.rs`), reimplemented here: the server needs a newer
//! tokio than one of the peers allows, so it cannot be built into this bench. There is only one writer thread, so the
//! turns of the server's writers are left out.

use super::kvasir::{self, Events};
use super::{Ask, Index, Shared};
use crate::workload::{Content, Operation, Script};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard};
use kvasir_index::{Scratch, SourceId};
use kvasir_proto::types::{KvEvent, LocalHash, SourceStatus};
use std::borrow::Cow;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Number of spins of a waiting reader before it sleeps.
const READER_LOOKS_MAX: u32 = 1_000;
/// Number of spins of the writer until waiting readers are in, before it yields its core to them.
const LET_IN_LOOKS_MAX: u32 = 1_000;
/// Maximum time for which the writer yields to waiting readers.
const LET_IN_MAX: Duration = Duration::from_micros(100);
/// Maximum number of block operations in one critical section.
const HOLD_OPERATIONS_MAX: usize = 1_024;
/// Maximum number of block operations in one step.
const STEP_OPERATIONS_MAX: usize = 64;
/// Size of the first step after a critical section that was cut short.
const CROWDED_STEP_OPERATIONS: usize = 2;

pub(crate) struct Locked {
    partition: Arc<Partition>,
    sources: Vec<SourceId>,
    pace: Pace,
}

pub(crate) struct Partition {
    index: ShardedLock<kvasir_index::Index>,
    /// Number of readers that found the lock taken.
    waiting: CachePadded<AtomicU32>,
}

impl Partition {
    fn read(&self) -> ShardedLockReadGuard<'_, kvasir_index::Index> {
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
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        index
    }

    fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    fn write<R>(&self, change: impl FnOnce(&mut kvasir_index::Index) -> R) -> R {
        let result = change(&mut self.index.write().unwrap_or_else(PoisonError::into_inner));
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

/// Size of the writer's next step.
#[derive(Default)]
struct Pace {
    /// Whether a reader cut the last critical section short.
    crowded: bool,
    /// Operations left in this critical section.
    left: usize,
    /// Operations of the next step, if there is one.
    step: usize,
}

impl Pace {
    fn begin(&mut self) {
        self.left = HOLD_OPERATIONS_MAX;
        self.step = if self.crowded { CROWDED_STEP_OPERATIONS } else { STEP_OPERATIONS_MAX };
        self.crowded = false;
    }

    fn step(&self) -> usize {
        self.step.min(self.left)
    }

    fn go_on(&mut self, done: usize, reader_waits: bool) -> bool {
        self.left = self.left.saturating_sub(done.max(1));
        self.step = (self.step * 2).min(STEP_OPERATIONS_MAX);
        self.crowded = reader_waits;
        self.left > 0 && !reader_waits
    }
}

/// Operations `from` to `from + count` of an event. Blocks continue after the previous operation's block.
fn piece(event: &KvEvent, from: usize, count: usize) -> Cow<'_, KvEvent> {
    if from == 0 && count == event.operations() {
        return Cow::Borrowed(event);
    }
    let to = from + count;
    Cow::Owned(match event {
        KvEvent::Stored { parent, tier, blocks } => {
            let before = from.checked_sub(1).and_then(|last| blocks.get(last));
            KvEvent::Stored {
                parent: before.map_or(*parent, |at| Some(at.name)),
                tier: *tier,
                blocks: blocks[from..to].to_vec(),
            }
        }
        KvEvent::Removed { tier, names } => {
            KvEvent::Removed { tier: *tier, names: names[from..to].to_vec() }
        }
        KvEvent::StoredNames { .. } | KvEvent::Gone { .. } | KvEvent::Cleared | KvEvent::ClearedTier(_) => {
            unreachable!("no workload has these")
        }
    })
}

/// Ends an event if it is complete, else leaves it in progress. Returns how many operations of the next step's event
/// are done.
fn end_step(
    index: &mut kvasir_index::Index,
    source: SourceId,
    event: &KvEvent,
    taken: usize,
    goes_on: bool,
) -> usize {
    if taken == event.operations() {
        index.end_change(source);
        index.set_status(source, SourceStatus::default());
        return 0;
    }
    if !goes_on {
        index.begin_change(source);
    }
    taken
}

impl Index for Locked {
    const NAME: &'static str = "kvasir";
    const EXACT: bool = true;
    type Asked = Partition;
    type Batch = Events;

    fn new(workers: usize) -> Self {
        let (index, sources) = kvasir::build(workers);
        let index = ShardedLock::new(index);
        let waiting = CachePadded::new(AtomicU32::new(0));
        let partition = Arc::new(Partition { index, waiting });
        Self { partition, sources, pace: Pace::default() }
    }

    fn prepare(content: &Content, script: &Script, part: &[Operation], batch: &mut Events) {
        kvasir::prepare(content, script, part, batch);
    }

    /// Each event is a separate batch, as if engines sent one event at a time.
    fn apply(&mut self, batch: &mut Events) {
        let Self { partition, sources, pace } = self;
        let mut events = batch.iter().peekable();
        // Number of finished operations of the next event.
        let mut taken = 0;
        while events.peek().is_some() {
            partition.write(|index| {
                pace.begin();
                let mut goes_on = true;
                while goes_on && let Some((worker, event)) = events.peek() {
                    let now = pace.step().min(event.operations() - taken);
                    let source = sources[*worker as usize];
                    index.apply(source, kvasir::RANK, &piece(event, taken, now)).expect("known");
                    goes_on = pace.go_on(now, partition.is_awaited());
                    taken = end_step(index, source, event, taken + now, goes_on);
                    let _complete = events.next_if(|_| taken == 0);
                }
            });
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
