//! Options of the block manager.

use super::blocks_geometry::{GeometrySettings, Layout};
use super::blocks_peers::PeerSettings;
use super::blocks_tiers::{DiskSettings, HostSettings, VolumeSpec};
use super::storage::StorageSettings;
use super::store_option::StoreOption;
use crate::blocks::{BlocksConfig, SLOT_ALIGNMENT_BYTES};
use clap::{ArgAction, Args};
use kvasir_blocks::manager::TierConfig;
use kvasir_blocks::{BlockTier, EvictionPolicy, KvBlockManagerConfig};
use kvasir_process::config::ConfigError;
use kvasir_process::options::ProcessConfig;
use kvasir_process::text::{self, ByteCount, KeyValues, PAIRS};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::DpRank;
use kvasir_tiers::manager::ManagerConfig;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum number of concurrent sessions: far more than engines on one machine.
const SESSIONS_MAX: usize = 512;

/// Options of the block manager, which stores blocks for local engines. Off unless `blocks-host` is set.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "Block manager")]
pub struct BlocksOptions {
    /// Host memory for blocks that local engines save, such as bytes=8GiB. Enables the block manager, and requires
    /// --blocks-geometry. Keys: bytes=; arena= (kind of the memory: memfd, a path, private or locked); threads=
    /// (threads, and so concurrent transfers, of each storage: 1 to 256). memfd is shared memory that engines of the
    /// same user map; a path from / is a shared file, best below /dev/shm. private: engines read and write over gRPC;
    /// locked: the same, in memory that is never swapped. If not set: no block manager
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub blocks_host: KeyValues<HostSettings>,
    /// Size and layout of a block, such as layers=32,inner-dim=1024,dtype=bfloat16. Set bytes= (bytes of a block, a
    /// multiple of --block-size), or set layers= and inner-dim=. inner-dim is the number of elements per token and
    /// layer, for keys or for values: heads of one rank x head width. outer-dim= is 2 for keys and values, and 1 if
    /// combined, as in MLA. dtype-bytes= is the size of an element: 1, 2, 4, 8 or 16. dtype= and layout= are names,
    /// such as bfloat16 and heads-first. alignment= is a power of two up to 4KiB. form= is contiguous (aligns nothing),
    /// layer-separate (aligns each layer) or outer-separate (aligns keys and values of each layer). tp-rank= and
    /// tp-size= are the rank in the tensor-parallel group, and its number of ranks, up to 1,024. tp-replicas= is the
    /// number of consecutive ranks with the same heads: tp-size with MLA. An agent finds blocks on disk and in volumes
    /// only if its model, tenant, sizes, dtype, layout and form equal the writer's
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub blocks_geometry: KeyValues<GeometrySettings>,
    /// File for blocks on a local disk, such as file=/data/blocks,bytes=1TiB. A restarted agent finds the blocks again.
    /// Keys: file= and bytes= (size of the file), both required; direct= (bypass the page cache, if the file system
    /// allows it); offers-min= (use count from which a block is copied to disk: the first save or lookup counts 1, each
    /// further one doubles the count, and the count falls with time; 2 skips blocks that are used once). If not set: no
    /// disk tier
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub blocks_disk: KeyValues<DiskSettings>,
    /// Object store for blocks that machines share, such as url=s3://bucket/prefix,bytes=4TiB. Keys: url= (also
    /// file:///folder) and bytes= (maximum total size of the blocks that this agent tracks there), both required;
    /// name= (name of the volume in the index and in storage events, at most 57 bytes; all agents of the volume must use
    /// the same; if not set, the index uses the URL); offers-min= (use count from which a block is copied to the volume,
    /// as in blocks-disk); timeout= (maximum time for one transfer); search-interval= (time between two searches for
    /// blocks of other agents; 0s searches once, at start). If not set: no volume tier
    #[arg(long, hide_env_values = true, value_name = PAIRS, default_value_t)]
    pub blocks_volume: VolumeSpec,
    /// Option of the object store at --blocks-volume, key=value, such as aws_endpoint=http://10.0.0.9:9000. Repeat the
    /// flag, or separate by commas, for more. Values are never printed; give keys in the environment or the file
    #[arg(long, hide_env_values = true, value_name = "OPTION", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks_volume_option: Vec<StoreOption>,
    /// Copy blocks to disk and volume automatically. If false: only when an engine requests it
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub blocks_offload: bool,
    /// Eviction policy for unused blocks: lineage, lru or tinylfu. lineage evicts blocks that no other block continues,
    /// so that prefixes stay complete
    #[arg(long, value_name = "POLICY", default_value_t = Eviction::default())]
    #[serde(serialize_with = "text::serialize")]
    pub blocks_eviction: Eviction,
    /// Socket file of the block manager for processes of the same user. The gRPC port serves the block manager too. If
    /// not set: no socket file
    #[arg(long, value_name = "FILE")]
    pub blocks_socket: Option<PathBuf>,
    /// Rank of the worker under which blocks are published, 0 to 1,023
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub blocks_rank: DpRank,
    /// Exchange of blocks with other agents, such as listen=10.0.0.7:50053. Keys: listen= (address of the port that
    /// serves this agent's blocks, with the TLS and identities of the other ports; if not set: no port); advertise= (URL
    /// at which other agents reach the port, registered as label blocks-peer; required if the port listens on all
    /// addresses); token-file= (bearer token for fetching blocks, sent only to https:// peers and loopback addresses,
    /// because engines choose the peers; peers never receive the token of --token-file); backend= (tcp or nixl);
    /// nixl-library= (NIXL's libnixl_capi.so, as in pip install nixl-cu12: a path, or a name that the loader searches
    /// for). nixl reads the other agent's memory; it requires a build with feature nixl, and --insecure: UCX, which
    /// NIXL uses, lacks TLS and identities. An agent with nixl serves both
    #[arg(long, value_name = PAIRS, default_value_t)]
    pub blocks_peer: KeyValues<PeerSettings>,
    /// Publish storage events over NATS, for storage providers. An event states that a tier stored or removed a block.
    /// Give true, or enabled=true,interval=1s: the time between two publications, at most 60s. The agent publishes
    /// earlier once 2048 events wait. Requires --blocks-host
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = PAIRS, default_value_t)]
    pub storage_events: KeyValues<StorageSettings>,
}

/// Eviction policy, as configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Eviction(pub EvictionPolicy);

const POLICIES: [(&str, EvictionPolicy); 3] = [
    ("lineage", EvictionPolicy::Lineage),
    ("lru", EvictionPolicy::Lru),
    ("tinylfu", EvictionPolicy::TinyLfu),
];

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = POLICIES.iter().find(|(_, policy)| *policy == self.0);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

impl FromStr for Eviction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let policy = POLICIES.iter().find(|(name, _)| *name == text);
        let policy = policy.map(|(_, policy)| Self(*policy));
        policy.ok_or_else(|| format!("{text:?} is not lineage, lru or tinylfu"))
    }
}

impl BlocksOptions {
    /// Validates the options for a worker whose blocks have `block_size` tokens. Returns `None` if the block manager is
    /// off.
    ///
    /// # Errors
    /// If an option is missing or cannot be used. The error names the option and the fix.
    pub(super) fn check(
        &self,
        address: &WorkerAddress,
        block_size: u32,
        (process, is_insecure): (&ProcessConfig, bool),
    ) -> Result<Option<BlocksConfig>, ConfigError> {
        let KeyValues(host) = &self.blocks_host;
        let Some(host_bytes) = host.bytes.0 else { return self.check_off() };
        let KeyValues(geometry) = &self.blocks_geometry;
        let Layout { config, form, dimensions, description } = geometry.check(block_size)?;
        let mut tiers = KvBlockManagerConfig::new(config);
        tiers.form = form;
        let block = tiers.block().map_err(|error| {
            // Cannot fail: the layout was checked above.
            ConfigError::invalid("blocks-geometry", error.to_string())
        })?;
        let block_bytes = usize::try_from(block.bytes()).unwrap_or(usize::MAX);
        let blocks = |field, bytes: ByteCount| blocks_of(field, bytes, block_bytes);
        let mut add = |tier, count, offers_min| {
            let eviction = self.blocks_eviction.0;
            let config = TierConfig { eviction, offers_min, ..TierConfig::new(count) };
            tiers.tiers.insert(tier, config);
        };
        add(BlockTier::Host, blocks("blocks-host bytes", host_bytes)?, 0);
        let KeyValues(disk) = &self.blocks_disk;
        let disk_file = disk.check()?;
        if let Some((_, bytes)) = &disk_file {
            add(BlockTier::Disk, blocks("blocks-disk bytes", *bytes)?, disk.offers_min);
        }
        let volume = self.blocks_volume.settings()?;
        let volume_place = volume.check(&self.blocks_volume_option)?;
        if let Some((_, bytes)) = &volume_place {
            add(BlockTier::Volume, blocks("blocks-volume bytes", *bytes)?, volume.offers_min);
        }
        if self.blocks_rank as usize >= WORKER_RANKS_MAX {
            let why = format!("is {}, must be 0 to {}", self.blocks_rank, WORKER_RANKS_MAX - 1);
            return Err(ConfigError::invalid("blocks-rank", why));
        }
        Ok(Some(BlocksConfig {
            manager: self.manager(tiers)?,
            block_bytes,
            dimensions,
            dtype: geometry.dtype.0.clone().unwrap_or_default(),
            layout: geometry.layout.0.clone().unwrap_or_default(),
            description: described(address, &description),
            arena: host.arena.0.clone(),
            disk: disk_file.map(|(disk, _)| disk),
            volume: volume_place.map(|(volume, _)| volume),
            socket: self.blocks_socket.clone(),
            rank: self.blocks_rank,
            storage: self.storage_events.0.check(volume.name.0.clone())?,
            peers: self.blocks_peer.0.check(process, is_insecure)?,
        }))
    }

    /// Whether the block manager publishes storage events over NATS.
    pub(super) const fn needs_nats(&self) -> bool {
        self.storage_events.0.enabled
    }

    /// Handles the options of a disabled block manager, which has no memory: returns `None`, or fails if another option
    /// of the block manager is set.
    fn check_off(&self) -> Result<Option<BlocksConfig>, ConfigError> {
        let set = [
            ("blocks-geometry", self.blocks_geometry.0.is_set()),
            ("blocks-disk", self.blocks_disk.0.is_set()),
            ("blocks-volume", self.blocks_volume.is_set()),
            ("blocks-volume-option", !self.blocks_volume_option.is_empty()),
            ("blocks-socket", self.blocks_socket.is_some()),
            ("blocks-peer", self.blocks_peer.0.is_set()),
            ("storage-events", self.storage_events.0.enabled),
        ];
        match set.iter().find(|(_, is_set)| *is_set) {
            None => Ok(None),
            Some((field, _)) => {
                let why = "is set, and the block manager is off: set blocks-host, too";
                Err(ConfigError::invalid(*field, why))
            }
        }
    }

    /// Converts the options to the configuration of the block manager's executor.
    fn manager(&self, blocks: KvBlockManagerConfig) -> Result<ManagerConfig, ConfigError> {
        Ok(ManagerConfig {
            // One more session holds blocks for other agents.
            sessions_max: usize::from(self.blocks_peer.0.listen.0.is_some()) + SESSIONS_MAX,
            is_offloading: self.blocks_offload,
            threads: self.blocks_host.0.threads()?,
            ..ManagerConfig::new(blocks)
        })
    }
}

/// Description of the blocks' bytes. Agents with different descriptions never see each other's blocks.
fn described(WorkerAddress { partition, .. }: &WorkerAddress, blocks: &str) -> String {
    let model = partition.model();
    let tenant = partition.tenant();
    format!("model {model:?}, tenant {tenant:?}, {blocks}")
}

/// Returns the number of blocks that fit into `bytes`, each rounded up to the slot alignment. Fails if no block fits,
/// or more than 32 bits can count.
fn blocks_of(
    field: &'static str,
    ByteCount(bytes): ByteCount,
    block_bytes: usize,
) -> Result<u32, ConfigError> {
    let stride = block_bytes.checked_next_multiple_of(SLOT_ALIGNMENT_BYTES).unwrap_or(usize::MAX);
    match u32::try_from(bytes / stride) {
        Ok(0) => {
            let why = format!("is {bytes}, and one block takes {stride} bytes: give more");
            Err(ConfigError::invalid(field, why))
        }
        Ok(blocks) => Ok(blocks),
        Err(_) => {
            let count = bytes / stride;
            let max = u32::MAX;
            let why = format!("has room for {count} blocks, the limit is {max}: give less");
            Err(ConfigError::invalid(field, why))
        }
    }
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
