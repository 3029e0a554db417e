//! Blocks of owners with other layouts: NIXL reads complete blocks, and the required parts become a block of this
//! agent.

use crate::cases::{RETURNED, until_within};
use crate::fetching::{options, serving_described};
use crate::place::{
    Fetching, Memory, Serving, free_and_active, prompt, save_bytes, verified_bytes,
};
use crate::ranks::{BY_LAYER, BY_OUTER, CONTIGUOUS, Rank};
use kvasir_blocks::{BlockIdentity, LayoutConfig, LayoutForm};
use kvasir_tiers::manager::KvBlockManager;
use kvasir_transfer::FetchFault;
use kvasir_transfer::limits::{READ_BYTES_MAX, REQUEST_BLOCKS_MAX, STAGED_SIZES_MAX};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::join;

/// An agent with the blocks of its rank.
struct Source {
    manager: Arc<KvBlockManager>,
    serving: Serving,
}

async fn owner(rank: &Rank, memory: Memory, blocks: &[BlockIdentity]) -> Source {
    let manager = rank.manager(memory, blocks.len() as u32);
    save_bytes(&manager, blocks, |block| rank.bytes_of(block));
    let serving = serving_described(&manager, rank.description()).await;
    Source { manager, serving }
}

async fn owners(size: u32, form: LayoutForm, blocks: &[BlockIdentity]) -> Vec<Source> {
    let mut owners = Vec::new();
    for rank in 0..size {
        owners.push(owner(&Rank::of(rank, size, form), Memory::Private, blocks).await);
    }
    owners
}

fn fetching(rank: &Rank, slots: u32) -> Fetching {
    Fetching::over(rank.manager(Memory::Shared, slots), rank.description(), Some(&options()))
}

fn addresses(owners: &[Source]) -> Vec<SocketAddr> {
    owners.iter().map(|owner| owner.serving.address).collect()
}

/// Waits until no block is lent, then stops the owners.
async fn stop(owners: Vec<Source>) {
    for Source { manager, serving } in owners {
        until_within(RETURNED, "a loan is left", || free_and_active(&manager).1 == 0).await;
        serving.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_ranks_become_eight_and_back() {
    // More than one request.
    let blocks = prompt(1, REQUEST_BLOCKS_MAX as u64 + 3);
    for (from, to, form) in [(4, 8, BY_LAYER), (8, 4, BY_OUTER), (2, 1, CONTIGUOUS)] {
        let sources = owners(from, CONTIGUOUS, &blocks).await;
        for number in [0, to - 1] {
            let rank = Rank::of(number, to, form);
            let into = fetching(&rank, blocks.len() as u32);
            assert_eq!(into.backend.name(), "nixl");
            let fetched = into.fetch_parts(&addresses(&sources), &blocks).await;
            assert_eq!((fetched.blocks.len(), fetched.stopped), (blocks.len(), None));
            drop(fetched.blocks);
            let verified = verified_bytes(&into.manager, &blocks, |at| rank.bytes_of(at));
            assert_eq!(verified, blocks.len());
        }
        stop(sources).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_owner_lacks_stops_all_unless_another_one_has_it() {
    let blocks = prompt(1, 6);
    let whole = Rank::of(0, 1, CONTIGUOUS);
    let halves = [0, 1].map(|rank| Rank::of(rank, 2, BY_LAYER));
    let left = owner(&halves[0], Memory::Private, &blocks).await;
    let short = owner(&halves[1], Memory::Private, &blocks[..4]).await;
    let long = owner(&halves[1], Memory::Shared, &blocks).await;
    let into = fetching(&whole, 8);
    let peers = [&left, &short, &long].map(|owner| owner.serving.address);
    let fetched = into.fetch_parts(&peers[..2], &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (4, Some(FetchFault::Missing)));
    drop(fetched.blocks);
    let into = fetching(&whole, 8);
    let fetched = into.fetch_parts(&peers, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (6, None));
    let came: Vec<_> = fetched.peers.iter().map(|peer| peer.blocks).collect();
    assert_eq!(came, [6, 4, 2]);
    drop(fetched.blocks);
    assert_eq!(verified_bytes(&into.manager, &blocks, |block| whole.bytes_of(block)), 6);
    stop(vec![left, short, long]).await;
}

/// Two fetches share one slot of memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fetches_of_large_blocks_take_turns() {
    let large = |rank: Rank| {
        let inner_dim = rank.config.inner_dim << 12;
        Rank { config: LayoutConfig { inner_dim, ..rank.config }, ..rank }
    };
    let theirs = large(Rank::of(0, 1, CONTIGUOUS));
    let ours = large(Rank::of(0, 1, BY_LAYER));
    assert!(theirs.bytes() > READ_BYTES_MAX / 2);
    let blocks = prompt(1, 6);
    let source = owner(&theirs, Memory::Private, &blocks).await;
    let into = fetching(&ours, 6);
    let peers = [source.serving.address];
    // Of two sessions, like any two sessions of an agent.
    let (left, right) = blocks.split_at(3);
    let (left, right) = join!(into.fetch_parts(&peers, left), into.fetch_parts(&peers, right));
    for fetched in [left, right] {
        assert_eq!((fetched.blocks.len(), fetched.stopped), (3, None));
    }
    assert_eq!(verified_bytes(&into.manager, &blocks, |block| ours.bytes_of(block)), 6);
    stop(vec![source]).await;
}

/// One size per alignment that an owner chooses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_many_sizes_arrive() {
    let blocks = prompt(1, 2 * STAGED_SIZES_MAX as u64 + 2);
    let ours = Rank::of(0, 1, BY_LAYER);
    let into = fetching(&ours, blocks.len() as u32);
    for (blocks, bits) in blocks.chunks(2).zip(7..) {
        let rank = Rank::of(0, 1, BY_OUTER);
        let config = LayoutConfig { alignment_bytes: 1 << bits, ..rank.config };
        let theirs = Rank { config, ..rank };
        let source = owner(&theirs, Memory::Private, blocks).await;
        let fetched = into.fetch_parts(&[source.serving.address], blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (2, None), "alignment {}", 1 << bits);
        stop(vec![source]).await;
    }
    for blocks in blocks.chunks(2) {
        let verified = verified_bytes(&into.manager, blocks, |block| ours.bytes_of(block));
        assert_eq!(verified, 2);
    }
}
