//! A manager with small tiers, and blocks whose bytes are derived from their hashes.

use kvasir_blocks::manager::TierConfig;
use kvasir_blocks::{BlockIdentity, BlockTier, KvBlockManagerConfig, LayoutConfig, Priority};
use kvasir_memory::{Arena, SlotLayout, StorageAllocator, SystemAllocator, WriteSlot};
use kvasir_proto::types::{LocalHash, SequenceHash};
use kvasir_tiers::disk::Medium;
use kvasir_tiers::faults::{
    Call, FaultyMedium, FaultyStorage, Hook, HookedStorage, Plan, damage_host,
};
use kvasir_tiers::manager::{
    AllocateError, Commit, DiskTier, HostTier, KvBlockManager, LeasedSlot, ManagerConfig,
    OnboardRequest, Session, TierStorages,
};
use kvasir_tiers::{
    Cancel, DiskConfig, DiskStorage, Fingerprint, HostStorage, Place, Sealed, Storage,
    TransferError,
};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 8192;

/// Number of blocks per tier; `None` without the tier.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) device: u32,
    pub(crate) host: u32,
    pub(crate) disk: u32,
}

/// Two layers of keys and values of 16 tokens, 64 elements of 2 bytes each.
pub(crate) fn layout() -> LayoutConfig {
    LayoutConfig {
        num_blocks: 1,
        num_layers: 2,
        outer_dim: 2,
        page_size: 16,
        inner_dim: 64,
        dtype_width_bytes: 2,
        alignment_bytes: 4096,
        base_offset_bytes: 0,
    }
}

pub(crate) fn config(sizes: Sizes) -> ManagerConfig {
    let mut blocks = KvBlockManagerConfig::new(layout());
    for (tier, count) in [
        (BlockTier::Device, sizes.device),
        (BlockTier::Host, sizes.host),
        (BlockTier::Disk, sizes.disk),
    ] {
        if count > 0 {
            blocks = blocks.with_tier(tier, TierConfig::new(count));
        }
    }
    ManagerConfig { lease_grace: Duration::from_millis(1), ..ManagerConfig::new(blocks) }
}

pub(crate) fn arena(slots: u32) -> Arc<Arena> {
    let layout = SlotLayout::aligned(BLOCK_BYTES, 4096, slots).expect("a layout");
    let region = SystemAllocator.allocate(layout.bytes().expect("bytes"), 4096).expect("memory");
    Arena::new(region, layout).expect("an arena")
}

pub(crate) fn disk_config(path: &Path, slots: u32) -> DiskConfig {
    DiskConfig {
        path: path.to_path_buf(),
        block_bytes: BLOCK_BYTES,
        slots,
        fingerprint: Fingerprint([7; 32]),
        description: "blocks of tests".to_owned(),
        direct: false,
    }
}

/// Storages with faults injected below their checksums.
pub(crate) fn storages(sizes: Sizes, disk: &Path, faults: &Faults) -> TierStorages {
    let device = (sizes.device > 0).then(|| arena(sizes.device));
    let host = (sizes.host > 0).then(|| {
        let arena = arena(sizes.host);
        let host = HostStorage::new(Arc::clone(&arena));
        let damage = damage_host(&host);
        let storage =
            Arc::new(FaultyStorage::new(Arc::new(host), Arc::clone(&faults.host), damage));
        let storage: Arc<dyn Storage> = if faults.is_planted {
            Arc::new(HookedStorage::hooked(storage, Unchecked))
        } else {
            storage
        };
        HostTier { arena, storage }
    });
    let disk = (sizes.disk > 0).then(|| open_disk(sizes, disk, faults));
    TierStorages { device, host, disk, volume: None }
}

fn open_disk(sizes: Sizes, path: &Path, faults: &Faults) -> DiskTier {
    // The table comes first. Its bits are not flipped, because a damaged record is a lost block.
    let is_table = AtomicBool::new(true);
    let through = |file: File| -> Box<dyn Medium> {
        let is_table = is_table.swap(false, Ordering::Relaxed);
        let plan = if is_table { &faults.table } else { &faults.disk };
        Box::new(FaultyMedium::new(Box::new(file), Arc::clone(plan)))
    };
    let opened = DiskStorage::open_through(&disk_config(path, sizes.disk), 1, through);
    let mut tier = DiskTier::from(opened.expect("a disk"));
    let none = Box::new(|_, _| {});
    tier.storage = Arc::new(FaultyStorage::new(tier.storage, Arc::clone(&faults.transfers), none));
    tier
}

/// The fault plans of the storages.
#[derive(Debug)]
pub(crate) struct Faults {
    pub(crate) host: Arc<Plan>,
    pub(crate) disk: Arc<Plan>,
    pub(crate) table: Arc<Plan>,
    pub(crate) transfers: Arc<Plan>,
    /// Whether bits are flipped after the verification, so that the engine must detect it.
    pub(crate) is_planted: bool,
}

impl Faults {
    pub(crate) fn none() -> Self {
        let plan = || Plan::new(0, kvasir_tiers::faults::Rates::default());
        Self { host: plan(), disk: plan(), table: plan(), transfers: plan(), is_planted: false }
    }

    pub(crate) fn all(&self) -> [&Arc<Plan>; 4] {
        [&self.host, &self.disk, &self.table, &self.transfers]
    }
}

pub(crate) fn start(sizes: Sizes, disk: &Path) -> KvBlockManager {
    KvBlockManager::start(config(sizes), &storages(sizes, disk, &Faults::none()))
        .expect("a manager")
}

/// A conversation: a chain of blocks.
pub(crate) fn chain(seed: u64, blocks: u64) -> Vec<BlockIdentity> {
    let locals: Vec<LocalHash> = (0..blocks).map(|at| LocalHash(seed * 1_000_003 + at)).collect();
    BlockIdentity::chain(&locals).collect()
}

pub(crate) fn names(chain: &[BlockIdentity]) -> Vec<SequenceHash> {
    chain.iter().map(|block| block.sequence).collect()
}

/// The bytes of a block.
pub(crate) fn bytes_of(sequence: SequenceHash) -> Vec<u8> {
    let words = (0_u64..).map(|at| {
        (sequence.0 ^ at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
    });
    words.flat_map(u64::to_le_bytes).take(BLOCK_BYTES).collect()
}

pub(crate) fn commit(block: &BlockIdentity) -> Commit {
    Commit { identity: *block, checksum: None, priority: Priority::default() }
}

/// Leases slots, with retries: slots of blocks that are being copied can't be evicted.
fn allocate(session: &Session, count: usize) -> Vec<LeasedSlot> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        match session.allocate(count, Duration::from_secs(30)) {
            Err(AllocateError::Exhausted(_)) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(1));
            }
            other => return other.expect("slots"),
        }
    }
}

/// Computes and commits blocks, which stay held.
pub(crate) fn fill(session: &Session, chain: &[BlockIdentity]) {
    let slots = allocate(session, chain.len());
    for (leased, block) in slots.iter().zip(chain) {
        session.write(leased.slot, 0, &bytes_of(block.sequence)).expect("a leased slot");
        session.commit(leased.slot, &commit(block)).expect("a block");
    }
}

pub(crate) fn request() -> OnboardRequest {
    OnboardRequest { priority: Priority::default(), timeout: Duration::from_secs(20) }
}

/// Waits until a condition holds, at most a minute.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Whether no transfer is queued or running.
pub(crate) fn is_idle(manager: &KvBlockManager) -> bool {
    let lanes = manager.metrics().blocks.lanes;
    lanes.values().all(|lane| lane.queued == 0 && lane.in_flight == 0)
}

/// Waits until no transfer is queued or running.
pub(crate) async fn settle(manager: &KvBlockManager) {
    until("nothing is under way", || is_idle(manager)).await;
}

/// Changes loaded blocks after their verification, to simulate a missing check.
struct Unchecked;

impl Hook for Unchecked {
    fn before(&self, _: Call, _: Place, cancel: &Cancel) -> Result<Cancel, TransferError> {
        Ok(cancel.clone())
    }

    fn loaded(&self, block: &Sealed, target: &mut WriteSlot) -> Result<(), TransferError> {
        let bit = u8::from(block.identity.sequence_hash.is_multiple_of(16));
        let mut byte = [0];
        byte.copy_from_slice(&target.as_slice().expect("memory")[..1]);
        Ok(target.write(0, &[byte[0] ^ bit])?)
    }
}
