//! Final audit: events, pools and stored blocks must agree.

use crate::soak::SIZES;
use crate::world::{bytes_of, disk_config};
use kvasir_blocks::events::Registration;
use kvasir_blocks::{BlockTier, Change, PoolStats, SlotId};
use kvasir_proto::types::SequenceHash;
use kvasir_tiers::manager::{EventFeed, FeedStep, KvBlockManager};
use kvasir_tiers::{Cancel, DiskStorage, Place, Storage};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) type Entry = (u8, u64);

pub(crate) fn entry(registration: &Registration) -> Entry {
    (registration.tier.index() as u8, registration.identity.sequence.0)
}

/// The state of a reader of all events.
async fn told(mut feed: EventFeed) -> BTreeSet<Entry> {
    let mut known = BTreeSet::new();
    while let Ok(step) = tokio::time::timeout(Duration::from_millis(200), feed.next()).await {
        match step {
            FeedStep::Image(image) => known = image.registrations.iter().map(entry).collect(),
            FeedStep::Events(events) => {
                for event in events {
                    let entry = entry(&event.registration);
                    let is_new = match event.change {
                        Change::Register => known.insert(entry),
                        Change::Remove => known.remove(&entry),
                    };
                    assert!(is_new, "{event:?} contradicts what was told before");
                }
            }
        }
    }
    known
}

fn accounted(tier: BlockTier, pool: &PoolStats) {
    let PoolStats { blocks, free, inactive, mutable, quarantined, active, .. } = *pool;
    assert_eq!((mutable, quarantined, active), (0, 0, 0), "{tier} has slots in use: {pool:?}");
    assert_eq!(free + inactive, blocks, "{tier} has lost slots: {pool:?}");
    assert_eq!((pool.abandoned, pool.withdrawn, pool.duplicates), (0, 0, 0), "{tier}: {pool:?}");
}

/// Compares events, pools, memory and file.
pub(crate) async fn audit(manager: &Arc<KvBlockManager>, feed: EventFeed, disk: &Path) {
    let report = manager.shutdown(Duration::from_secs(20), Duration::from_secs(20)).await;
    assert!(report.is_drained && report.stuck == 0, "{report:?}");
    let mut pools = BTreeSet::new();
    let mut on_disk = BTreeSet::new();
    for (tier, slots) in [
        (BlockTier::Device, SIZES.device),
        (BlockTier::Host, SIZES.host),
        (BlockTier::Disk, SIZES.disk),
    ] {
        let pool = manager.state().pool(tier).expect("a pool");
        accounted(tier, &pool.stats());
        for block in (0..slots).filter_map(|slot| pool.slot_block(SlotId(slot))) {
            let sequence = block.identity.sequence.0;
            assert!(pools.insert((tier.index() as u8, sequence)), "{tier} has {sequence} twice");
            if tier == BlockTier::Disk {
                on_disk.insert((block.slot.0, sequence));
            }
        }
    }
    assert_eq!(told(feed).await, pools, "events and pools differ");
    // The manager's storages were dropped with its threads.
    let opened = DiskStorage::open(&disk_config(disk, SIZES.disk), 2).expect("the disk");
    let found: BTreeSet<_> =
        opened.blocks.iter().map(|at| (at.slot, at.block.identity.sequence_hash)).collect();
    assert_eq!(found, on_disk, "file and pool differ");
    verify(&opened.storage, &opened.blocks);
}

/// Every block that loads without an error has the right bytes.
fn verify(storage: &DiskStorage, blocks: &[kvasir_tiers::Recovered]) {
    let arena = crate::world::arena(1);
    for at in blocks {
        let mut target = arena.write(0).expect("a slot");
        let loaded = storage.load(Place::Slot(at.slot), &at.block, &mut target, &Cancel::new());
        let sequence = SequenceHash(at.block.identity.sequence_hash);
        if loaded.is_ok() {
            assert_eq!(target.as_slice(), Some(&*bytes_of(sequence)), "{sequence} on disk");
        }
    }
}
