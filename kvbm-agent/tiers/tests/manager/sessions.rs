//! The rights of a session, and the state after its end.

use crate::world::{
    BLOCK_BYTES, Sizes, bytes_of, chain, commit, fill, names, request, settle, start,
};
use kvasir_blocks::{BlockTier, SlotId};
use kvasir_tiers::manager::{
    AllocateError, CommitError, CommitKind, FeedStep, ReadError, SessionError, StopReason,
};
use std::time::Duration;

const THREE: Sizes = Sizes { device: 8, host: 16, disk: 64 };

#[tokio::test(flavor = "multi_thread")]
async fn a_block_goes_down_and_comes_back_after_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = folder.path().join("disk");
    let blocks = chain(1, 6);
    {
        let manager = start(THREE, &disk);
        let session = manager.open_session("engine").expect("a session");
        fill(&session, &blocks);
        settle(&manager).await;
        assert_eq!(manager.find(&names(&blocks)).leading(BlockTier::Disk), 6);
        session.end();
        let report = manager.shutdown(Duration::from_secs(5), Duration::from_secs(5)).await;
        assert_eq!((report.is_drained, report.stuck), (true, 0));
        assert_eq!(manager.open_session("late").err(), Some(SessionError::Stopping));
    }
    let manager = start(THREE, &disk);
    assert_eq!(manager.metrics().transfers.restored, 6);
    let session = manager.open_session("engine").expect("a session");
    let onboarded = session.onboard(&names(&blocks), request()).await.expect("an answer");
    assert_eq!((onboarded.blocks.len(), onboarded.stopped), (6, None));
    for (held, block) in onboarded.blocks.iter().zip(&blocks) {
        assert_eq!(held.found_in, BlockTier::Disk);
        assert_eq!(session.read(held.slot).expect("bytes"), bytes_of(block.sequence));
        assert!(session.release(held.slot));
        assert!(!session.release(held.slot));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_leases_and_duplicates_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(Sizes { device: 0, host: 4, disk: 0 }, &folder.path().join("disk"));
    assert_eq!(manager.engine_tier(), BlockTier::Host);
    let one = manager.open_session("1").expect("one");
    let two = manager.open_session("2").expect("two");
    let lease = Duration::from_secs(10);
    assert_eq!(one.allocate(0, lease), Err(AllocateError::Nothing));
    assert!(matches!(one.allocate(1, Duration::ZERO), Err(AllocateError::Lease { .. })));
    assert!(matches!(one.allocate(5, lease), Err(AllocateError::Exhausted(_))));
    let block = chain(2, 1);
    fill(&one, &block);
    let slots = two.allocate(2, lease).expect("slots");
    let own = slots[0].slot;
    let spare = slots[1].slot;
    two.write(own, 0, &bytes_of(block[0].sequence)).expect("a leased slot");
    assert!(matches!(one.commit(own, &commit(&block[0])), Err(CommitError::NotLeased { .. })));
    let mut stated = commit(&block[0]);
    stated.checksum = Some(kvasir_tiers::Checksum(1));
    assert!(matches!(two.commit(own, &stated), Err(CommitError::Checksum { .. })));
    let committed = two.commit(own, &commit(&block[0])).expect("a block");
    assert_eq!(committed.kind, CommitKind::Duplicate);
    assert!(two.abort(spare) && !two.abort(spare));
    two.end();
    assert_eq!(two.allocate(1, lease), Err(AllocateError::Session(SessionError::Ended)));
    drop(one);
    let pool = manager.metrics().blocks.pools[&BlockTier::Host];
    assert_eq!((pool.free, pool.inactive, pool.active), (3, 1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_ends_and_a_lost_session_keeps_its_slots_until_then() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(Sizes { device: 0, host: 4, disk: 0 }, &folder.path().join("disk"));
    let session = manager.open_session("slow").expect("a session");
    let short = session.allocate(1, Duration::from_millis(1)).expect("a slot")[0].slot;
    let lost = manager.open_session("lost").expect("a session");
    lost.allocate(3, Duration::from_millis(300)).expect("slots");
    drop(lost);
    assert_eq!(manager.metrics().blocks.pools[&BlockTier::Host].free, 0);
    while manager.metrics().blocks.pools[&BlockTier::Host].free < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = session.commit(short, &commit(&chain(3, 1)[0]));
    assert!(matches!(refused, Err(CommitError::NotLeased { .. } | CommitError::LeaseOver { .. })));
    assert_eq!(manager.metrics().sessions.leases_over, 4);
    assert_eq!(manager.metrics().sessions.lost, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bytes_are_never_given_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(Sizes { device: 0, host: 4, disk: 0 }, &folder.path().join("disk"));
    let mut feed = manager.events().expect("a feed");
    assert!(manager.events().is_err());
    assert!(matches!(feed.next().await, FeedStep::Image(_)));
    let session = manager.open_session("engine").expect("a session");
    let block = chain(4, 1);
    fill(&session, &block);
    let held = session.hold_prefix(&names(&block)).expect("a block")[0];
    session.end();
    let reader = manager.open_session("reader").expect("a session");
    // The slot is not in use: simulates memory that changes by itself.
    manager
        .arena()
        .write(held.slot.0)
        .expect("a slot")
        .write(BLOCK_BYTES - 1, &[!0])
        .expect("room");
    let held = reader.hold_prefix(&names(&block)).expect("a block")[0];
    assert_eq!(reader.read(held.slot), Err(ReadError::Corrupt { slot: held.slot.0 }));
    assert_eq!(manager.metrics().corrupt[&BlockTier::Host], 1);
    assert!(manager.find(&names(&block)).is_empty());
    assert_eq!(reader.read(SlotId(3)), Err(ReadError::NotHeld { slot: 3 }));
    let FeedStep::Events(events) = feed.next().await else { panic!("events") };
    assert_eq!(events.len(), 2);
    let onboarded = reader.onboard(&names(&block), request()).await.expect("an answer");
    assert_eq!(onboarded.stopped.map(|stopped| stopped.reason), Some(StopReason::Missing));
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_keep_blocks_for_their_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(Sizes { device: 0, host: 2, disk: 0 }, &folder.path().join("disk"));
    let session = manager.open_session("engine").expect("a session");
    let block = chain(5, 1);
    fill(&session, &block);
    session.end();
    let pin = manager.pin(block[0].sequence, Duration::from_secs(60)).expect("a pin");
    let other = manager.open_session("other").expect("a session");
    assert!(other.allocate(2, Duration::from_secs(1)).is_err());
    assert!(manager.unpin(pin) && !manager.unpin(pin));
    assert_eq!(other.allocate(2, Duration::from_secs(1)).expect("slots").len(), 2);
    assert!(manager.pin(block[0].sequence, Duration::from_secs(1)).is_err());
}
