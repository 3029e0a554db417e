//! What storage events cost those who register and drop blocks, while no NATS server takes them:
//! `cargo bench -p kvbm-agent --bench storage_events`. The bar is 5 % more time than without them.

#![allow(clippy::expect_used, reason = "a bench")]

use divan::Bencher;
use divan::counter::ItemsCount;
use kvasir_blocks::{BlockIdentity, BlockPool, EventManager, EvictionPolicy, Host, PoolConfig};
use kvasir_proto::types::LocalHash;
use kvbm_agent::storage::{STORAGE_INTERVAL_DEFAULT, StorageBook, StorageConfig, Work};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Scope};
use std::time::Duration;

const BLOCKS: u32 = 65_536;
/// Operations of one sample.
const BATCH: usize = 4_096;
/// Pause of the reader where there is nothing to read.
const PAUSE: Duration = Duration::from_micros(200);

fn main() {
    divan::main();
}

/// Registers chains and drops them, while another thread reads the events as the agent does.
fn measure(bencher: Bencher<'_, '_>, book: Option<&StorageBook>) {
    let events = EventManager::new(BLOCKS as usize);
    let config = PoolConfig { eviction: EvictionPolicy::Lineage, ..PoolConfig::new(BLOCKS, 16) };
    let pool: BlockPool<Host> = BlockPool::new(config, Arc::clone(&events)).expect("a pool");
    let is_over = AtomicBool::new(false);
    let mut next = 0_u64;
    thread::scope(|scope: &Scope<'_, '_>| {
        scope.spawn(|| read(&events, book, &is_over));
        // More blocks than the pool has, so that each registration evicts another block: both kinds of events.
        bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
            let locals: Vec<_> = (0..BATCH as u64).map(|at| LocalHash(next + at)).collect();
            next += BATCH as u64;
            for identity in BlockIdentity::chain(&locals) {
                let block = pool.get_mutable_block().expect("a block");
                let complete = block.complete(identity).expect("it is consistent");
                drop(complete.register().expect("it registers"));
            }
        });
        is_over.store(true, Ordering::Release);
    });
}

/// Takes the events, and tells the book of them.
fn read(events: &EventManager, book: Option<&StorageBook>, is_over: &AtomicBool) {
    let mut step = Vec::new();
    while !is_over.load(Ordering::Acquire) {
        match events.read(4_096, &mut step) {
            Ok(()) => book.into_iter().for_each(|book| book.push(&step)),
            Err(_overflowed) => {
                let image = events.image();
                book.into_iter().for_each(|book| book.lost(image.watermark));
            }
        }
        if step.is_empty() {
            thread::park_timeout(PAUSE);
        }
        step.clear();
    }
}

#[divan::bench]
fn without(bencher: Bencher<'_, '_>) {
    measure(bencher, None);
}

/// The connection broke after an image: events wait until there are too many, then an image is due that nobody takes.
#[divan::bench]
fn with_a_dead_server(bencher: Bencher<'_, '_>) {
    let config = StorageConfig { interval: STORAGE_INTERVAL_DEFAULT, volume_name: None };
    let book = StorageBook::new(config);
    assert_eq!(book.next(Duration::ZERO).0, Work::Image);
    measure(bencher, Some(&book));
}
