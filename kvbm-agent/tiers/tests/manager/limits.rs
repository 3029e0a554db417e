//! Limits of a session, for all requests and concurrent calls.

use crate::gate::Gate;
use crate::world::{
    Faults, Sizes, bytes_of, chain, commit, config, fill, names, request, settle, start, storages,
    until,
};
use kvasir_blocks::BlockTier;
use kvasir_tiers::faults::Call;
use kvasir_tiers::manager::{
    AllocateError, CommitError, KvBlockManager, OnboardRequest, PinError, SessionLimits, StopReason,
};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn absurd_numbers_are_refused_and_nothing_overflows() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = Sizes { device: 4, host: 4, disk: 4 };
    let mut config = config(sizes);
    for tier in config.blocks.tiers.values_mut() {
        tier.lane.in_flight_transfers_max = usize::MAX;
        tier.lane.batch_blocks_max = usize::MAX;
        tier.lane.in_flight_bytes_max = u64::MAX;
        tier.lane.transfer_timeout = Duration::MAX;
    }
    config.session = SessionLimits { leased_slots_max: usize::MAX, held_blocks_max: usize::MAX };
    (config.lease_max, config.pin_ttl_max) = (Duration::MAX, Duration::MAX);
    let storages = storages(sizes, &folder.path().join("disk"), &Faults::none());
    let manager = KvBlockManager::start(config, &storages).expect("a manager");
    let session = manager.open_session("absurd").expect("a session");
    let refused = session.allocate(usize::MAX, Duration::MAX);
    assert!(matches!(refused, Err(AllocateError::Exhausted(_))), "{refused:?}");
    let blocks = chain(1, 4);
    fill(&session, &blocks);
    settle(&manager).await;
    manager.pin(blocks[0].sequence, Duration::MAX).expect("a pin");
    let request = OnboardRequest { timeout: Duration::MAX, ..request() };
    let missing = chain(2, 1);
    let stopped = session.onboard(&names(&missing), request).await.expect("an answer").stopped;
    assert_eq!(stopped.map(|stopped| stopped.reason), Some(StopReason::Missing));
    assert_eq!(manager.find(&names(&blocks)).leading(BlockTier::Disk), 4);
    let report = manager.shutdown(Duration::MAX, Duration::MAX).await;
    assert!(report.is_drained, "{report:?}");
    assert!(matches!(manager.pin(blocks[0].sequence, Duration::ZERO), Err(PinError::Ttl { .. })));
}

/// A manager with a gate before its disk, and blocks that are only on this disk.
async fn on_disk(folder: &tempfile::TempDir, held_blocks_max: usize) -> (KvBlockManager, Gate) {
    let sizes = Sizes { device: 0, host: 8, disk: 16 };
    let gate = Gate::default();
    let mut storages = storages(sizes, &folder.path().join("disk"), &Faults::none());
    let disk = storages.disk.as_mut().expect("a disk");
    disk.storage = gate.before(Arc::clone(&disk.storage));
    let mut config = config(sizes);
    config.session.held_blocks_max = held_blocks_max;
    let manager = KvBlockManager::start(config, &storages).expect("a manager");
    let session = manager.open_session("engine").expect("a session");
    fill(&session, &chain(1, 4));
    settle(&manager).await;
    session.end();
    manager.state().pool(BlockTier::Host).expect("a pool").reset_inactive();
    (manager, gate)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_onboard_that_is_dropped_leaves_nothing_held() {
    let folder = tempfile::tempdir().expect("a folder");
    let (manager, gate) = on_disk(&folder, 8).await;
    let session = manager.open_session("impatient").expect("a session");
    let memory = chain(5, 2);
    fill(&session, &memory);
    for block in session.hold_prefix(&names(&memory)).expect("blocks") {
        // One reference from the commit, one from this call.
        assert!(session.release(block.slot) && session.release(block.slot));
    }
    gate.shut(Call::Load);
    let prompt: Vec<_> = [names(&memory), names(&chain(1, 4))].concat();
    let onboard = session.onboard(&prompt, request());
    assert!(tokio::time::timeout(Duration::from_millis(100), onboard).await.is_err(), "it waits");
    gate.open();
    settle(&manager).await;
    let pool = manager.metrics().blocks.pools[&BlockTier::Host];
    assert_eq!((pool.active, pool.mutable, pool.quarantined), (0, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_the_same_time_hold_no_more_than_one_session_may() {
    let folder = tempfile::tempdir().expect("a folder");
    let (manager, gate) = on_disk(&folder, 4).await;
    let session = manager.open_session("engine").expect("a session");
    gate.shut(Call::Load);
    let slow_prompt = names(&chain(1, 4));
    let slow = session.onboard(&slow_prompt, request());
    let other = async {
        gate.reached(Call::Load, 1).await;
        fill(&session, &chain(6, 3));
        gate.open();
    };
    let (slow, ()) = tokio::join!(slow, other);
    let slow = slow.expect("an answer");
    assert_eq!(slow.blocks.len(), 1);
    assert_eq!(slow.stopped.map(|stopped| stopped.reason), Some(StopReason::Limit));
    assert_eq!(manager.metrics().blocks.pools[&BlockTier::Host].active, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_commit_is_not_taken_for_one_of_the_next_lease() {
    let folder = tempfile::tempdir().expect("a folder");
    let manager = start(Sizes { device: 0, host: 1, disk: 0 }, &folder.path().join("disk"));
    let session = manager.open_session("two threads").expect("a session");
    let late = session.allocate(1, Duration::from_millis(1)).expect("a slot")[0].slot;
    until("the lease is over", || manager.metrics().sessions.leases_over == 1).await;
    let next = session.allocate(1, Duration::from_millis(200)).expect("a slot")[0].slot;
    assert_eq!(late, next, "there is one slot");
    // One thread has not noticed that its lease has expired, while another one writes.
    let blocks = chain(7, 2);
    let refused = session.commit(late, &commit(&blocks[0]));
    assert_eq!(refused, Err(CommitError::LeaseOver { slot: 0 }));
    assert!(session.write(next, 0, &bytes_of(blocks[1].sequence)).is_err());
    assert!(!session.abort(late), "the slot stays until nobody can write it");
    assert_eq!(manager.metrics().blocks.pools[&BlockTier::Host].mutable, 1);
    until("that lease is over", || manager.metrics().sessions.leases_over == 2).await;
    // From now on the session was notified.
    assert_eq!(session.commit(late, &commit(&blocks[0])), Err(CommitError::NotLeased { slot: 0 }));
    fill(&session, &blocks[1..]);
    assert!(manager.find(&names(&blocks[..1])).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_of_one_session_never_get_each_others_bytes() {
    const THREADS: u64 = 6;
    let folder = tempfile::tempdir().expect("a folder");
    // A slot that a late thread may mean is not committed for the length of a lease: there are others.
    let manager = start(Sizes { device: 0, host: 32, disk: 0 }, &folder.path().join("disk"));
    let session = manager.open_session("many threads").expect("a session");
    let work = |thread: u64| {
        let mut committed = 0;
        for round in 0..400 {
            let block = chain(thread * 1_000 + round, 1)[0];
            let lease = if round % 3 == 0 { Duration::from_micros(1) } else { LEASE };
            let Ok(slots) = session.allocate(1, lease) else { continue };
            let slot = slots[0].slot;
            let bytes = bytes_of(block.sequence);
            let _written = session.write(slot, 0, &bytes);
            if round % 3 == 0 {
                // This thread is slow: by now another thread may have the slot.
                thread::sleep(Duration::from_millis(round % 60));
            }
            let Ok(done) = session.commit(slot, &commit(&block)) else {
                session.abort(slot);
                continue;
            };
            committed += 1;
            let read = session.read(done.block.slot).expect("a held block");
            assert!(read == bytes, "block {block:?} has another one's bytes");
            session.release(done.block.slot);
        }
        committed
    };
    let committed: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no wrong bytes")).sum()
    });
    assert!(committed > 100, "{committed} blocks only");
    session.end();
    let pool = manager.metrics().blocks.pools[&BlockTier::Host];
    assert_eq!((pool.active, pool.mutable), (0, 0));
}
