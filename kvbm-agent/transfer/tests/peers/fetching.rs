use crate::cases::{Over, cases_over, until};
use crate::place::{
    Fetching, Memory, Serving, description, free_and_active, manager, prompt, save,
};
use kvasir_blocks::SlotId;
use kvasir_blocks::sets::{BlockSetLimits, BlockSetRegistry, SerializedBlockLayout};
use kvasir_process::access::Guard;
use kvasir_proto::types::WorkerId;
use kvasir_transfer::limits::VERSION;
use kvasir_transfer::wire::{Fetch, FrameReader, Hello, Message, Welcome};
use kvasir_transfer::{BlockDescription, FetchFault};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

const BLOCK_BYTES: usize = 3_000;
const TCP: Over = Over(None);

cases_over!(TCP);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_blocks_are_refused_by_the_field() {
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    let owner = TCP.serving(&owned).await;
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
        "blocks-geometry dtype is",
        "blocks-geometry layout is",
        "blocks-geometry layers is 2 at the caller and 0 at the owner",
    ];
    for (other, field) in others.into_iter().zip(fields) {
        let fetching = Fetching::described(manager(Memory::Private, BLOCK_BYTES, 8), other);
        let fetched = fetching.fetch(owner.address, &prompt(1, 1)).await;
        let Some(FetchFault::Refused(text)) = fetched.stopped else { panic!("{fetched:?}") };
        assert!(text.contains(field), "{field:?} in {text}");
    }
    // The refusal is sent before it is counted, so the counts are complete only after the connections have ended.
    let counters = Arc::clone(&owner.counters);
    owner.stop().await;
    assert_eq!(counters.metrics().disconnected["description"], 4);
}

/// A peer that requests blocks but does not read is disconnected, and its held blocks are released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_peer_is_disconnected() {
    let blocks = prompt(1, 32);
    let bytes = 1 << 20;
    let owned = manager(Memory::Private, bytes, 32);
    save(&owned, &blocks);
    let owner = Serving::start(&owned, Duration::from_millis(300), Guard::default()).await;
    let (mut reader, _) = greeted(owner.address, bytes).await;
    let sequences = blocks.iter().map(|block| block.sequence.0).collect();
    let fetch = Fetch { request: 0, epoch: 1, export: 1, timeout_ms: 25_000, sequences };
    reader.io().write_all(&Message::Fetch(fetch).frame(0)).await.expect("a connection");
    let is_counted = || owner.counters.metrics().disconnected["untaken"] == 1;
    until("it is not disconnected", is_counted).await;
    let metrics = owner.counters.metrics();
    assert!(metrics.served < 32, "{metrics:?}");
    until("it holds blocks still", || free_and_active(&owned) == (0, 0)).await;
    owner.stop().await;
}

/// A connection, and the owner's welcome.
async fn greeted(owner: SocketAddr, bytes: usize) -> (FrameReader<TcpStream>, Welcome) {
    let stream = TcpStream::connect(owner).await.expect("a connection");
    let mut reader = FrameReader::new(stream, bytes as u64);
    let authorization = String::new();
    let worker = "by hand".to_owned();
    let blocks = description(bytes);
    let hello = Message::Hello(Hello { version: VERSION, authorization, worker, blocks }).frame(0);
    reader.io().write_all(&hello).await.expect("a connection");
    let welcome = reader.frame().await.expect("a frame");
    let Some(Message::Welcome(welcome)) = welcome else { panic!("{welcome:?}") };
    (reader, welcome)
}

/// Slots have padding behind their blocks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_set_of_an_owner_states_where_each_block_is() {
    for bytes in [1, BLOCK_BYTES, 4_096, 4_097, 9_000] {
        let owned = manager(Memory::Private, bytes, 4);
        let owner = TCP.serving(&owned).await;
        let (_, welcome) = greeted(owner.address, bytes).await;
        let registry = BlockSetRegistry::new(1, BlockSetLimits::DEFAULT);
        let set = SerializedBlockLayout(welcome.set);
        let worker = WorkerId::new("owner").expect("a name");
        let set = registry.import_remote_blockset(&worker, &set).expect("a set");
        let stride = owned.arena().layout().stride_bytes as u64;
        for slot in 0..4 {
            let region = set.layout().region(SlotId(slot), 0, 0).expect("a block");
            let place = (u64::from(slot) * stride, bytes as u64);
            assert_eq!((region.address, region.bytes), place, "{bytes} bytes, slot {slot}");
        }
        owner.stop().await;
    }
}
