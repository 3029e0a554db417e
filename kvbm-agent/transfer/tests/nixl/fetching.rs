use crate::cases::{Over, cases_over, until};
use crate::found::library;
use crate::place::{
    Fetching, Memory, PATIENCE, Serving, description, free_and_active, manager, prompt, save,
};
use kvasir_process::access::Guard;
use kvasir_tiers::manager::KvBlockManager;
use kvasir_transfer::limits::{UNTAKEN_TIMEOUT, VERSION};
use kvasir_transfer::wire::{Fault, Fetch, FrameReader, Hello, Message, Return};
use kvasir_transfer::{BlockDescription, FetchFault, NixlOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

const BLOCK_BYTES: usize = 3_000;

pub fn options() -> NixlOptions {
    NixlOptions { library: library("../memory/tests/nixl/library"), ..NixlOptions::default() }
}

fn nixl() -> Over {
    Over(Some(options()))
}

pub async fn serving(manager: &KvBlockManager) -> Serving {
    nixl().serving(manager).await
}

pub async fn serving_described(manager: &KvBlockManager, blocks: BlockDescription) -> Serving {
    let port = (UNTAKEN_TIMEOUT, Guard::default());
    Serving::described(manager, blocks, port, Some(&options())).await
}

pub fn fetching(manager: Arc<KvBlockManager>) -> Fetching {
    nixl().fetching(manager)
}

cases_over!(nixl());

/// Each side reports the other side's missing feature.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_without_nixl_is_named() {
    let blocks = prompt(1, 2);
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    save(&owned, &blocks);
    let owner = Serving::start(&owned, UNTAKEN_TIMEOUT, Guard::default()).await;
    let over_nixl = fetching(manager(Memory::Private, BLOCK_BYTES, 8));
    assert_eq!(over_nixl.backend.name(), "nixl");
    let fetched = over_nixl.fetch(owner.address, &blocks).await;
    let Some(FetchFault::Refused(text)) = fetched.stopped else { panic!("{fetched:?}") };
    assert!(text.contains("set backend=nixl at the peer"), "{text}");
    owner.stop().await;
    // An owner with NIXL also serves TCP.
    let owner = serving(&owned).await;
    let over_tcp = Fetching::new(manager(Memory::Private, BLOCK_BYTES, 8));
    let fetched = over_tcp.fetch(owner.address, &blocks).await;
    assert_eq!((fetched.blocks.len(), fetched.stopped), (2, None));
    owner.stop().await;
}

/// A hand-written peer.
struct Caller {
    reader: FrameReader<TcpStream>,
}

impl Caller {
    async fn new(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let mut caller = Self { reader: FrameReader::new(stream, BLOCK_BYTES as u64) };
        let authorization = String::new();
        let worker = "by hand".to_owned();
        let blocks = description(BLOCK_BYTES);
        let hello = Hello { version: VERSION, authorization, worker, blocks };
        let Message::Welcome(welcome) = caller.ask(&Message::Hello(hello)).await else {
            panic!("no welcome")
        };
        assert!(!welcome.nixl.is_empty());
        caller
    }

    async fn send(&mut self, message: &Message) {
        self.reader.io().write_all(&message.frame(0)).await.expect("a connection");
    }

    async fn next(&mut self) -> Message {
        self.reader.frame().await.expect("a frame").expect("a frame")
    }

    async fn ask(&mut self, message: &Message) -> Message {
        self.send(message).await;
        self.next().await
    }
}

fn lend(request: u64, epoch: u64, timeout_ms: u32, count: usize) -> Message {
    let sequences = prompt(1, 8)[..count].iter().map(|block| block.sequence.0).collect();
    Message::Lend(Fetch { request, epoch, export: 1, timeout_ms, sequences })
}

/// Lent blocks keep their slots until the peer returns them. If its connection is lost, they keep them until the
/// request's timeout and a grace period have passed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lent_blocks_stay_until_they_are_returned_or_the_peer_must_have_stopped() {
    let blocks = prompt(1, 8);
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    save(&owned, &blocks);
    let owner = serving(&owned).await;
    let mut caller = Caller::new(owner.address).await;
    let Message::Lent(lent) = caller.ask(&lend(0, 1, 25_000, 3)).await else { panic!() };
    assert_eq!((lent.blocks.len(), lent.fault()), (3, Fault::Unspecified));
    assert_eq!(free_and_active(&owned), (0, 3));
    // No block can be saved in their place.
    let saving = owned.open_session("saves").expect("a session");
    assert_eq!(saving.allocate(5, PATIENCE).map(|slots| slots.len()), Ok(5));
    assert!(saving.allocate(1, PATIENCE).is_err());
    saving.end();
    caller.send(&Message::Return(Return { request: 0 })).await;
    until("what was returned is held", || free_and_active(&owned).1 == 0).await;

    // An older fence gets no loan.
    let Message::Lent(lent) = caller.ask(&lend(1, 9, 25_000, 3)).await else { panic!() };
    assert_eq!((lent.blocks.len(), lent.fault()), (0, Fault::Fenced));
    let Message::Lent(lent) = caller.ask(&lend(2, 1, 1_000, 2)).await else { panic!() };
    assert_eq!(lent.blocks.len(), 2);
    let lent_at = Instant::now();
    let timeout = Duration::from_secs(1);
    drop(caller);
    until("the blocks were evicted", || free_and_active(&owned).1 == 0).await;
    assert!(lent_at.elapsed() > timeout, "the peer may still read them");
    owner.stop().await;
}

/// A peer that does not return its loans is disconnected, and so is a peer that breaks the protocol.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_that_keep_blocks_are_disconnected() {
    let blocks = prompt(1, 8);
    let owned = manager(Memory::Private, BLOCK_BYTES, 8);
    save(&owned, &blocks);
    let owner = serving(&owned).await;
    let refusal = |message| {
        let Message::Refusal(refusal) = message else { panic!("{message:?}") };
        refusal.text
    };
    let mut late = Caller::new(owner.address).await;
    let Message::Lent(lent) = late.ask(&lend(0, 1, 100, 2)).await else { panic!() };
    assert_eq!(lent.blocks.len(), 2);
    assert!(refusal(late.next().await).contains("were not returned in time"));
    let mut greedy = Caller::new(owner.address).await;
    for request in 0..2 {
        let answer = greedy.ask(&lend(request, 1, 1_000, 1)).await;
        assert!(matches!(answer, Message::Lent(_)), "{answer:?}");
    }
    assert!(refusal(greedy.ask(&lend(2, 1, 1_000, 1)).await).contains("2 loans"));
    let mut wrong = Caller::new(owner.address).await;
    let answer = wrong.ask(&Message::Return(Return { request: 7 })).await;
    assert!(refusal(answer).contains("request 7 has no lent blocks"));
    let counted = || {
        let disconnected = owner.counters.metrics().disconnected;
        (disconnected["late"], disconnected["protocol"]) == (1, 2)
    };
    until("they are not counted", counted).await;
    owner.stop().await;
}
