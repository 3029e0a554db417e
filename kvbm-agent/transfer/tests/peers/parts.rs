//! Blocks between agents with different layouts: the result equals a naive copy.

use crate::place::{
    Fetching, Memory, Serving, free_and_active, prompt, save_bytes, verified_bytes,
};
use crate::ranks::{BY_LAYER, BY_OUTER, CONTIGUOUS, Rank};
use kvasir_blocks::sets::TensorParallel;
use kvasir_blocks::{BlockIdentity, LayoutConfig, LayoutForm};
use kvasir_process::access::Guard;
use kvasir_tiers::manager::KvBlockManager;
use kvasir_transfer::FetchFault;
use kvasir_transfer::limits::{REQUEST_BLOCKS_MAX, UNTAKEN_TIMEOUT};
use proptest::prelude::*;
use proptest::sample::select;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::runtime::Builder;

/// An agent with the blocks of its rank.
struct Source {
    address: SocketAddr,
    serving: Serving,
    _manager: Arc<KvBlockManager>,
}

async fn owner(rank: &Rank, memory: Memory, blocks: &[BlockIdentity]) -> Source {
    let manager = rank.manager(memory, blocks.len().max(1) as u32);
    save_bytes(&manager, blocks, |block| rank.bytes_of(block));
    let port = (UNTAKEN_TIMEOUT, Guard::default());
    let serving = Serving::described(&manager, rank.description(), port, None).await;
    Source { address: serving.address, serving, _manager: manager }
}

async fn owners(ranks: &[Rank], memory: Memory, blocks: &[BlockIdentity]) -> Vec<Source> {
    let mut owners = Vec::new();
    for rank in ranks {
        owners.push(owner(rank, memory, blocks).await);
    }
    owners
}

async fn stop(owners: Vec<Source>) {
    for owner in owners {
        owner.serving.stop().await;
    }
}

fn fetching(rank: &Rank, memory: Memory, slots: u32) -> Fetching {
    Fetching::described(rank.manager(memory, slots), rank.description())
}

fn group(size: u32, form: LayoutForm) -> Vec<Rank> {
    (0..size).map(|rank| Rank::of(rank, size, form)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn four_ranks_become_eight_and_back() {
    // More than one request.
    let blocks = prompt(1, REQUEST_BLOCKS_MAX as u64 + 3);
    for (from, to, needed) in [(4, 8, 1), (8, 4, 2), (1, 2, 1), (2, 1, 2), (16, 1, 16)] {
        let sources = owners(&group(from, CONTIGUOUS), Memory::Private, &blocks).await;
        let addresses: Vec<_> = sources.iter().map(|owner| owner.address).collect();
        for rank in [0, to - 1] {
            let rank = Rank::of(rank, to, BY_LAYER);
            let fetching = fetching(&rank, Memory::Shared, blocks.len() as u32);
            let fetched = fetching.fetch_parts(&addresses, &blocks).await;
            assert_eq!((fetched.blocks.len(), fetched.stopped), (blocks.len(), None));
            let came: Vec<_> = fetched.peers.iter().filter(|peer| peer.blocks > 0).collect();
            assert_eq!(came.len(), needed, "{:?}", fetched.peers);
            assert!(came.iter().all(|peer| (peer.blocks, &peer.stopped) == (blocks.len(), &None)));
            let is_other = |fault: &FetchFault| matches!(fault, FetchFault::NotNeeded { .. });
            let others = fetched.peers.iter().filter_map(|peer| peer.stopped.as_ref());
            assert_eq!(others.filter(|fault| is_other(fault)).count(), from as usize - needed);
            // Padding is not sent.
            let parts = 3 * 2 * 4 * (16 / to) as usize * 2 * blocks.len();
            assert_eq!(fetched.bytes, parts as u64);
            drop(fetched.blocks);
            let verified = verified_bytes(&fetching.manager, &blocks, |at| rank.bytes_of(at));
            assert_eq!(verified, blocks.len());
            assert_eq!(fetching.counters.metrics().fetched, blocks.len() as u64);
        }
        stop(sources).await;
    }
}

/// The first call detects the different layout, and keeps the connection for the second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_with_another_layout_is_told_from_others() {
    let blocks = prompt(1, 3);
    let theirs = Rank::of(0, 1, CONTIGUOUS);
    let ours = Rank::of(0, 1, BY_OUTER);
    let owner = owner(&theirs, Memory::Private, &blocks).await;
    let fetching = fetching(&ours, Memory::Private, 4);
    for _ in 0..2 {
        let fetched = fetching.fetch(owner.address, &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (0, Some(FetchFault::OtherLayout)));
        let fetched = fetching.fetch_parts(&[owner.address], &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (3, None));
    }
    assert_eq!(verified_bytes(&fetching.manager, &blocks, |block| ours.bytes_of(block)), 3);
    let metrics = fetching.counters.metrics();
    assert_eq!((metrics.fetches, metrics.stopped.len()), (2, 0), "{metrics:?}");
    assert_eq!(free_and_active(&fetching.manager), (1, 0));
    // The idle connection is useless once its owner has stopped.
    let address = owner.address;
    owner.serving.stop().await;
    let gone = fetching.fetch_parts(&[address], &prompt(2, 1)).await;
    assert!(matches!(gone.stopped, Some(FetchFault::Lost(_))), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_owner_lacks_stops_all_unless_another_one_has_it() {
    let blocks = prompt(1, 6);
    let halves = group(2, CONTIGUOUS);
    let left = owner(&halves[0], Memory::Private, &blocks).await;
    let short = owner(&halves[1], Memory::Private, &blocks[..4]).await;
    let whole = Rank::of(0, 1, CONTIGUOUS);
    let into = fetching(&whole, Memory::Private, 8);
    let fetched = into.fetch_parts(&[left.address, short.address], &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (4, Some(FetchFault::Missing)));
    let stops: Vec<_> = fetched.peers.iter().map(|peer| peer.stopped.clone()).collect();
    assert_eq!(stops, [Some(FetchFault::OtherPart), Some(FetchFault::Missing)]);
    drop(fetched.blocks);
    assert_eq!(verified_bytes(&into.manager, &blocks, |block| whole.bytes_of(block)), 4);
    assert_eq!(free_and_active(&into.manager), (4, 0));
    // Without an owner of the other half, no owner is queried.
    let half = into.fetch_parts(&[left.address], &blocks[4..]).await;
    assert_eq!(half.stopped, Some(FetchFault::NoOwner { number: 1, count: 2 }));
    // Another agent with the same heads continues where the first one stopped.
    let long = owner(&halves[1], Memory::Shared, &blocks).await;
    let into = fetching(&whole, Memory::Private, 8);
    let peers = [short.address, left.address, long.address];
    let fetched = into.fetch_parts(&peers, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (6, None));
    let came: Vec<_> = fetched.peers.iter().map(|peer| peer.blocks).collect();
    assert_eq!(came, [4, 6, 2]);
    assert_eq!(fetched.peers[0].stopped, Some(FetchFault::Missing));
    assert_eq!(verified_bytes(&into.manager, &blocks, |block| whole.bytes_of(block)), 6);
    stop(vec![left, short, long]).await;
}

/// Blocks of more than 1 MiB are verified and gathered on other threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_blocks_are_converted_too() {
    let large = |rank: Rank| {
        let inner_dim = rank.config.inner_dim * 4;
        let config = LayoutConfig { page_size: 4_096, inner_dim, ..rank.config };
        Rank { config, ..rank }
    };
    let blocks = prompt(1, 2);
    let halves: Vec<_> = group(2, CONTIGUOUS).into_iter().map(large).collect();
    let sources = owners(&halves, Memory::Shared, &blocks).await;
    let whole = large(Rank::of(0, 1, CONTIGUOUS));
    assert!(whole.bytes() > 1 << 20);
    let into = fetching(&whole, Memory::Private, 2);
    let addresses: Vec<_> = sources.iter().map(|owner| owner.address).collect();
    let fetched = into.fetch_parts(&addresses, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (2, None));
    drop(fetched.blocks);
    assert_eq!(verified_bytes(&into.manager, &blocks, |block| whole.bytes_of(block)), 2);
    stop(sources).await;
}

/// One side of a random transfer.
#[derive(Debug, Clone, Copy)]
struct Side {
    parts: u32,
    replicas: u32,
    form: LayoutForm,
    alignment: u64,
    memory: Memory,
}

prop_compose! {
    fn sides()(
        parts in select(vec![1_u32, 2, 4, 8]),
        replicas in 1_u32..3,
        form in select(vec![CONTIGUOUS, BY_LAYER, BY_OUTER]),
        alignment in 0_u32..8,
        memory in select(vec![Memory::Private, Memory::Shared]),
    ) -> Side {
        let alignment = if form == CONTIGUOUS { 1 } else { 1 << alignment };
        Side { parts, replicas, form, alignment, memory }
    }
}

#[derive(Debug, Clone)]
struct Case {
    from: Side,
    to: Side,
    /// The number of blocks and the bytes per element differ between sides, too.
    config: LayoutConfig,
    blocks: u64,
    rank: prop::sample::Index,
    /// Which of the owners with the same heads are listed.
    named: Vec<bool>,
}

prop_compose! {
    fn cases()(
        (from, to) in (sides(), sides()),
        (outer_dim, num_layers, page_size) in (1_u32..=2, 1_u32..4, 1_u32..6),
        width in select(vec![1_u32, 2, 4]),
        elements in select(vec![8_u32, 16, 24]),
        blocks in 1_u64..5,
        rank in any::<prop::sample::Index>(),
        named in prop::collection::vec(any::<bool>(), 8),
    ) -> Case {
        let config = LayoutConfig {
            num_blocks: 1,
            num_layers,
            outer_dim,
            page_size,
            inner_dim: elements,
            dtype_width_bytes: width,
            alignment_bytes: 1,
            base_offset_bytes: 0,
        };
        Case { from, to, config, blocks, rank, named }
    }
}

fn rank_of(side: &Side, config: &LayoutConfig, rank: u32) -> Rank {
    let inner_dim = config.inner_dim / side.parts;
    let config = LayoutConfig { inner_dim, alignment_bytes: side.alignment, ..*config };
    let size = side.parts * side.replicas;
    let replicas = side.replicas;
    Rank { form: side.form, config, parallel: TensorParallel { rank, size, replicas } }
}

async fn check(case: Case) {
    let blocks = prompt(1, case.blocks);
    let Side { parts, replicas, .. } = case.from;
    let named = |part: u32| {
        // At least one of the replicas.
        let is_second = replicas == 2 && case.named[part as usize];
        rank_of(&case.from, &case.config, part * replicas + u32::from(is_second))
    };
    let ranks: Vec<_> = (0..parts).map(named).collect();
    let sources = owners(&ranks, case.from.memory, &blocks).await;
    let size = case.to.parts * case.to.replicas;
    let rank = rank_of(&case.to, &case.config, case.rank.index(size as usize) as u32);
    let into = fetching(&rank, case.to.memory, case.blocks as u32);
    let addresses: Vec<_> = sources.iter().map(|owner| owner.address).collect();
    let fetched = into.fetch_parts(&addresses, &blocks).await;
    assert_eq!((fetched.blocks.len(), &fetched.stopped), (blocks.len(), &None), "{case:?}");
    drop(fetched.blocks);
    let verified = verified_bytes(&into.manager, &blocks, |block| rank.bytes_of(block));
    assert_eq!(verified, blocks.len(), "{case:?}");
    stop(sources).await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_transfer_equals_a_naive_copy(case in cases()) {
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(check(case));
    }
}
