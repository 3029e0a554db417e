//! Cost per block of pool operations: `cargo bench -p kvasir-blocks`. One core. Targets: 2 M/s for allocate and free,
//! and 500 k/s for register and drop with events.

#![allow(clippy::expect_used, reason = "a bench")]

use divan::Bencher;
use divan::counter::ItemsCount;
use kvasir_blocks::{
    BlockEvent, BlockIdentity, BlockPool, EventManager, EvictionPolicy, Host, PoolConfig,
};
use kvasir_proto::types::{LocalHash, SequenceHash};
use std::sync::Arc;

const BLOCKS: u32 = 65_536;
/// Operations per sample.
const BATCH: u64 = 1_024;
const CHAIN_BLOCKS: usize = 256;

fn main() {
    divan::main();
}

fn pool(eviction: EvictionPolicy) -> (BlockPool<Host>, Arc<EventManager>) {
    let events = EventManager::new(65_536);
    let config = PoolConfig { eviction, ..PoolConfig::new(BLOCKS, 16) };
    (BlockPool::new(config, Arc::clone(&events)).expect("a pool"), events)
}

/// Chains of [`CHAIN_BLOCKS`] blocks, with hashes as widely distributed as real ones.
fn identities(count: usize) -> Vec<BlockIdentity> {
    let mut identities = Vec::with_capacity(count);
    for chain in 0..count.div_ceil(CHAIN_BLOCKS) as u64 {
        let local = |at: u64| LocalHash((chain << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let locals: Vec<_> = (0..CHAIN_BLOCKS as u64).map(local).collect();
        identities.extend(BlockIdentity::chain(&locals));
    }
    identities.truncate(count);
    identities
}

fn register(pool: &BlockPool<Host>, identity: BlockIdentity) {
    let block = pool.get_mutable_block().expect("a block");
    let complete = block.complete(identity).expect("it is consistent");
    drop(complete.register().expect("it registers"));
}

#[divan::bench]
fn allocate_and_free(bencher: Bencher<'_, '_>) {
    let (pool, _events) = pool(EvictionPolicy::Lineage);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for _ in 0..BATCH {
            drop(divan::black_box(pool.get_mutable_block()));
        }
    });
}

#[divan::bench]
fn allocate_and_free_by_64(bencher: Bencher<'_, '_>) {
    let (pool, _events) = pool(EvictionPolicy::Lineage);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for _ in 0..BATCH / 64 {
            drop(divan::black_box(pool.get_mutable_blocks(64)));
        }
    });
}

/// The pool is full: each registered block evicts another one. This makes two events per block, which are read.
#[divan::bench(args = [EvictionPolicy::Lru, EvictionPolicy::TinyLfu, EvictionPolicy::Lineage])]
fn register_evict_and_drop(bencher: Bencher<'_, '_>, eviction: EvictionPolicy) {
    let (pool, events) = pool(eviction);
    let identities = identities(4 * BLOCKS as usize);
    let mut next = identities.iter().cycle();
    for _ in 0..BLOCKS {
        register(&pool, *next.next().expect("a cycle"));
    }
    let mut read: Vec<BlockEvent> = Vec::new();
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        for _ in 0..BATCH {
            register(&pool, *next.next().expect("a cycle"));
        }
        read.clear();
        while events.read(4_096, &mut read).is_err() {
            divan::black_box(events.image());
        }
    });
}

/// A prompt of 256 inactive blocks: all are activated and released again.
#[divan::bench]
fn match_prefix_of_256(bencher: Bencher<'_, '_>) {
    let (pool, _events) = pool(EvictionPolicy::Lineage);
    let identities = identities(BLOCKS as usize);
    identities.iter().for_each(|identity| register(&pool, *identity));
    let names: Vec<SequenceHash> = identities.iter().map(|at| at.sequence).collect();
    let mut chains = names.chunks(CHAIN_BLOCKS).cycle();
    bencher.counter(ItemsCount::new(CHAIN_BLOCKS)).bench_local(|| {
        drop(divan::black_box(pool.match_prefix(chains.next().expect("a cycle"))));
    });
}
