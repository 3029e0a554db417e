use crate::place::{
    Fetching, Memory, PATIENCE, Serving, description, free_and_active, manager, prompt, save,
    verified,
};
use kvasir_process::access::Guard;
use kvasir_transfer::limits::{UNTAKEN_TIMEOUT, VERSION};
use kvasir_transfer::wire::{Fetch, FrameReader, Hello, Message};
use kvasir_transfer::{BlockDescription, FetchFault};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

const BLOCK_BYTES: usize = 3_000;

async fn serving(manager: &kvasir_tiers::manager::KvBlockManager) -> Serving {
    Serving::start(manager, UNTAKEN_TIMEOUT, Guard::default()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_arrive_byte_for_byte() {
    for (theirs, ours) in [
        (Memory::Private, Memory::Private),
        (Memory::Shared, Memory::Private),
        (Memory::Private, Memory::Shared),
        (Memory::Shared, Memory::Shared),
    ] {
        // Four requests, the last of which is short.
        let blocks = prompt(1, 1_600);
        let owned = manager(theirs, BLOCK_BYTES, 1_600);
        save(&owned, &blocks);
        let owner = serving(&owned).await;
        let fetching = Fetching::new(manager(ours, BLOCK_BYTES, 1_600));
        let fetched = fetching.fetch(owner.address, &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (1_600, None), "{theirs:?} {ours:?}");
        assert_eq!(fetched.bytes, 1_600 * BLOCK_BYTES as u64);
        drop(fetched.blocks);
        assert_eq!(verified(&fetching.manager, &blocks), 1_600);
        assert_eq!(owner.counters.metrics().served, 1_600);
        assert_eq!(fetching.counters.metrics().fetched, 1_600);
        assert_eq!(free_and_active(&owned), (0, 0), "nothing is held any more");
        owner.stop().await;
    }
}

/// Large blocks are summed up on other threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_blocks_arrive_too() {
    let (blocks, bytes) = (prompt(1, 3), 3 << 20);
    let owned = manager(Memory::Shared, bytes, 3);
    save(&owned, &blocks);
    let owner = serving(&owned).await;
    let fetching = Fetching::new(manager(Memory::Private, bytes, 3));
    let fetched = fetching.fetch(owner.address, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (3, None));
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks), 3);
    owner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_owner_lacks_is_missing_and_connections_are_used_again() {
    let blocks = prompt(1, 8);
    let owned = manager(Memory::Private, BLOCK_BYTES, 16);
    save(&owned, &blocks[..5]);
    let owner = serving(&owned).await;
    let fetching = Fetching::new(manager(Memory::Private, BLOCK_BYTES, 16));
    for round in 0..3 {
        let fetched = fetching.fetch(owner.address, &blocks).await;
        assert_eq!((fetched.blocks.len(), fetched.stopped), (5, Some(FetchFault::Missing)));
        drop(fetched.blocks);
        assert_eq!(verified(&fetching.manager, &blocks), 5, "round {round}");
    }
    let stopped = fetching.counters.metrics().stopped;
    assert_eq!(stopped.get("missing"), Some(&3));
    // A restarted owner is another one: the connection of before is not used.
    let address = owner.address;
    owner.stop().await;
    let fetched = fetching.fetch(address, &blocks).await;
    assert!(matches!(fetched.stopped, Some(FetchFault::Lost(_))), "{:?}", fetched.stopped);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_room_the_rest_stays_where_it_is() {
    let blocks = prompt(1, 8);
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    save(&owned, &blocks);
    let owner = serving(&owned).await;
    let fetching = Fetching::new(manager(Memory::Private, BLOCK_BYTES, 3));
    let fetched = fetching.fetch(owner.address, &blocks).await;
    assert_eq!(fetched.blocks.len(), 3);
    assert!(matches!(fetched.stopped, Some(FetchFault::NoRoom(_))), "{:?}", fetched.stopped);
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks), 3);
    owner.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_blocks_are_refused_by_the_field() {
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    let owner = serving(&owned).await;
    let right = description(BLOCK_BYTES);
    let mut others = [right.clone(), right.clone(), right.clone(), right];
    others[0].model = "other".to_owned();
    others[1].dtype = "float8".to_owned();
    others[2].layout = "rank 1".to_owned();
    let parts = |at: &mut BlockDescription| {
        (at.layers, at.outer_dim, at.inner_dim, at.dtype_width_bytes) = (2, 1, 1_500, 1);
        (at.alignment_bytes, at.tp_size, at.tp_replicas) = (1, 1, 1);
    };
    parts(&mut others[3]);
    let fields = [
        "model is",
        "blocks-dtype is",
        "blocks-layout is",
        "blocks-layers is 2 at the caller and 0 at the owner",
    ];
    for (other, field) in others.into_iter().zip(fields) {
        let fetching = Fetching::described(manager(Memory::Private, BLOCK_BYTES, 8), other);
        let fetched = fetching.fetch(owner.address, &prompt(1, 1)).await;
        let Some(FetchFault::Refused(text)) = fetched.stopped else { panic!("{fetched:?}") };
        assert!(text.contains(field), "{field:?} in {text}");
    }
    // A peer is told before it is counted: only once the connections have ended, all are.
    let counters = Arc::clone(&owner.counters);
    owner.stop().await;
    assert_eq!(counters.metrics().disconnected["description"], 4);
}

/// A peer that asks and takes nothing is disconnected; what was held for it is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_is_disconnected() {
    let (blocks, bytes) = (prompt(1, 32), 1 << 20);
    let owned = manager(Memory::Private, bytes, 32);
    save(&owned, &blocks);
    let owner = Serving::start(&owned, Duration::from_millis(300), Guard::default()).await;
    let stream = TcpStream::connect(owner.address).await.expect("a connection");
    let mut reader = FrameReader::new(stream, bytes as u64);
    let hello = Hello {
        version: VERSION,
        authorization: String::new(),
        worker: "slow".to_owned(),
        blocks: description(bytes),
    };
    let hello = Message::Hello(hello).frame(0);
    reader.io().write_all(&hello).await.expect("a connection");
    let welcome = reader.frame().await.expect("a frame");
    assert!(matches!(welcome, Some(Message::Welcome(_))), "{welcome:?}");
    let sequences = blocks.iter().map(|block| block.sequence.0).collect();
    let fetch = Fetch { request: 0, epoch: 1, export: 1, timeout_ms: 25_000, sequences };
    reader.io().write_all(&Message::Fetch(fetch).frame(0)).await.expect("a connection");
    let deadline = Instant::now() + PATIENCE;
    while owner.counters.metrics().disconnected["untaken"] == 0 {
        assert!(Instant::now() < deadline, "{:?}", owner.counters.metrics());
        sleep(Duration::from_millis(10)).await;
    }
    let metrics = owner.counters.metrics();
    assert!(metrics.served < 32, "{metrics:?}");
    while free_and_active(&owned) != (0, 0) {
        assert!(Instant::now() < deadline, "it holds blocks still");
        sleep(Duration::from_millis(10)).await;
    }
    owner.stop().await;
}
