//! Transfers that take too long, storages that hang or fail: other work continues and ends in time.

use crate::gate::Gate;
use crate::world::{
    Faults, Sizes, bytes_of, chain, config, fill, names, request, settle, storages, until,
};
use kvasir_blocks::plan::Route;
use kvasir_blocks::{BlockIdentity, BlockTier, LaneStats};
use kvasir_tiers::faults::Call;
use kvasir_tiers::manager::{KvBlockManager, ManagerConfig, OnboardRequest, Session, StopReason};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;
use tokio::runtime::Builder;
use tokio::time::Instant;

const SIZES: Sizes = Sizes { device: 0, host: 8, disk: 16 };
const UP: Route = Route { from: BlockTier::Disk, to: BlockTier::Host };
const DOWN: Route = Route { from: BlockTier::Host, to: BlockTier::Disk };
const SOON: Duration = Duration::from_millis(100);

/// A manager with a gate before its disk.
fn start(folder: &Path, change: impl FnOnce(&mut ManagerConfig)) -> (KvBlockManager, Gate) {
    let gate = Gate::default();
    let mut storages = storages(SIZES, &folder.join("disk"), &Faults::none());
    let disk = storages.disk.as_mut().expect("a disk");
    disk.storage = gate.before(Arc::clone(&disk.storage));
    let mut config = config(SIZES);
    change(&mut config);
    (KvBlockManager::start(config, &storages).expect("a manager"), gate)
}

fn lane(manager: &KvBlockManager, route: Route) -> LaneStats {
    manager.metrics().blocks.lanes[&route]
}

/// Stores blocks that are only on the disk.
async fn on_disk(manager: &KvBlockManager, blocks: &[BlockIdentity]) {
    let session = manager.open_session("engine").expect("a session");
    fill(&session, blocks);
    settle(manager).await;
    session.end();
    manager.state().pool(BlockTier::Host).expect("a pool").reset_inactive();
    assert_eq!(manager.find(&names(blocks)).nearest(BlockTier::Disk), blocks.len());
}

async fn brings(session: &Session, blocks: &[BlockIdentity]) {
    let onboarded = session.onboard(&names(blocks), request()).await.expect("an answer");
    assert_eq!((onboarded.blocks.len(), onboarded.stopped), (blocks.len(), None));
    for (held, block) in onboarded.blocks.iter().zip(blocks) {
        assert_eq!(session.read(held.slot).expect("bytes"), bytes_of(block.sequence));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transfer_that_takes_too_long_registers_nothing_and_keeps_its_slot_until_it_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let (manager, gate) = start(folder.path(), |config| {
        for tier in config.blocks.tiers.values_mut() {
            tier.lane.transfer_timeout = SOON;
        }
    });
    let blocks = chain(1, 1);
    on_disk(&manager, &blocks).await;
    gate.shut(Call::Load);
    let session = manager.open_session("engine").expect("a session");
    let began = Instant::now();
    let onboarded = session.onboard(&names(&blocks), request()).await.expect("an answer");
    assert_eq!(onboarded.stopped.map(|stopped| stopped.reason), Some(StopReason::TimedOut));
    assert!(began.elapsed() < request().timeout, "nobody waits for what may never end");
    assert_eq!(lane(&manager, UP).cancelling, 1);
    assert_eq!(manager.metrics().blocks.pools[&BlockTier::Host].quarantined, 1);
    gate.open();
    settle(&manager).await;
    assert_eq!(lane(&manager, UP).late, 1, "it was whole, and too late");
    assert_eq!(manager.metrics().blocks.pools[&BlockTier::Host].quarantined, 0);
    assert_eq!(manager.find(&names(&blocks)).nearest(BlockTier::Disk), 1);
    brings(&session, &blocks).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_joins_a_transfer_that_was_given_up_gets_the_block_nevertheless() {
    let folder = tempfile::tempdir().expect("a folder");
    let (manager, gate) = start(folder.path(), |_| {});
    let blocks = chain(2, 1);
    on_disk(&manager, &blocks).await;
    gate.shut(Call::Load);
    let first = manager.open_session("impatient").expect("a session");
    let short = OnboardRequest { timeout: Duration::from_millis(50), ..request() };
    let onboarded = first.onboard(&names(&blocks), short).await.expect("an answer");
    assert_eq!(onboarded.stopped.map(|stopped| stopped.reason), Some(StopReason::TimedOut));
    until("it is given up", || lane(&manager, UP).cancelling == 1).await;
    let second = manager.open_session("patient").expect("a session");
    let open = async {
        until("it was asked for again", || lane(&manager, UP).skipped_present > 0).await;
        gate.open();
    };
    tokio::join!(brings(&second, &blocks), open);
}

#[tokio::test(flavor = "multi_thread")]
async fn giving_up_an_onboard_does_not_stop_the_offload_of_the_block() {
    let folder = tempfile::tempdir().expect("a folder");
    let sizes = Sizes { device: 4, host: 8, disk: 16 };
    let host_gate = Gate::default();
    let disk_gate = Gate::default();
    let mut storages = storages(sizes, &folder.path().join("disk"), &Faults::none());
    let host = storages.host.as_mut().expect("host");
    let disk = storages.disk.as_mut().expect("disk");
    host.storage = host_gate.before(Arc::clone(&host.storage));
    disk.storage = disk_gate.before(Arc::clone(&disk.storage));
    let manager = KvBlockManager::start(config(sizes), &storages).expect("a manager");
    let session = manager.open_session("engine").expect("a session");
    let blocks = chain(3, 4);
    disk_gate.shut(Call::Store);
    fill(&session, &blocks);
    session.end();
    until("all are on their way to the disk", || lane(&manager, DOWN).in_flight == 4).await;
    manager.state().pool(BlockTier::Device).expect("a pool").reset_inactive();
    host_gate.shut(Call::Load);
    let impatient = manager.open_session("impatient").expect("a session");
    let short = OnboardRequest { timeout: Duration::from_millis(50), ..request() };
    impatient.onboard(&names(&blocks), short).await.expect("an answer");
    let up = Route { from: BlockTier::Host, to: BlockTier::Device };
    until("it is given up", || lane(&manager, up).cancelling == 4).await;
    host_gate.open();
    disk_gate.open();
    settle(&manager).await;
    assert_eq!(manager.find(&names(&blocks)).leading(BlockTier::Disk), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_erased_is_tried_again_in_rounds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (manager, gate) = start(folder.path(), |_| {});
    gate.fail(Call::Store);
    gate.fail(Call::Erase);
    let session = manager.open_session("engine").expect("a session");
    fill(&session, &chain(4, 2));
    gate.reached(Call::Erase, 2).await;
    let before = gate.calls(Call::Erase);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let attempts = gate.calls(Call::Erase) - before;
    assert!((1..=12).contains(&attempts), "{attempts} attempts a second for two records");
    gate.heal();
    until("they are erased", || manager.metrics().transfers.erased == 2).await;
}

/// Runs with a separate runtime, which must also end in time. Opens the gate at the end.
fn ends_in_time(
    threads: usize,
    body: impl FnOnce(&tokio::runtime::Runtime, &Path) -> Gate + Send + 'static,
) {
    let (tell, told) = mpsc::channel();
    let (give, gate) = mpsc::channel();
    let runs = thread::spawn(move || {
        let folder = tempfile::tempdir().expect("a folder");
        let mut builder =
            if threads == 1 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
        let runtime = builder.enable_all().build().expect("a runtime");
        let gate = body(&runtime, folder.path());
        give.send(gate).expect("somebody waits");
        drop(runtime);
        tell.send(()).expect("somebody waits");
    });
    let gate = gate.recv_timeout(Duration::from_secs(30)).expect("the body ends in time");
    let outcome = told.recv_timeout(Duration::from_secs(10));
    gate.open();
    assert!(outcome.is_ok(), "the runtime waits for a storage that hangs");
    runs.join().expect("no panic");
}

/// A manager whose disk hangs while it stores blocks.
async fn hanging(folder: &Path) -> (KvBlockManager, Gate) {
    let (manager, gate) = start(folder, |_| {});
    gate.shut(Call::Store);
    let session = manager.open_session("engine").expect("a session");
    fill(&session, &chain(5, 8));
    gate.reached(Call::Store, 4).await;
    (manager, gate)
}

#[test]
fn shutdown_does_not_wait_for_a_storage_that_hangs() {
    ends_in_time(2, |runtime, folder| {
        runtime.block_on(async {
            let (manager, gate) = hanging(folder).await;
            let began = Instant::now();
            let report = manager.shutdown(SOON, SOON).await;
            assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
            assert!(!report.is_drained);
            // Four transfers hang, and four are queued behind them, in one batch or several.
            assert_eq!(report.cancelled, 8);
            assert!((1..=8).contains(&report.stuck), "{report:?}");
            gate
        })
    });
}

#[test]
fn a_manager_that_is_dropped_does_not_wait_either() {
    for threads in [1, 2] {
        ends_in_time(threads, |runtime, folder| {
            runtime.block_on(async {
                let (manager, gate) = hanging(folder).await;
                let session = manager.open_session("engine").expect("a session");
                drop(manager);
                assert!(session.allocate(1, SOON).is_err(), "it stops");
                gate
            })
        });
    }
}
