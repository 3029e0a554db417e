//! Opens the storages of the tiers. Blocks the thread.

use super::config::SLOT_ALIGNMENT_BYTES;
use super::volume::VolumeSearch;
use super::{ArenaBacking, BlocksConfig, BlocksError};
use kvasir_blocks::BlockTier;
use kvasir_memory::{
    Arena, ArenaError, Backing, PinnedStorage, Region, SharedStorage, SlotLayout, SystemStorage,
};
use kvasir_tiers::manager::{HostTier, TierStorages};
use kvasir_tiers::{
    DiskConfig, DiskStorage, HostStorage, ObjectStorage, Storage, VolumeDescriptor, Volumes,
};
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Name of the only volume.
const VOLUME: &str = "blocks";

/// Memory that engines map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MappedArena {
    pub(super) path: PathBuf,
    pub(super) stride_bytes: usize,
}

/// The opened storages.
pub(super) struct Opened {
    pub(super) storages: TierStorages,
    /// Memory that engines can map, if any.
    pub(super) mapped: Option<MappedArena>,
    pub(super) search: Option<VolumeSearch>,
}

/// Opens the storages of the configured tiers: host memory, and disk and volume if configured.
pub(super) fn open_storages(config: &BlocksConfig, runtime: Handle) -> Result<Opened, BlocksError> {
    let slots = |tier| config.manager.blocks.tiers.get(&tier).map_or(0, |at| at.blocks);
    let layout =
        SlotLayout::aligned(config.block_bytes, SLOT_ALIGNMENT_BYTES, slots(BlockTier::Host))?;
    let (region, path) = region(&config.arena, layout)?;
    let mapped = path.map(|path| MappedArena { path, stride_bytes: layout.stride_bytes });
    let arena = Arena::new(region, layout)?;
    let storage = Arc::new(HostStorage::new(Arc::clone(&arena)));
    let mut storages =
        TierStorages { host: Some(HostTier { arena, storage }), ..TierStorages::default() };
    if let Some(disk) = &config.disk {
        let disk = DiskConfig {
            path: disk.path.clone(),
            block_bytes: config.block_bytes,
            slots: slots(BlockTier::Disk),
            fingerprint: config.fingerprint(),
            description: config.description.clone(),
            direct: disk.is_direct,
        };
        let opened = DiskStorage::open(&disk, RandomState::new().hash_one(0))?;
        tracing::info!(
            path = %disk.path.display(), blocks = opened.blocks.len(), way = ?opened.storage.way(),
            damaged = opened.damaged_records, "the disk tier is open"
        );
        storages.disk = Some(opened.into());
    }
    let search = volume(config)?;
    storages.volume = search.as_ref().map(|VolumeSearch { volume, timeout, .. }| {
        let volume = Arc::clone(volume);
        Arc::new(ObjectStorage::new(volume, runtime, *timeout)) as Arc<dyn Storage>
    });
    Ok(Opened { storages, mapped, search })
}

/// Allocates the memory for the slots. Also returns the path by which engines map the memory, if it is shared.
fn region(
    backing: &ArenaBacking,
    layout: SlotLayout,
) -> Result<(Box<dyn Region>, Option<PathBuf>), BlocksError> {
    let bytes = || layout.bytes().map_err(|error: ArenaError| BlocksError::from(error));
    let shared = match backing {
        ArenaBacking::Private => {
            return Ok((Box::new(SystemStorage::new(bytes()?, SLOT_ALIGNMENT_BYTES)?), None));
        }
        ArenaBacking::Locked => {
            return Ok((Box::new(PinnedStorage::new(bytes()?, SLOT_ALIGNMENT_BYTES)?), None));
        }
        ArenaBacking::Memfd => SharedStorage::create(&Backing::Memfd, layout)?,
        ArenaBacking::File(path) => SharedStorage::create(&Backing::File(path.clone()), layout)?,
    };
    let path = shared.path();
    Ok((Box::new(shared), Some(path)))
}

/// Opens the volume, if one is configured.
fn volume(config: &BlocksConfig) -> Result<Option<VolumeSearch>, BlocksError> {
    let Some(place) = &config.volume else { return Ok(None) };
    let descriptor = VolumeDescriptor {
        name: VOLUME.to_owned(),
        url: place.url.expose().to_owned(),
        options: place.options.clone(),
        fingerprint: config.fingerprint(),
        block_bytes: config.block_bytes,
    };
    let volume = Volumes::new().register_volume(&descriptor)?;
    let timeout = place.timeout;
    let interval = place.search_interval;
    Ok(Some(VolumeSearch { volume, timeout, interval }))
}
