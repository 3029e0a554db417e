//! Compares locks around the real index: `cargo bench -p kvasir-benches --bench locks`.
//!
//! 64 workers have 1 M blocks in chains of 512, each block on one worker. A lookup queries the first 256 blocks of a
//! random chain; lookups follow each other without a pause. The writer stores and removes its own chains in events of
//! 16 blocks, without a pause, so that the index keeps its size. Each lock is measured in rounds, in turn with the
//! others; the table has the medians over the rounds. A case needs as many idle cores as it has threads.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "a bench reads clocks")]

use bench_figures::number::median;
use bench_figures::random::mixed;
use bench_figures::{Part, Section, Table};
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::ShardedLock;
use indexer_server::partitions::{Pace, Shard};
use kvasir_benches::events::{removed, stored};
use kvasir_index::{Index, Limits, Query, QueryKey, Scratch, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, TierSet, WorkerId,
};
use std::borrow::Cow;
use std::hint::{black_box, spin_loop};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: u32 = 64;
const CHAINS: u64 = 2_048;
const CHAIN_BLOCKS: u64 = 512;
const ASKED_BLOCKS: usize = 256;
const EVENT_BLOCKS: usize = 16;
/// Number of chains that the writer stores and removes in turn.
const WRITTEN_CHAINS: u64 = 256;

const ROUND: Duration = Duration::from_millis(200);
const ROUNDS: usize = 5;
/// Number of rounds with `--quick`.
const QUICK_ROUNDS: usize = 1;

fn chain(number: u64) -> Vec<StoredBlock> {
    let block = |at: u64| {
        let id = mixed(number << 32 | at);
        StoredBlock { name: BlockName(id), local: LocalHash(mixed(id)) }
    };
    (0..CHAIN_BLOCKS).map(block).collect()
}

struct Fleet {
    chains: Vec<Vec<StoredBlock>>,
    asked: Vec<Vec<LocalHash>>,
    /// Events that the writer applies in a cycle.
    written: Vec<(SourceId, KvEvent)>,
}

impl Fleet {
    fn new() -> Self {
        let chains: Vec<_> = (0..CHAINS).map(chain).collect();
        let locals = |chain: &Vec<StoredBlock>| {
            chain.iter().take(ASKED_BLOCKS).map(|block| block.local).collect()
        };
        let asked = chains.iter().map(locals).collect();
        let own: Vec<_> = (CHAINS..CHAINS + WRITTEN_CHAINS).map(chain).collect();
        // An index numbers its sources in the order in which they are added.
        let source = |chain: usize| SourceId(chain as u32 % WORKERS);
        let of_all = |events: fn(&[StoredBlock], usize) -> Vec<KvEvent>| {
            let chains = own.iter().enumerate();
            chains.flat_map(move |(number, chain)| {
                events(chain, EVENT_BLOCKS).into_iter().map(move |event| (source(number), event))
            })
        };
        let written = of_all(stored).chain(of_all(removed)).collect();
        Self { chains, asked, written }
    }

    fn index(&self) -> Index {
        let mut index = Index::new(Limits::default());
        let add = |worker| {
            let worker = WorkerId::new(&format!("worker-{worker}")).expect("a short name");
            index.add_source(&worker, "engine", 0, CopyMode::Counted).expect("a new source")
        };
        let sources: Vec<_> = (0..WORKERS).map(add).collect();
        for (chain, source) in self.chains.iter().zip(sources.iter().cycle()) {
            for event in stored(chain, EVENT_BLOCKS) {
                index.apply(*source, 0, &event).expect("a known source");
            }
        }
        index
    }
}

/// A lock around an index.
trait Guarded: Sync {
    fn read(&self, ask: &mut dyn FnMut(&Index));
    /// Calls `step` within one critical section, with the number of operations that it may do. Ends after `operations`
    /// operations, or earlier if the lock decides so. `step` returns the number of operations it did.
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize);
}

fn plain(index: &mut Index, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
    let mut left = operations;
    while left > 0 {
        left = left.saturating_sub(step(index, left));
    }
}

struct Std(RwLock<Index>);
impl Guarded for Std {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        ask(&self.0.read().expect("no panic"));
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        plain(&mut self.0.write().expect("no panic"), operations, step);
    }
}

struct ParkingLot(parking_lot::RwLock<Index>);
impl Guarded for ParkingLot {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        ask(&self.0.read());
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        plain(&mut self.0.write(), operations, step);
    }
}

struct Sharded(ShardedLock<Index>);
impl Guarded for Sharded {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        ask(&self.0.read().expect("no panic"));
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        plain(&mut self.0.write().expect("no panic"), operations, step);
    }
}

/// Sharded; the writer also lets waiting readers in.
struct LetIn {
    index: ShardedLock<Index>,
    waiting: CachePadded<AtomicU32>,
}
impl Guarded for LetIn {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        if let Ok(index) = self.index.try_read() {
            return ask(&index);
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let index = self.index.read().expect("no panic");
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        ask(&index);
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        plain(&mut self.index.write().expect("no panic"), operations, step);
        let released = Instant::now();
        let bound = Duration::from_micros(100);
        while self.waiting.load(Ordering::Acquire) > 0 && released.elapsed() < bound {
            thread::yield_now();
        }
    }
}

/// The server's lock.
struct Ours {
    shard: Shard,
    pace: Mutex<Pace>,
}
impl Guarded for Ours {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        ask(&self.shard.read());
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        let mut pace = self.pace.lock().expect("no panic");
        let mut left = operations;
        self.shard.write(|index| {
            pace.begin();
            while left > 0 {
                let done = step(index, pace.step());
                left = left.saturating_sub(done);
                if !pace.may_continue(done, self.shard.is_awaited()) {
                    return;
                }
            }
        });
    }
}

/// Yields like the server's lock, around another lock. While readers wait, the first step has this many operations.
struct GivesWay<L> {
    lock: L,
    waiting: CachePadded<AtomicU32>,
    crowded: AtomicBool,
    first_step: usize,
}

/// A lock with a non-blocking attempt.
trait Tried: Sync {
    fn try_read(&self, ask: &mut dyn FnMut(&Index)) -> bool;
    fn write(&self, change: &mut dyn FnMut(&mut Index));
}

impl Tried for RwLock<Index> {
    fn try_read(&self, ask: &mut dyn FnMut(&Index)) -> bool {
        RwLock::try_read(self).map(|index| ask(&index)).is_ok()
    }
    fn write(&self, change: &mut dyn FnMut(&mut Index)) {
        change(&mut RwLock::write(self).expect("no panic"));
    }
}

impl Tried for ShardedLock<Index> {
    fn try_read(&self, ask: &mut dyn FnMut(&Index)) -> bool {
        ShardedLock::try_read(self).map(|index| ask(&index)).is_ok()
    }
    fn write(&self, change: &mut dyn FnMut(&mut Index)) {
        change(&mut ShardedLock::write(self).expect("no panic"));
    }
}

impl<L: Tried> GivesWay<L> {
    fn new(lock: L, first_step: usize) -> Self {
        Self { lock, waiting: CachePadded::default(), crowded: AtomicBool::default(), first_step }
    }
}

impl<L: Tried> Guarded for GivesWay<L> {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        if self.lock.try_read(ask) {
            return;
        }
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut left = |index: &Index| {
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            ask(index);
        };
        while !self.lock.try_read(&mut left) {
            spin_loop();
        }
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        let mut left = operations;
        let mut is_cut = false;
        self.lock.write(&mut |index| {
            let mut size = if self.crowded.load(Ordering::Relaxed) { self.first_step } else { 64 };
            while left > 0 && !is_cut {
                left = left.saturating_sub(step(index, size));
                size = (size * 2).min(64);
                is_cut = self.waiting.load(Ordering::Relaxed) > 0;
            }
        });
        self.crowded.store(is_cut, Ordering::Relaxed);
        while self.waiting.load(Ordering::Acquire) > 0 {
            spin_loop();
        }
    }
}

/// Two copies: the writer changes the unread copy, then moves readers over to it, then updates the other copy. It needs
/// twice the memory and makes every change twice.
struct TwoCopies {
    copies: [ShardedLock<Index>; 2],
    read: CachePadded<AtomicUsize>,
}
impl Guarded for TwoCopies {
    fn read(&self, ask: &mut dyn FnMut(&Index)) {
        loop {
            if let Ok(index) = self.copies[self.read.load(Ordering::Acquire)].try_read() {
                return ask(&index);
            }
            spin_loop();
        }
    }
    fn hold(&self, operations: usize, step: &mut dyn FnMut(&mut Index, usize) -> usize) {
        let now = self.read.load(Ordering::Relaxed);
        plain(&mut self.copies[1 - now].write().expect("no panic"), operations, step);
        self.read.store(1 - now, Ordering::Release);
        plain(&mut self.copies[now].write().expect("no panic"), operations, step);
    }
}

#[derive(Default, Clone)]
struct Measured {
    reads: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    /// Median wait of a lookup that arrives at a random moment. A lookup that waits long thus represents all those that
    /// would have arrived meanwhile.
    arriving: f64,
    writes: f64,
}

struct Case {
    readers: usize,
    /// Operations per critical section, if the lock does not decide; none without a writer.
    hold: Option<usize>,
}

fn read(lock: &dyn Guarded, fleet: &Fleet, seed: u64, stop: &AtomicBool) -> Vec<u64> {
    let mut scratch = Scratch::default();
    let mut latencies = Vec::with_capacity(1 << 20);
    let mut number = seed << 32;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let locals = &fleet.asked[(mixed(number) % CHAINS) as usize];
        let key = QueryKey::Locals(locals);
        let query = Query {
            key,
            tiers: TierSet::ALL,
            workers: None,
            minimum_overlap: 1,
            shared: None,
            prompt: None,
        };
        let begin = Instant::now();
        lock.read(&mut |index| index.find(black_box(query), &mut scratch));
        latencies.push(begin.elapsed().as_nanos() as u64);
        assert_eq!(scratch.matches().first().map(|at| at.blocks), Some(ASKED_BLOCKS as u32));
    }
    latencies
}

/// Position of the writer in its events: the event, and how much of it is done.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    event: usize,
    taken: usize,
}

/// Applies at most `limit` operations of one event. Returns how many.
fn apply(index: &mut Index, fleet: &Fleet, at: &mut Place, limit: usize) -> usize {
    let (source, event) = &fleet.written[at.event];
    let rest = event.operations() - at.taken;
    let count = rest.min(limit);
    let piece = if count == event.operations() {
        Cow::Borrowed(event)
    } else {
        Cow::Owned(piece(event, at.taken, count))
    };
    let counts = index.apply(*source, 0, &piece).expect("a known source");
    assert_eq!(counts.applied as usize, count);
    *at = if count < rest {
        Place { taken: at.taken + count, ..*at }
    } else {
        Place { event: (at.event + 1) % fleet.written.len(), taken: 0 }
    };
    count
}

fn piece(event: &KvEvent, from: usize, count: usize) -> KvEvent {
    match event {
        KvEvent::Stored { parent, tier, blocks } => {
            let before = from.checked_sub(1).map(|last| blocks[last].name);
            let blocks = blocks[from..from + count].to_vec();
            KvEvent::Stored { parent: before.or(*parent), tier: *tier, blocks }
        }
        KvEvent::Removed { tier, names } => {
            KvEvent::Removed { tier: *tier, names: names[from..from + count].to_vec() }
        }
        KvEvent::StoredNames { .. }
        | KvEvent::Gone { .. }
        | KvEvent::Cleared
        | KvEvent::ClearedTier(_) => {
            unreachable!("not written here")
        }
    }
}

/// Counts operations written until `stop`. Then continues to the end of the cycle of events, so that the next round
/// finds the same index.
fn write(lock: &dyn Guarded, fleet: &Fleet, hold: usize, stop: &AtomicBool) -> usize {
    let mut at = Place::default();
    let mut written = 0;
    while at != Place::default() || !stop.load(Ordering::Relaxed) {
        let begin = at;
        let mut done = 0;
        // Operations left in the cycle, as an upper bound. Two copies are written one after the other.
        let left = (fleet.written.len() - begin.event) * EVENT_BLOCKS - begin.taken;
        let operations = hold.min(left);
        lock.hold(operations, &mut |index, limit| {
            if done >= operations {
                (at, done) = (begin, 0);
            }
            let now = apply(index, fleet, &mut at, limit.min(operations - done));
            done += now;
            now
        });
        written += done;
    }
    written
}

fn measure(lock: &dyn Guarded, fleet: &Fleet, case: &Case) -> Measured {
    let stop = AtomicBool::new(false);
    let begin = Instant::now();
    let (mut latencies, written) = thread::scope(|scope| {
        let stop = &stop;
        let writer = case.hold.map(|hold| scope.spawn(move || write(lock, fleet, hold, stop)));
        let readers: Vec<_> = (0..case.readers)
            .map(|at| scope.spawn(move || read(lock, fleet, at as u64, stop)))
            .collect();
        thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
        let latencies: Vec<Vec<u64>> =
            readers.into_iter().map(|at| at.join().expect("no panic")).collect();
        (latencies.concat(), writer.map_or(0, |at| at.join().expect("no panic")))
    });
    let took = begin.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let at = |share: f64| latencies[((latencies.len() - 1) as f64 * share) as usize] as f64;
    Measured {
        reads: latencies.len() as f64 / ROUND.as_secs_f64(),
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        arriving: arriving(&latencies, 0.5),
        writes: written as f64 / took,
    }
}

/// The quantile of the time from a random moment until the current lookup ends. The latencies are sorted.
fn arriving(latencies: &[u64], quantile: f64) -> f64 {
    let total: f64 = latencies.iter().map(|&at| at as f64).sum();
    // Weight of the moments that are farther than `time` from a lookup's end: (latency - time) for each longer lookup.
    let mut sum = 0.0;
    let mut count = 0.0;
    for &latency in latencies.iter().rev() {
        let beyond = sum - count * latency as f64;
        if beyond > total * (1.0 - quantile) {
            return (sum - total * (1.0 - quantile)) / count;
        }
        sum += latency as f64;
        count += 1.0;
    }
    0.0
}

fn locks(mut index: impl FnMut() -> Index) -> Vec<(&'static str, Box<dyn Guarded>)> {
    let shard = Shard::new(0, Limits::default(), &Arc::default());
    shard.write(|empty| *empty = index());
    let copies = [ShardedLock::new(index()), ShardedLock::new(index())];
    vec![
        ("std RwLock", Box::new(Std(RwLock::new(index())))),
        ("parking_lot RwLock", Box::new(ParkingLot(parking_lot::RwLock::new(index())))),
        ("ShardedLock", Box::new(Sharded(ShardedLock::new(index())))),
        ("ShardedLock, lets in", {
            let index = ShardedLock::new(index());
            Box::new(LetIn { index, waiting: CachePadded::default() })
        }),
        ("ours: gives way", Box::new(Ours { shard, pace: Mutex::default() })),
        ("gives way, the bench's own", { Box::new(GivesWay::new(ShardedLock::new(index()), 2)) }),
        ("gives way, one line", Box::new(GivesWay::new(RwLock::new(index()), 2))),
        ("gives way, steps from 1", Box::new(GivesWay::new(ShardedLock::new(index()), 1))),
        ("two copies", Box::new(TwoCopies { copies, read: CachePadded::default() })),
    ]
}

const TITLE: &str = "Locks around the index";
const NOTE: &str = "Readers ask for 256 blocks without pause, the writer stores and removes without pause: \
    medians of the rounds of one process, the locks in turn.";

/// `--json` prints the part for the report of all benches, `--quick` measures one round.
fn main() {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    let rounds = if has("--quick") { QUICK_ROUNDS } else { ROUNDS };
    let mut part = Part { title: TITLE.to_owned(), ..Part::default() };
    part.notes.push(NOTE.to_owned());
    compare(rounds, |section| {
        if !has("--json") {
            println!("\n{}\n\n{}", section.title, section.table);
        }
        part.sections.push(section);
    });
    if has("--json") {
        println!("{}", serde_json::to_string(&part).expect("a part is plain data"));
    }
}

fn compare(count: usize, mut say: impl FnMut(Section)) {
    let fleet = Fleet::new();
    let locks = locks(|| fleet.index());
    let cases = [(1, None), (2, None), (1, Some(1_024)), (1, Some(256))];
    for (readers, hold) in cases {
        let title = match hold {
            None => format!("Readers: {readers}"),
            Some(hold) => format!("Readers: {readers}; a writer with holds of {hold}"),
        };
        let case = Case { readers, hold };
        let mut rounds = vec![Vec::new(); locks.len()];
        for _ in 0..count {
            for ((_, lock), rounds) in locks.iter().zip(&mut rounds) {
                rounds.push(measure(&**lock, &fleet, &case));
            }
        }
        let heads = ["lock", "M lookups/s", "p50 ns", "p99 ns", "p99.9 ns"];
        let heads = heads.into_iter().chain(["p50 on arrival ns", "M blocks/s"]);
        let mut table = Table::new(heads);
        for ((name, _), rounds) in locks.iter().zip(&rounds) {
            let median =
                |of: fn(&Measured) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>());
            let reads = median(|at| at.reads) / 1e6;
            let writes = median(|at| at.writes) / 1e6;
            let p50 = median(|at| at.p50);
            let p99 = median(|at| at.p99);
            let p999 = median(|at| at.p999);
            let arriving = median(|at| at.arriving);
            let times = [p50, p99, p999, arriving].map(|time| format!("{time:.0}"));
            let row = [(*name).to_owned(), format!("{reads:.2}")].into_iter().chain(times);
            table.row(row.chain([format!("{writes:.2}")]));
        }
        say(Section { title, note: String::new(), table });
    }
}
