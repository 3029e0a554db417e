//! What a manager is made of.

use super::error::StartError;
use crate::disk::{Opened, Recovered};
use crate::storage::Storage;
use kvasir_blocks::{BlockTier, KvBlockManagerConfig};
use kvasir_memory::Arena;
use std::sync::Arc;
use std::time::Duration;

/// What one session may hold at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Slots that it writes.
    pub leased_slots_max: usize,
    /// Different blocks that it reads.
    pub held_blocks_max: usize,
}

/// How a manager works. Its parts are named limits, each with a default.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    /// Tiers, layout, lanes, events.
    pub blocks: KvBlockManagerConfig,
    /// Most sessions at a time.
    pub sessions_max: usize,
    /// What each of them may hold.
    pub session: SessionLimits,
    /// The longest lease.
    pub lease_max: Duration,
    /// Time between the end of a lease and the reuse of its slot: for writes that were under way.
    pub lease_grace: Duration,
    /// The longest pin.
    pub pin_ttl_max: Duration,
    /// Whether what is committed or found is offered to the tier below.
    pub is_offloading: bool,
    /// Threads of each storage: its transfers at a time.
    pub threads: usize,
    /// Blocks of memory for transfers between two tiers that are not memory.
    pub relay_slots: u32,
    /// Time between two ticks of the frequency filters.
    pub decay_interval: Duration,
}

impl ManagerConfig {
    /// 1,024 sessions of at most 65,536 slots and blocks; leases of at most 60 s with 1 s of grace; pins of at most an
    /// hour; offloading; 4 threads a storage; 8 slots for relays; a tick each 10 s.
    #[must_use]
    pub const fn new(blocks: KvBlockManagerConfig) -> Self {
        Self {
            blocks,
            sessions_max: 1_024,
            session: SessionLimits { leased_slots_max: 65_536, held_blocks_max: 65_536 },
            lease_max: Duration::from_secs(60),
            lease_grace: Duration::from_secs(1),
            pin_ttl_max: Duration::from_secs(3_600),
            is_offloading: true,
            threads: 4,
            relay_slots: 8,
            decay_interval: Duration::from_secs(10),
        }
    }
}

/// Host memory (G2): its slots, and the storage that transfers go through.
#[derive(Debug, Clone)]
pub struct HostTier {
    /// The slots, which transfers into further tiers read.
    pub arena: Arc<Arena>,
    /// The same slots as a storage: [`HostStorage`](crate::HostStorage), or something before it.
    pub storage: Arc<dyn Storage>,
}

/// A disk (G3), with the blocks that were found in it.
#[derive(Debug, Clone)]
pub struct DiskTier {
    /// The file, or something before it.
    pub storage: Arc<dyn Storage>,
    /// What was in it, in the order in which it was written.
    pub blocks: Vec<Recovered>,
    /// Records that were damaged.
    pub damaged_records: u32,
}

impl From<Opened> for DiskTier {
    fn from(opened: Opened) -> Self {
        let Opened { storage, blocks, damaged_records, .. } = opened;
        Self { storage: Arc::new(storage), blocks, damaged_records }
    }
}

/// The storages of the tiers that there are. One of `device` and `host` is needed: engines use the nearer one.
#[derive(Debug, Default)]
pub struct TierStorages {
    /// The accelerator's memory (G1), or memory that an engine's process shares.
    pub device: Option<Arc<Arena>>,
    /// Host memory (G2).
    pub host: Option<HostTier>,
    /// A disk (G3).
    pub disk: Option<DiskTier>,
    /// A volume of objects (G4).
    pub volume: Option<Arc<dyn Storage>>,
}

impl TierStorages {
    /// Slots and bytes of a block of a tier's storage; no slots for a volume.
    fn sizes(&self, tier: BlockTier) -> Option<(Option<u32>, usize)> {
        let of_arena = |arena: &Arena| (Some(arena.layout().slots), arena.layout().block_bytes);
        match tier {
            BlockTier::Device => self.device.as_deref().map(of_arena),
            BlockTier::Host => self.host.as_ref().map(|host| of_arena(&host.arena)),
            BlockTier::Disk => {
                self.disk.as_ref().map(|disk| (disk.storage.slots(), disk.storage.block_bytes()))
            }
            BlockTier::Volume => self.volume.as_ref().map(|at| (at.slots(), at.block_bytes())),
        }
    }

    /// Checks that each configured tier has a storage of its size, and no storage is without its tier.
    pub(super) fn check(&self, config: &ManagerConfig, block_bytes: u64) -> Result<(), StartError> {
        for tier in BlockTier::ALL {
            let sizes = self.sizes(tier);
            let of_tier = config.blocks.tiers.get(&tier);
            let ((slots, there), blocks) = match (sizes, of_tier) {
                (None, None) => continue,
                (Some(_), None) => return Err(StartError::Unconfigured { tier }),
                (None, Some(_)) => return Err(StartError::NoStorage { tier }),
                (Some(sizes), Some(of_tier)) => (sizes, of_tier.blocks),
            };
            if slots.is_some_and(|slots| slots < blocks) {
                let slots = slots.unwrap_or_default();
                return Err(StartError::Slots { tier, blocks, slots });
            }
            if u64::try_from(there).unwrap_or(u64::MAX) < block_bytes {
                return Err(StartError::BlockBytes { tier, block_bytes, there });
            }
        }
        Ok(())
    }
}
