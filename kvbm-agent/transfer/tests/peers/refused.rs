//! Owners that are broken or send wrong bytes: wrong bytes are never registered, and every slot is freed.

use crate::fake::{Caller, Fake};
use crate::place::{Fetching, Memory, free_and_active, manager, prompt, verified};
use kvasir_blocks::BlockIdentity;
use kvasir_transfer::FetchFault;
use kvasir_transfer::limits::OWNER_BLOCKS_MAX;
use kvasir_transfer::wire::{Fault, Header, Kind};
use std::time::Duration;
use tokio::join;
use tokio::sync::Notify;
use tokio::time::sleep;

const BLOCK_BYTES: usize = 3_000;
const SLOTS: u32 = 16;

/// Fetches three blocks from an owner that sends the first correctly, and then behaves as the test specifies. Returns
/// the fault.
async fn after_one(
    memory: Memory,
    then: impl AsyncFn(&mut Caller, &[BlockIdentity]),
) -> (FetchFault, Fetching) {
    let fake = Fake::new(BLOCK_BYTES).await;
    let blocks = prompt(1, 3);
    let fetching = Fetching::new(manager(memory, BLOCK_BYTES, SLOTS));
    let serve = async {
        let mut caller = fake.accept(1).await;
        let asked = caller.asked().await;
        assert_eq!((asked.sequences.len(), asked.epoch), (3, 1));
        let first = caller.right(0, &blocks[0]);
        caller.send_block(first).await;
        then(&mut caller, &blocks).await;
    };
    let (fetched, ()) = join!(fetching.fetch(fake.address(), &blocks), serve);
    assert_eq!(fetched.blocks.len(), 1, "what was verified before stays");
    let fault = fetched.stopped.expect("a fault");
    drop(fetched.blocks);
    assert_eq!(verified(&fetching.manager, &blocks), 1);
    assert_eq!(free_and_active(&fetching.manager), (u64::from(SLOTS) - 1, 0), "{fault}");
    (fault, fetching)
}

#[tokio::test]
async fn a_wrong_byte_is_refused_and_counted() {
    for memory in [Memory::Private, Memory::Shared] {
        for at in [0, 1_500, BLOCK_BYTES - 1] {
            let (fault, fetching) = after_one(memory, async |caller, blocks| {
                let (head, mut bytes) = caller.right(1, &blocks[1]);
                bytes[at] ^= 1;
                caller.send_block((head, bytes)).await;
                caller.closed().await;
            })
            .await;
            assert!(matches!(fault, FetchFault::Corrupt(_)), "{fault}");
            assert_eq!(fetching.counters.metrics().corrupt, 1);
            assert_eq!(fetching.counters.metrics().fetched, 1);
        }
    }
}

#[tokio::test]
async fn another_block_than_the_next_one_is_refused() {
    let (fault, _) = after_one(Memory::Private, async |caller, blocks| {
        let third = caller.right(1, &blocks[2]);
        caller.send_block(third).await;
    })
    .await;
    assert!(matches!(fault, FetchFault::Corrupt(_)), "{fault}");
    let (fault, fetching) = after_one(Memory::Private, async |caller, blocks| {
        // The right sequence hash with other hashes.
        let (mut head, bytes) = caller.right(1, &blocks[1]);
        head.local ^= 1;
        caller.send_block((head, bytes)).await;
    })
    .await;
    assert!(matches!(fault, FetchFault::Corrupt(_)), "{fault}");
    assert_eq!(fetching.counters.metrics().corrupt, 1);
}

#[tokio::test]
async fn what_is_cut_off_is_lost() {
    let (fault, _) = after_one(Memory::Private, async |caller, blocks| {
        let (head, mut bytes) = caller.right(1, &blocks[1]);
        bytes.truncate(BLOCK_BYTES / 2);
        caller.send_block((head, bytes)).await;
    })
    .await;
    assert!(matches!(fault, FetchFault::Lost(_)), "{fault}");
    let (fault, _) = after_one(Memory::Private, async |caller, _| {
        caller.end(1, Fault::Unspecified).await;
    })
    .await;
    assert!(matches!(fault, FetchFault::Lost(_)), "an end before the last block: {fault}");
    let (fault, _) = after_one(Memory::Private, async |caller, _| {
        let frame = Header { kind: Kind::End, message_bytes: 1 << 30, payload_bytes: 0 };
        caller.send(&frame.encode()).await;
    })
    .await;
    assert!(matches!(fault, FetchFault::Lost(_)), "{fault}");
}

#[tokio::test]
async fn an_owner_that_is_silent_costs_the_deadline_alone() {
    let fake = Fake::new(BLOCK_BYTES).await;
    let blocks = prompt(1, 3);
    let fetching = Fetching::new(manager(Memory::Private, BLOCK_BYTES, SLOTS));
    let serve = async {
        let mut caller = fake.accept(1).await;
        caller.asked().await;
        let (head, mut bytes) = caller.right(0, &blocks[0]);
        bytes.truncate(100);
        caller.send_block((head, bytes)).await;
        // The connection ends with the fetch.
        caller.closed().await;
    };
    let within = Duration::from_millis(200);
    let (fetched, ()) = join!(fetching.fetch_within(fake.address(), &blocks, within), serve);
    assert_eq!((fetched.blocks.len(), fetched.stopped), (0, Some(FetchFault::TimedOut)));
    assert_eq!(free_and_active(&fetching.manager), (SLOTS.into(), 0));
}

/// After the owner restarts with a newer epoch, transfers from the older epoch fail: a block that arrives later is not
/// registered.
#[tokio::test]
async fn a_newer_epoch_fences_what_is_under_way() {
    let fake = Fake::new(BLOCK_BYTES).await;
    let blocks = prompt(1, 3);
    let others = prompt(2, 1);
    let fetching = Fetching::new(manager(Memory::Private, BLOCK_BYTES, SLOTS));
    let address = fake.address();
    let second = Notify::new();
    let serve = async {
        let mut old = fake.accept(1).await;
        old.asked().await;
        let block = old.right(0, &blocks[0]);
        old.send_block(block).await;
        second.notify_one();
        let mut new = fake.accept(2).await;
        // The owner sends its welcome, but receives no request before the older transfer has stopped.
        let block = old.right(1, &blocks[1]);
        let asked = async {
            while fetching.registry.stats().quarantined == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            old.send_block(block).await;
            old.closed().await;
        };
        let ((), fetch) = join!(asked, new.asked());
        assert_eq!(fetch.epoch, 2);
        let block = new.right(0, &others[0]);
        new.send_block(block).await;
        new.end(1, Fault::Unspecified).await;
        new.closed().await;
    };
    let newer = async {
        second.notified().await;
        let fetched = fetching.fetch(address, &others).await;
        fetching.backend.close_idle();
        fetched
    };
    let older = fetching.fetch(address, &blocks);
    let (older, newer, ()) = join!(older, newer, serve);
    assert_eq!(older.stopped, Some(FetchFault::Fenced));
    assert_eq!(older.blocks.len(), 1);
    assert_eq!((newer.blocks.len(), newer.stopped), (1, None));
}

#[tokio::test]
async fn an_owner_with_too_many_blocks_is_refused_and_leaves_room_for_others() {
    let mut huge = Fake::new(BLOCK_BYTES).await;
    let blocks = prompt(1, 1);
    huge.num_blocks = OWNER_BLOCKS_MAX + 1;
    let fetching = Fetching::new(manager(Memory::Private, BLOCK_BYTES, SLOTS));
    let serve = async {
        huge.accept(1).await.closed().await;
    };
    let (fetched, ()) = join!(fetching.fetch(huge.address(), &blocks), serve);
    let fault = fetched.stopped.expect("a refusal");
    let is_named = fault.to_string().contains(&OWNER_BLOCKS_MAX.to_string());
    assert!(matches!(fault, FetchFault::Refused(_)) && is_named, "{fault}");
    assert_eq!(fetching.registry.stats().imports, 0, "its set is forgotten");
}
