//! The manager with a volume (G4): offloaded blocks return, even if the volume is changed or shared.

use crate::gate::Gate;
use crate::shelf::{self, Map, Shelf};
use crate::world::{
    Faults, Sizes, bytes_of, chain, commit, config, fill, names, request, settle, storages, until,
};
use kvasir_blocks::manager::TierConfig;
use kvasir_blocks::plan::Route;
use kvasir_blocks::{BlockIdentity, BlockTier};
use kvasir_tiers::faults::{Call, FaultyStorage, Plan, Rates};
use kvasir_tiers::manager::{KvBlockManager, ManagerConfig, Session, StopReason};
use kvasir_tiers::{Checksum, Storage};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const SIZES: Sizes = Sizes { device: 4, host: 8, disk: 8 };
const VOLUME_BLOCKS: u32 = 64;
const SECONDS: Duration = Duration::from_secs(5);

struct Agent {
    manager: KvBlockManager,
    gate: Gate,
    disk: TempDir,
}

impl Agent {
    /// A manager with an empty disk, and a gate before the volume.
    fn start(shelf: &Arc<dyn Shelf>, change: impl FnOnce(&mut ManagerConfig)) -> Self {
        Self::over(shelf.storage(), SIZES, change)
    }

    fn over(
        volume: Arc<dyn Storage>,
        sizes: Sizes,
        change: impl FnOnce(&mut ManagerConfig),
    ) -> Self {
        let disk = tempfile::tempdir().expect("a folder");
        let gate = Gate::default();
        let mut storages = storages(sizes, &disk.path().join("disk"), &Faults::none());
        storages.volume = Some(gate.before(volume));
        let mut config = config(sizes);
        config.blocks = config.blocks.with_tier(BlockTier::Volume, TierConfig::new(VOLUME_BLOCKS));
        change(&mut config);
        let manager = KvBlockManager::start(config, &storages).expect("a manager");
        Self { manager, gate, disk }
    }

    fn session(&self) -> Session {
        self.manager.open_session("engine").expect("a session")
    }

    /// Stores blocks that are only in the volume.
    async fn only_in_volume(&self, blocks: &[BlockIdentity]) {
        for part in blocks.chunks(4) {
            let session = self.session();
            fill(&session, part);
            session.end();
            settle(&self.manager).await;
        }
        self.forget();
        assert_eq!(self.manager.find(&names(blocks)).nearest(BlockTier::Volume), blocks.len());
    }

    /// Evicts all blocks from the tiers above the volume.
    fn forget(&self) {
        for tier in [BlockTier::Device, BlockTier::Host, BlockTier::Disk] {
            if let Some(pool) = self.manager.state().pool(tier) {
                pool.reset_inactive();
            }
        }
    }

    /// Onboards blocks, and checks that the returned ones have the right bytes. Returns their number, and why it
    /// stopped.
    async fn onboard(&self, blocks: &[BlockIdentity]) -> (usize, Option<StopReason>) {
        let session = self.session();
        let onboarded = session.onboard(&names(blocks), request()).await.expect("an answer");
        for (held, block) in onboarded.blocks.iter().zip(blocks) {
            let bytes = session.read(held.slot).expect("bytes");
            assert!(bytes == bytes_of(block.sequence), "wrong bytes of {held:?}");
        }
        (onboarded.blocks.len(), onboarded.stopped.map(|stopped| stopped.reason))
    }

    /// Continues conversations: reads the blocks found, and computes the rest. Then evicts them from all tiers except
    /// the volume. Returns the number of blocks found.
    async fn talk(&self, conversations: &[Vec<BlockIdentity>]) -> usize {
        let mut found = 0;
        for blocks in conversations {
            let (count, _) = self.onboard(blocks).await;
            found += count;
            settle(&self.manager).await;
            let session = self.session();
            if count < blocks.len() {
                fill(&session, &blocks[count..]);
            }
            session.end();
        }
        settle(&self.manager).await;
        self.forget();
        found
    }

    async fn shutdown(self) {
        let report = self.manager.shutdown(SECONDS, SECONDS).await;
        assert_eq!((report.is_drained, report.stuck), (true, 0));
    }
}

/// Twelve blocks that another agent has stored in the volume before it ended.
async fn left_by_another(shelf: &Arc<dyn Shelf>) -> Vec<BlockIdentity> {
    let blocks = chain(1, 12);
    let first = Agent::start(shelf, |_| {});
    first.only_in_volume(&blocks).await;
    let found = first.manager.find(&names(&blocks));
    assert_eq!(found.leading(BlockTier::Volume), 12, "{shelf:?}");
    first.shutdown().await;
    blocks
}

/// A full tier accepts more blocks only if unused ones may be evicted.
#[tokio::test(flavor = "multi_thread")]
async fn blocks_that_are_asked_for_take_the_place_of_others() {
    for shelf in shelf::all() {
        let blocks = left_by_another(&shelf).await;

        let second = Agent::start(&shelf, |config| {
            let blocks = config.blocks.clone();
            config.blocks = blocks.with_tier(BlockTier::Volume, TierConfig::new(4));
        });
        let mut there = shelf.blocks();
        there.sort_by_key(|block| block.identity.position);
        let early = &there[..4];
        let late = &there[4..8];
        assert_eq!(second.manager.restore_volume(early, false), 4);
        assert_eq!(second.manager.restore_volume(late, false), 0, "{shelf:?}: there is no room");
        assert_eq!(second.manager.restore_volume(early, true), 0, "they are known");
        assert_eq!(second.manager.restore_volume(late, true), 4, "{shelf:?}");
        let unknown = second.manager.state().unknown(&names(&blocks));
        assert_eq!(unknown, names(&[&blocks[..4], &blocks[8..]].concat()));
        assert_eq!(second.onboard(&blocks[4..8]).await, (4, None), "{shelf:?}");
        second.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_come_back_from_the_volume_after_a_restart_with_an_empty_disk() {
    for shelf in shelf::all() {
        let blocks = left_by_another(&shelf).await;

        let second = Agent::start(&shelf, |_| {});
        assert_eq!(second.onboard(&blocks).await, (0, Some(StopReason::Missing)));
        let mut there = shelf.blocks();
        assert_eq!(second.manager.restore_volume(&there, false), 12);
        assert_eq!(second.manager.restore_volume(&there, false), 0, "they are known");
        there.iter_mut().for_each(|block| block.bytes -= 1);
        assert_eq!(second.manager.restore_volume(&there, false), 0, "blocks of another size");
        assert_eq!(second.manager.find(&names(&blocks)).nearest(BlockTier::Volume), 12);
        for part in [&blocks[..4], &blocks[..4]] {
            assert_eq!(second.onboard(part).await, (4, None), "{shelf:?}");
        }
        second.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_with_more_blocks_than_its_tier_is_restored_as_far_as_there_is_room() {
    let shelf = Map::shelf();
    let blocks = chain(2, 12);
    let first = Agent::start(&shelf, |_| {});
    first.only_in_volume(&blocks).await;
    first.shutdown().await;
    let second = Agent::start(&shelf, |config| {
        config.blocks.tiers.insert(BlockTier::Volume, TierConfig::new(5));
    });
    assert_eq!(second.manager.restore_volume(&shelf.blocks(), false), 5);
    assert_eq!(second.manager.metrics().blocks.pools[&BlockTier::Volume].free, 0);
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_object_is_never_served_and_gives_way() {
    for shelf in shelf::all() {
        let blocks = chain(3, 3);
        let agent = Agent::start(&shelf, |_| {});
        agent.only_in_volume(&blocks).await;
        shelf.damage(blocks[1].sequence, 5_000);
        let corrupt = StopReason::Corrupt { tier: BlockTier::Volume };
        assert_eq!(agent.onboard(&blocks).await, (1, Some(corrupt)), "{shelf:?}");
        assert_eq!(agent.manager.metrics().corrupt[&BlockTier::Volume], 1);
        until("the object is erased", || !shelf.has(blocks[1].sequence)).await;
        // The block is computed again, and is intact from then on.
        agent.only_in_volume(&blocks[1..2]).await;
        agent.forget();
        assert_eq!(agent.onboard(&blocks).await, (3, None), "{shelf:?}");
        agent.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_blocks_object_or_half_an_object_is_not_the_block() {
    for shelf in shelf::all() {
        let blocks = chain(4, 3);
        let agent = Agent::start(&shelf, |_| {});
        agent.only_in_volume(&blocks).await;
        shelf.replace(blocks[0].sequence, blocks[1].sequence);
        shelf.cut(blocks[2].sequence);
        for at in [0, 2] {
            let (count, reason) = agent.onboard(&blocks[at..=at]).await;
            assert_eq!(count, 0, "{shelf:?}");
            assert!(reason.is_some());
            until("it is withdrawn", || agent.manager.find(&names(&blocks[at..=at])).is_empty())
                .await;
        }
        assert_eq!(agent.onboard(&blocks[1..2]).await, (1, None), "{shelf:?}");
        agent.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_stored_again_is_not_erased_for_what_was_wrong_before() {
    let shelf = Map::shelf();
    let blocks = chain(5, 1);
    let agent = Agent::start(&shelf, |_| {});
    agent.only_in_volume(&blocks).await;
    shelf.damage(blocks[0].sequence, 0);
    agent.gate.fail(Call::Erase);
    let corrupt = StopReason::Corrupt { tier: BlockTier::Volume };
    assert_eq!(agent.onboard(&blocks).await, (0, Some(corrupt)));
    agent.gate.reached(Call::Erase, 1).await;
    // Another agent has repaired it meanwhile, and this agent stores it again, too.
    shelf.damage(blocks[0].sequence, 0);
    agent.only_in_volume(&blocks).await;
    agent.gate.heal();
    settle(&agent.manager).await;
    let calls = agent.gate.calls(Call::Erase);
    let report = agent.manager.shutdown(SECONDS, SECONDS).await;
    assert!(report.is_drained);
    assert!(shelf.has(blocks[0].sequence), "it was erased, {calls} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_of_the_volume_is_told_at_once_and_loses_nothing() {
    for sizes in [SIZES, Sizes { device: 0, disk: 0, ..SIZES }] {
        let agent = Agent::over(Map::shelf().storage(), sizes, |_| {});
        let blocks = chain(6, 1);
        agent.only_in_volume(&blocks).await;
        agent.gate.fail(Call::Load);
        let unreadable = StopReason::Unreadable { tier: BlockTier::Volume };
        assert_eq!(agent.onboard(&blocks).await, (0, Some(unreadable)));
        assert_eq!(agent.gate.calls(Call::Load), 1, "the same copy is not tried again");
        agent.gate.heal();
        assert_eq!(agent.onboard(&blocks).await, (1, None));
        agent.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_hangs_holds_up_nobody_for_longer_than_a_transfer_may_take() {
    let shelf = Map::shelf();
    let agent = Agent::start(&shelf, |config| {
        config.relay_slots = 1;
        for tier in config.blocks.tiers.values_mut() {
            tier.lane.transfer_timeout = Duration::from_millis(200);
        }
    });
    let blocks = chain(7, 3);
    agent.only_in_volume(&blocks).await;
    agent.gate.shut(Call::Load);
    // The first transfer hangs with the only relay slot; the others have not begun.
    let each = blocks.iter().map(|block| async {
        let session = agent.session();
        let began = tokio::time::Instant::now();
        let onboarded = session.onboard(&[block.sequence], request()).await.expect("an answer");
        assert_eq!(onboarded.stopped.map(|stopped| stopped.reason), Some(StopReason::TimedOut));
        assert!(began.elapsed() < SECONDS, "{:?}", began.elapsed());
    });
    futures::future::join_all(each).await;
    let up = Route { from: BlockTier::Volume, to: BlockTier::Disk };
    assert_eq!(agent.manager.metrics().blocks.lanes[&up].in_flight, 1);
    // Memory and disk continue to work.
    let others = chain(8, 4);
    fill(&agent.session(), &others);
    until("they are on the disk", || {
        agent.manager.find(&names(&others)).leading(BlockTier::Disk) == 4
    })
    .await;
    agent.gate.open();
    settle(&agent.manager).await;
    assert_eq!(agent.onboard(&blocks).await, (3, None));
    agent.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_managers_share_a_volume_and_the_first_write_wins() {
    for shelf in shelf::all() {
        let one = Agent::start(&shelf, |_| {});
        let two = Agent::start(&shelf, |_| {});
        let blocks = chain(9, 2);
        one.only_in_volume(&blocks[..1]).await;
        let stored = shelf.blocks();
        // The same tokens computed by other hardware: different bytes, which are equally valid.
        let session = two.session();
        let slot = session.allocate(1, SECONDS).expect("a slot")[0].slot;
        let mut own = bytes_of(blocks[0].sequence);
        own[7] ^= 1;
        session.write(slot, 0, &own).expect("a leased slot");
        session.commit(slot, &commit(&blocks[0])).expect("a block");
        settle(&two.manager).await;
        assert_eq!(shelf.blocks(), stored, "{shelf:?}: the first one stays");
        let own_sum = Checksum::of(blocks[0].sequence.0, &own);
        assert_ne!(stored[0].checksum, own_sum);
        // The agent registers no block that another agent has written, until it has listed the volume.
        assert_eq!(two.manager.find(&names(&blocks)).leading(BlockTier::Volume), 0);
        assert_eq!(session.read(slot).expect("its own bytes"), own);
        session.end();
        assert_eq!(two.manager.restore_volume(&stored, false), 1);
        two.forget();
        assert_eq!(two.onboard(&blocks[..1]).await, (1, None), "{shelf:?}: bytes of the first");
        // A block stored by one agent is available to the other.
        two.only_in_volume(&blocks[1..]).await;
        assert_eq!(one.manager.restore_volume(&shelf.blocks(), false), 1);
        assert_eq!(one.onboard(&blocks).await, (2, None));
        // Both agents detect a damaged block.
        shelf.damage(blocks[0].sequence, 9);
        for agent in [&one, &two] {
            settle(&agent.manager).await;
            agent.forget();
            let found = agent.manager.find(&names(&blocks));
            assert_eq!(found.nearest(BlockTier::Volume), 2, "{:?}", found);
        }
        let corrupt = StopReason::Corrupt { tier: BlockTier::Volume };
        assert_eq!(one.onboard(&blocks).await, (0, Some(corrupt)));
        until("it is erased", || !shelf.has(blocks[0].sequence)).await;
        assert_eq!(two.onboard(&blocks).await, (0, Some(StopReason::Missing)));
        assert!(two.manager.find(&names(&blocks[..1])).is_empty());
        one.shutdown().await;
        two.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_comes_from_both_sides_is_on_the_disk_once() {
    let shelf = Map::shelf();
    let agent = Agent::start(&shelf, |_| {});
    let blocks = chain(10, 1);
    agent.only_in_volume(&blocks).await;
    // The block is onboarded from the volume, while an engine also computes it.
    agent.gate.shut(Call::Load);
    let session = agent.session();
    let wanted = names(&blocks);
    let come = session.onboard(&wanted, request());
    let compute = async {
        agent.gate.reached(Call::Load, 1).await;
        fill(&agent.session(), &blocks);
        until("it is on the disk", || {
            agent.manager.find(&names(&blocks)).leading(BlockTier::Disk) == 1
        })
        .await;
        agent.gate.open();
    };
    let (onboarded, ()) = tokio::join!(come, compute);
    assert_eq!(onboarded.expect("an answer").blocks.len(), 1);
    session.end();
    settle(&agent.manager).await;
    until("no second block is left", || {
        let disk = agent.manager.metrics().blocks.pools[&BlockTier::Disk];
        (disk.inactive, disk.duplicates) == (1, 0)
    })
    .await;
    let path = agent.disk.path().join("disk");
    let report = agent.manager.shutdown(SECONDS, SECONDS).await;
    assert!(report.is_drained);
    assert_eq!(records(&path), 1, "file and pool differ");
}

/// Number of records in a disk's table.
fn records(disk: &Path) -> usize {
    let table = std::fs::read(disk.with_extension("kvasir-table")).expect("a table");
    table.chunks(64).filter(|record| record.iter().any(|byte| *byte != 0)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_full_of_faults_never_gives_wrong_bytes() {
    for (seed, shelf) in (1..).zip(shelf::all()) {
        let rates = Rates {
            flip: 60,
            full: 60,
            io: 60,
            delay: 60,
            cancel: 60,
            delay_max: Duration::from_millis(3),
            ..Rates::default()
        };
        let plan = Plan::new(seed, rates);
        let faulty = FaultyStorage::new(shelf.storage(), Arc::clone(&plan), shelf::flips(&shelf));
        let agent = Agent::over(Arc::new(faulty), SIZES, |_| {});
        let conversations: Vec<_> = (0..16).map(|number| chain(100 + number, 4)).collect();
        let mut loaded = 0;
        for round in 0..6 {
            let found = agent.talk(&conversations).await;
            loaded += if round > 0 { found } else { 0 };
        }
        assert!(loaded > 50, "{shelf:?}: {loaded} blocks were loaded");
        assert!(plan.injected().values().sum::<u64>() > 20, "{shelf:?}: {:?}", plan.injected());
        plan.end();
        // Published blocks exist, at the latest after one check of each block.
        for blocks in &conversations {
            for block in blocks {
                agent.onboard(&[*block]).await;
            }
        }
        settle(&agent.manager).await;
        let there: Vec<_> = shelf.blocks();
        let pool = agent.manager.state().pool(BlockTier::Volume).expect("a pool");
        for slot in 0..VOLUME_BLOCKS {
            let Some(block) = pool.slot_block(kvasir_blocks::SlotId(slot)) else { continue };
            let name = block.identity.sequence.0;
            assert!(there.iter().any(|at| at.identity.sequence_hash == name), "{shelf:?}: {name}");
        }
        agent.shutdown().await;
    }
}
