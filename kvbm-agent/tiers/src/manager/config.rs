//! Configuration of a block manager.

use super::error::StartError;
use crate::disk::{Opened, Recovered};
use crate::storage::Storage;
use kvasir_blocks::{BlockTier, KvBlockManagerConfig};
use kvasir_memory::Arena;
use std::sync::Arc;
use std::time::Duration;

/// Limits of one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionLimits {
    /// Maximum slots leased for writing.
    pub leased_slots_max: usize,
    /// Maximum different blocks held for reading.
    pub held_blocks_max: usize,
}

/// Configuration of a block manager: limits, each with a default.
#[derive(Debug, Clone)]
pub struct ManagerConfig {
    /// Tiers, layout, lanes and events.
    pub blocks: KvBlockManagerConfig,
    /// Maximum open sessions.
    pub sessions_max: usize,
    /// Limits of each session.
    pub session: SessionLimits,
    /// Maximum duration of a lease.
    pub lease_max: Duration,
    /// How long a slot stays unused after its write lease expires, so that a late write can't damage another block.
    pub lease_grace: Duration,
    /// Maximum duration of a pin.
    pub pin_ttl_max: Duration,
    /// Whether committed and found blocks are offered to the next lower tier.
    pub is_offloading: bool,
    /// Threads per storage, which is its number of concurrent transfers.
    pub threads: usize,
    /// Memory slots for copies between two storages that are not memory.
    pub relay_slots: u32,
    /// Interval between two ticks of the frequency filters.
    pub decay_interval: Duration,
}

impl ManagerConfig {
    /// Default limits: 1,024 sessions with at most 65,536 slots and blocks each; leases of at most 60 s with 1 s of
    /// grace; pins of at most an hour; offloading enabled; 4 threads per storage; 8 relay slots; a decay every 10 s.
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

/// Host memory (G2): its slots, and the storage that accesses them.
#[derive(Debug, Clone)]
pub struct HostTier {
    /// The slots, which transfers into other tiers read.
    pub arena: Arc<Arena>,
    /// The slots as a storage: [`HostStorage`](crate::HostStorage), or a wrapper around it.
    pub storage: Arc<dyn Storage>,
}

/// A disk (G3) and the blocks found on it.
#[derive(Debug, Clone)]
pub struct DiskTier {
    /// The disk storage, or a wrapper around it.
    pub storage: Arc<dyn Storage>,
    /// Blocks found on the disk, in the order of writing.
    pub blocks: Vec<Recovered>,
    /// Number of damaged records.
    pub damaged_records: u32,
}

impl From<Opened> for DiskTier {
    fn from(opened: Opened) -> Self {
        let Opened { storage, blocks, damaged_records, .. } = opened;
        Self { storage: Arc::new(storage), blocks, damaged_records }
    }
}

/// The storages of the configured tiers. `device` or `host` is required: engines use the nearer one.
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
    /// Returns the number of slots (`None` for a volume) and the bytes of a block of a tier's storage, or `None` if the
    /// tier has no storage.
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

    /// Checks that each configured tier has a storage of sufficient size, and that each storage has a configured tier.
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
