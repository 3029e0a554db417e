//! Owners that send wrong loans: wrong bytes are never registered, and every slot is freed.

use crate::cases::until;
use crate::fetching::{fetching, serving};
use crate::place::{Fetching, Memory, free_and_active, manager, prompt, save, verified};
use kvasir_transfer::wire::{FrameReader, Lent, Message};
use kvasir_transfer::{FetchFault, Fetched};
use std::net::SocketAddr;
use tokio::io::{AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::{join, select};

const BLOCK_BYTES: usize = 3_000;
const BLOCKS: u64 = 4;

/// Forwards messages between a client and an owner, until one of them closes its connection.
async fn hand_on(listener: &TcpListener, owner: SocketAddr, change: impl Fn(&mut Lent)) {
    let (client, _) = listener.accept().await.expect("the client");
    let owner = TcpStream::connect(owner).await.expect("the owner");
    let ((mut from_client, mut to_client), (from_owner, mut to_owner)) =
        (client.into_split(), owner.into_split());
    let mut answers = FrameReader::new(from_owner, BLOCK_BYTES as u64);
    let answers = async {
        while let Ok(Some(mut message)) = answers.frame().await {
            if let Message::Lent(lent) = &mut message {
                change(lent);
            }
            if to_client.write_all(&message.frame(0)).await.is_err() {
                return;
            }
        }
    };
    select! {
        asked = copy(&mut from_client, &mut to_owner) => drop(asked),
        () = answers => {}
    }
}

/// Fetches blocks after changing the owner's messages.
async fn changed(change: impl Fn(&mut Lent)) -> (Fetched, Fetching) {
    let blocks = prompt(1, BLOCKS);
    let owned = manager(Memory::Shared, BLOCK_BYTES, BLOCKS as u32);
    save(&owned, &blocks);
    let owner = serving(&owned).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let between = listener.local_addr().expect("an address");
    let fetching = fetching(manager(Memory::Private, BLOCK_BYTES, BLOCKS as u32));
    let handing_on = hand_on(&listener, owner.address, change);
    let (fetched, ()) = join!(fetching.fetch(between, &blocks), handing_on);
    owner.stop().await;
    (fetched, fetching)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_the_block_that_was_lent_is_refused() {
    type Change = fn(&mut Lent);
    let cases: [(Change, usize, &str); 5] = [
        // NIXL reads another block of the owner.
        (|lent| lent.blocks[1].offset = lent.blocks[2].offset, 1, "checksum"),
        // Here NIXL reads halves of two blocks.
        (|lent| lent.blocks[3].offset -= 2_000, 3, "checksum"),
        (|lent| lent.blocks[2].head.checksum ^= 1, 2, "checksum"),
        (|lent| lent.blocks[1].offset = u64::MAX - 1, 0, "offset: 18446744073709551614 does not"),
        (|lent| lent.blocks.swap(1, 2), 0, "another block than the one that is next"),
    ];
    for (change, count, text) in cases {
        let (fetched, fetching) = changed(change).await;
        let Some(FetchFault::Corrupt(why)) = &fetched.stopped else { panic!("{fetched:?}") };
        assert!(why.contains(text), "{text:?} in {why}");
        assert_eq!(fetched.blocks.len(), count, "what was verified before stays");
        drop(fetched.blocks);
        assert_eq!(verified(&fetching.manager, &prompt(1, BLOCKS)), count);
        assert_eq!(fetching.counters.metrics().corrupt, 1);
        let free = BLOCKS - count as u64;
        until("slots do not come back", || free_and_active(&fetching.manager) == (free, 0)).await;
    }
}
