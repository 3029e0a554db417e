//! Owners of parts that are broken or send wrong bytes: only complete blocks are registered, and every slot is freed.

use crate::fake::{Caller, Fake};
use crate::place::{Fetching, Memory, free_and_active, prompt, verified_bytes};
use crate::ranks::{BY_LAYER, CONTIGUOUS, Rank};
use kvasir_blocks::BlockIdentity;
use kvasir_transfer::wire::{Fault, Header, Kind};
use kvasir_transfer::{BlockDescription, FetchFault, FetchedParts};
use std::time::Duration;
use tokio::join;
use tokio::time::timeout;

const SLOTS: u32 = 8;
const BLOCKS: usize = 3;

fn fetching() -> (Rank, Fetching) {
    let rank = Rank::of(0, 1, BY_LAYER);
    (rank, Fetching::described(rank.manager(Memory::Shared, SLOTS), rank.description()))
}

/// Sends all parts correctly.
async fn serve_all(caller: &mut Caller, blocks: &[BlockIdentity], rank: &Rank) {
    for (index, block) in (0..).zip(blocks) {
        let part = caller.part(index, block, rank);
        caller.send_block(part).await;
    }
    caller.end(blocks.len() as u32, Fault::Unspecified).await;
}

/// Fetches three blocks from two owners. The first one has all; the second one sends its part of the first block, and
/// then behaves as the test specifies.
async fn after_one(then: impl AsyncFn(&mut Caller, &[BlockIdentity], &Rank)) -> FetchedParts {
    let left = Rank::of(0, 2, CONTIGUOUS);
    let right = Rank::of(1, 2, CONTIGUOUS);
    let one = Fake::of(&left).await;
    let other = Fake::of(&right).await;
    let blocks = prompt(1, BLOCKS as u64);
    let (rank, fetching) = fetching();
    let serve_left = async {
        let mut caller = one.accept(1).await;
        assert_eq!(caller.asked().await.sequences.len(), BLOCKS);
        serve_all(&mut caller, &blocks, &left).await;
    };
    let serve_right = async {
        let mut caller = other.accept(1).await;
        assert_eq!(caller.asked().await.sequences.len(), BLOCKS);
        let first = caller.part(0, &blocks[0], &right);
        caller.send_block(first).await;
        then(&mut caller, &blocks, &right).await;
    };
    let peers = [one.address(), other.address()];
    let within = Duration::from_secs(10);
    let fetch = fetching.fetch_parts_within(&peers, &blocks, within);
    let (mut fetched, (), ()) = join!(fetch, serve_left, serve_right);
    assert_eq!(fetched.blocks.len(), 1, "the complete block stays");
    fetched.blocks.clear();
    assert_eq!(verified_bytes(&fetching.manager, &blocks, |block| rank.bytes_of(block)), 1);
    assert_eq!(free_and_active(&fetching.manager), (u64::from(SLOTS) - 1, 0), "{fetched:?}");
    assert_eq!(fetched.peers[0].stopped, Some(FetchFault::OtherPart));
    assert_eq!(fetched.peers[1].stopped, fetched.stopped);
    fetched
}

#[tokio::test]
async fn a_wrong_byte_of_a_part_is_refused() {
    for at in [0, 100, 191] {
        let fetched = after_one(async |caller, blocks, rank| {
            let (head, mut bytes) = caller.part(1, &blocks[1], rank);
            bytes[at] ^= 1;
            caller.send_block((head, bytes)).await;
            caller.closed().await;
        })
        .await;
        assert!(matches!(fetched.stopped, Some(FetchFault::Corrupt(_))), "{fetched:?}");
    }
}

#[tokio::test]
async fn what_is_not_the_next_part_is_refused() {
    let other_block = after_one(async |caller, blocks, rank| {
        let third = caller.part(1, &blocks[2], rank);
        caller.send_block(third).await;
    })
    .await;
    assert!(matches!(other_block.stopped, Some(FetchFault::Corrupt(_))), "{other_block:?}");
    let whole_block = after_one(async |caller, _, rank| {
        let bytes = rank.bytes() as u64 + 1;
        let frame = Header { kind: Kind::Block, message_bytes: 0, payload_bytes: bytes };
        caller.send(&frame.encode()).await;
    })
    .await;
    assert!(matches!(whole_block.stopped, Some(FetchFault::Lost(_))), "{whole_block:?}");
}

#[tokio::test]
async fn an_owner_that_dies_within_a_part_leaves_nothing_of_the_block() {
    for bytes in [0, 1, 100, 191] {
        let fetched = after_one(async |caller, blocks, rank| {
            let (head, mut part) = caller.part(1, &blocks[1], rank);
            part.truncate(bytes);
            caller.send_block((head, part)).await;
        })
        .await;
        assert!(matches!(fetched.stopped, Some(FetchFault::Lost(_))), "{fetched:?}");
    }
    let early = after_one(async |caller, _, _| caller.end(1, Fault::Unspecified).await).await;
    assert!(matches!(early.stopped, Some(FetchFault::Lost(_))), "{early:?}");
    let busy = after_one(async |caller, _, _| caller.end(1, Fault::Busy).await).await;
    assert!(matches!(busy.stopped, Some(FetchFault::Unavailable(_))), "{busy:?}");
}

/// Each part is valid by itself, but the owners state different positions. It is unknown which of them is wrong.
#[tokio::test]
async fn owners_that_disagree_about_a_block_register_nothing() {
    let left = Rank::of(0, 2, CONTIGUOUS);
    let right = Rank::of(1, 2, CONTIGUOUS);
    let one = Fake::of(&left).await;
    let other = Fake::of(&right).await;
    let ((_, fetching), blocks) = (fetching(), prompt(1, 2));
    let serve = async |fake: &Fake, rank: &Rank, moved: u32| {
        let mut caller = fake.accept(1).await;
        caller.asked().await;
        // A block that is not the first of its sequence.
        let (mut head, bytes) = caller.part(0, &blocks[1], rank);
        head.position += moved;
        caller.send_block((head, bytes)).await;
        caller.closed().await;
    };
    let peers = [one.address(), other.address()];
    let fetch = fetching.fetch_parts(&peers, &blocks[1..]);
    let (fetched, (), ()) = join!(fetch, serve(&one, &left, 0), serve(&other, &right, 1));
    assert!(matches!(fetched.stopped, Some(FetchFault::Corrupt(_))), "{fetched:?}");
    assert_eq!((fetched.blocks.len(), free_and_active(&fetching.manager)), (0, (SLOTS.into(), 0)));
    let metrics = fetching.counters.metrics();
    assert_eq!((metrics.corrupt, metrics.stopped["corrupt"]), (1, 1), "{metrics:?}");
}

/// After an owner's restart the client reconnects immediately, before the old set has ended.
#[tokio::test]
async fn a_restarted_owner_is_asked_again_at_once() {
    let owner = Rank::of(0, 1, CONTIGUOUS);
    let fake = Fake::of(&owner).await;
    let blocks = prompt(1, BLOCKS as u64);
    let (rank, fetching) = fetching();
    let peers = [fake.address()];
    for (from, epochs) in [(0, 1..=1), (1, 2..=2)] {
        let fetch = fetching.fetch_parts(&peers, &blocks[from..=from]);
        let serve = async {
            for epoch in epochs {
                let mut caller = fake.accept(epoch).await;
                caller.asked().await;
                serve_all(&mut caller, &blocks[from..=from], &owner).await;
            }
        };
        let (fetched, ()) = timeout(Duration::from_secs(5), async { join!(fetch, serve) })
            .await
            .expect("it does not wait for its own set");
        assert_eq!((fetched.blocks.len(), fetched.stopped), (1, None));
    }
    assert_eq!(verified_bytes(&fetching.manager, &blocks, |block| rank.bytes_of(block)), 2);
}

/// Another agent with the same heads takes over in the middle of a block.
#[tokio::test]
async fn a_replica_takes_over_from_an_owner_that_dies() {
    let left = Rank::of(0, 2, CONTIGUOUS);
    let right = Rank::of(1, 2, BY_LAYER);
    let one = Fake::of(&left).await;
    let dies = Fake::of(&right).await;
    let lives = Fake::of(&right).await;
    let ((rank, fetching), blocks) = (fetching(), prompt(1, BLOCKS as u64));
    let serve_left = async {
        let mut caller = one.accept(1).await;
        caller.asked().await;
        serve_all(&mut caller, &blocks, &left).await;
        caller.closed().await;
    };
    let serve_dying = async {
        let mut caller = dies.accept(1).await;
        caller.asked().await;
        let first = caller.part(0, &blocks[0], &right);
        caller.send_block(first).await;
        let (head, mut part) = caller.part(1, &blocks[1], &right);
        // Sends wrong bytes first, which the other agent overwrites.
        part.iter_mut().for_each(|byte| *byte ^= 0xFF);
        part.truncate(150);
        caller.send_block((head, part)).await;
    };
    let serve_living = async {
        let mut caller = lives.accept(1).await;
        let asked = caller.asked().await;
        assert_eq!(asked.sequences.first(), Some(&blocks[1].sequence.0), "it goes on there");
        serve_all(&mut caller, &blocks[1..], &right).await;
        caller.closed().await;
    };
    let peers = [one.address(), dies.address(), lives.address()];
    let fetch = async {
        let fetched = fetching.fetch_parts(&peers, &blocks).await;
        fetching.backend.close_idle();
        fetched
    };
    let (fetched, (), (), ()) = join!(fetch, serve_left, serve_dying, serve_living);
    assert_eq!((fetched.blocks.len(), &fetched.stopped), (BLOCKS, &None));
    let came: Vec<_> = fetched.peers.iter().map(|peer| peer.blocks).collect();
    assert_eq!(came, [3, 1, 2]);
    assert!(matches!(fetched.peers[1].stopped, Some(FetchFault::Lost(_))), "{fetched:?}");
    drop(fetched.blocks);
    let verified = verified_bytes(&fetching.manager, &blocks, |block| rank.bytes_of(block));
    assert_eq!(verified, BLOCKS);
}

#[tokio::test]
async fn a_silent_owner_costs_the_deadline_alone() {
    let left = Rank::of(0, 2, CONTIGUOUS);
    let right = Rank::of(1, 2, CONTIGUOUS);
    let one = Fake::of(&left).await;
    let silent = Fake::of(&right).await;
    let ((_, fetching), blocks) = (fetching(), prompt(1, BLOCKS as u64));
    let serve_left = async {
        let mut caller = one.accept(1).await;
        caller.asked().await;
        serve_all(&mut caller, &blocks, &left).await;
    };
    let serve_silent = async {
        let mut caller = silent.accept(1).await;
        caller.asked().await;
        let (head, mut part) = caller.part(0, &blocks[0], &right);
        part.truncate(10);
        caller.send_block((head, part)).await;
        caller.closed().await;
    };
    let peers = [one.address(), silent.address()];
    let within = Duration::from_millis(200);
    let fetch = fetching.fetch_parts_within(&peers, &blocks, within);
    let (fetched, (), ()) = join!(fetch, serve_left, serve_silent);
    assert_eq!((fetched.blocks.len(), &fetched.stopped), (0, &Some(FetchFault::TimedOut)));
    assert!(fetched.peers.iter().all(|peer| peer.stopped == Some(FetchFault::TimedOut)));
    assert_eq!(free_and_active(&fetching.manager), (SLOTS.into(), 0));
}

/// Makes a description wrong.
type Change = fn(&mut BlockDescription);

/// An owner with an invalid description is refused with the field's name, and is never queried.
#[tokio::test]
async fn an_owner_that_lies_about_its_layout_is_refused_by_the_field() {
    let right = Rank::of(1, 2, CONTIGUOUS);
    let cases: [(Change, &str); 12] = [
        (|at| at.model = "other".to_owned(), "model is"),
        (|at| at.block_bytes += 1, "block_bytes is 385, and the dimensions make 384"),
        (|at| at.form = 3, "form 3 is not known"),
        (|at| at.tp_rank = 2, "tp_rank is 2"),
        (|at| at.tp_size = 0, "tp_size"),
        (|at| at.tp_size = 2_048, "tp_size is 2048, the limit is 1024"),
        (|at| at.tp_replicas = 0, "tp_replicas"),
        (
            |at| at.tp_replicas = 2,
            "blocks-geometry inner-dim of all ranks is 16 at the caller and 8",
        ),
        (|at| at.tp_size = 4, "blocks-geometry inner-dim of all ranks is 16 at the caller and 32"),
        (|at| at.alignment_bytes = 3, "alignment_bytes is 3"),
        (|at| at.inner_dim = u32::MAX, "block_bytes is 384"),
        (|at| at.layers = 0, "outer_dim is 2, and layers is 0"),
    ];
    for (change, text) in cases {
        let mut fake = Fake::of(&right).await;
        change(&mut fake.blocks);
        let (_, fetching) = fetching();
        let serve = async { fake.accept(1).await.closed().await };
        let peers = [fake.address()];
        let blocks = prompt(1, 1);
        let (fetched, ()) = join!(fetching.fetch_parts(&peers, &blocks), serve);
        let fault = fetched.stopped.expect(text).to_string();
        assert!(fault.contains(text), "{text:?} in {fault}");
        assert_eq!(free_and_active(&fetching.manager), (SLOTS.into(), 0));
    }
}

/// A part from an ended set is invalid, even if it arrived completely.
#[tokio::test]
async fn a_newer_epoch_fences_parts_that_wait_for_others() {
    let left = Rank::of(0, 2, CONTIGUOUS);
    let right = Rank::of(1, 2, CONTIGUOUS);
    let one = Fake::of(&left).await;
    let other = Fake::of(&right).await;
    let ((_, fetching), blocks) = (fetching(), prompt(1, 1));
    let peers = [one.address(), other.address()];
    let older = fetching.fetch_parts(&peers, &blocks);
    let serve = async {
        let (mut old, mut waits) = join!(one.accept(1), other.accept(1));
        join!(old.asked(), waits.asked());
        let part = old.part(0, &blocks[0], &left);
        old.send_block(part).await;
        // The owner of the first part has restarted with a new epoch, which another call detects.
        let newer = fetching.fetch_parts(&peers[..1], &blocks);
        let fence = async {
            let welcomed = one.accept(2).await;
            while fetching.registry.stats().quarantined == 0 {
                tokio::task::yield_now().await;
            }
            let part = waits.part(0, &blocks[0], &right);
            waits.send_block(part).await;
            drop(welcomed);
        };
        join!(newer, fence).0
    };
    let (older, _newer) = join!(older, serve);
    assert_eq!(older.peers[0].stopped, Some(FetchFault::Fenced), "{older:?}");
    assert_eq!(older.blocks.len(), 0, "{older:?}");
    assert_eq!(free_and_active(&fetching.manager), (SLOTS.into(), 0));
}
