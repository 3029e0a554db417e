//! Options of the block manager.

use super::StorageOptions;
use super::blocks_layout::{Layout, LayoutOptions};
use super::blocks_peers::PeerOptions;
use super::store_option::StoreOption;
use crate::blocks::{ArenaBacking, BlocksConfig, DiskFile, SLOT_ALIGNMENT_BYTES, VolumePlace};
use clap::{ArgAction, Args};
use kvasir_blocks::manager::TierConfig;
use kvasir_blocks::{BlockTier, EvictionPolicy, KvBlockManagerConfig};
use kvasir_process::config::ConfigError;
use kvasir_process::options::{ProcessConfig, positive};
use kvasir_process::text::{self, ByteCount, ServerUrl, Span};
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::DpRank;
use kvasir_tiers::manager::ManagerConfig;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Maximum number of threads of one storage.
const THREADS_MAX: usize = 256;
/// Maximum number of concurrent sessions.
const SESSIONS_MAX: usize = 512;

/// Options of the block manager, which stores blocks for local engines. Off unless `blocks-host-bytes` is set.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct BlocksOptions {
    /// Host memory for blocks that local engines save, such as 8GiB. Enables the block manager. Requires the size of a
    /// block: --blocks-bytes, or --blocks-layers and --blocks-inner-dim. If not set: no block manager
    #[arg(long, value_name = "BYTES")]
    pub blocks_host_bytes: Option<ByteCount>,
    /// Size and layout of a block.
    #[command(flatten)]
    #[serde(flatten)]
    pub layout: LayoutOptions,
    /// Kind of the host memory: memfd, a path, private or locked. memfd is shared memory that engines of the same user
    /// map; a path from / is a shared file, best below /dev/shm. With private, engines read and write over gRPC; locked
    /// is private and never swapped
    #[arg(long, value_name = "KIND", default_value_t = ArenaSpec(ArenaBacking::Memfd))]
    #[serde(serialize_with = "text::serialize")]
    pub blocks_arena: ArenaSpec,
    /// File for blocks on a local disk. A restarted agent finds the blocks again. Requires --blocks-disk-bytes. If not
    /// set: no disk tier
    #[arg(long, value_name = "FILE")]
    pub blocks_disk: Option<PathBuf>,
    /// Size of the file at --blocks-disk. Required with --blocks-disk
    #[arg(long, value_name = "BYTES")]
    pub blocks_disk_bytes: Option<ByteCount>,
    /// Bypass the page cache for --blocks-disk, if the file system allows it
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub blocks_disk_direct: bool,
    /// Number of saves and lookups before a block is copied to disk. Above 1, blocks that are used once are not copied
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub blocks_disk_offers_min: u64,
    /// Object store for blocks that machines share, such as s3://bucket/prefix or file:///folder. Requires
    /// --blocks-volume-bytes. If not set: no volume tier
    #[arg(long, value_name = "URL")]
    pub blocks_volume: Option<ServerUrl>,
    /// Option of the object store at --blocks-volume, key=value, such as aws_endpoint=http://10.0.0.9:9000. Repeat the
    /// flag, or separate by commas, for more. Values are never printed; give keys in the environment or the file
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub blocks_volume_option: Vec<StoreOption>,
    /// Size of the volume tier: how many bytes of the blocks at --blocks-volume this agent tracks. A full tier evicts
    /// unused blocks. Required with --blocks-volume
    #[arg(long, value_name = "BYTES")]
    pub blocks_volume_bytes: Option<ByteCount>,
    /// Number of copies and lookups before a block is copied to --blocks-volume
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub blocks_volume_offers_min: u64,
    /// Maximum time for one transfer to or from --blocks-volume
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(30))]
    pub blocks_volume_timeout: Span,
    /// Time between two searches of --blocks-volume for blocks of other agents. 0s: one search, at start
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(600))]
    pub blocks_volume_search_interval: Span,
    /// Copy blocks to disk and volume automatically. If false: only when an engine requests it
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", default_value_t = true)]
    pub blocks_offload: bool,
    /// Eviction policy for unused blocks: lineage, lru or tinylfu. lineage evicts blocks that no other block continues,
    /// so that prefixes stay complete
    #[arg(long, value_name = "POLICY", default_value_t = Eviction::default())]
    #[serde(serialize_with = "text::serialize")]
    pub blocks_eviction: Eviction,
    /// Maximum write lease: the time an engine has to fill a slot
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(60))]
    pub blocks_lease_max: Span,
    /// How long a slot stays unused after its write lease expires. A late write then cannot damage another block
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(1))]
    pub blocks_lease_grace: Span,
    /// Maximum time that a block stays pinned
    #[arg(long, value_name = "TIME", default_value_t = Span::seconds(3_600))]
    pub blocks_pin_ttl_max: Span,
    /// Threads, and so concurrent transfers, of each storage: 1 to 256
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    pub blocks_threads: usize,
    /// Socket file of the block manager for processes of the same user. The gRPC port serves the block manager too. If
    /// not set: no socket file
    #[arg(long, value_name = "FILE")]
    pub blocks_socket: Option<PathBuf>,
    /// Maximum number of concurrent engine sessions, 1 to 512
    #[arg(long, value_name = "COUNT", default_value_t = 64)]
    pub blocks_sessions_max: usize,
    /// Rank of the worker under which blocks are published, 0 to 1,023
    #[arg(long, value_name = "RANK", default_value_t = 0)]
    pub blocks_rank: DpRank,
    /// Storage events.
    #[command(flatten)]
    #[serde(flatten)]
    pub storage: StorageOptions,
    /// Exchange of blocks with other agents.
    #[command(flatten)]
    #[serde(flatten)]
    pub peers: PeerOptions,
}

/// Backing of the engines' memory, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArenaSpec(pub ArenaBacking);

impl fmt::Display for ArenaSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            ArenaBacking::Private => f.write_str("private"),
            ArenaBacking::Locked => f.write_str("locked"),
            ArenaBacking::Memfd => f.write_str("memfd"),
            ArenaBacking::File(path) => path.display().fmt(f),
        }
    }
}

impl FromStr for ArenaSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "private" => ArenaBacking::Private,
            "locked" => ArenaBacking::Locked,
            "memfd" => ArenaBacking::Memfd,
            path if path.starts_with('/') => ArenaBacking::File(path.into()),
            other => {
                return Err(format!("{other:?} is not memfd, private, locked or a path from /"));
            }
        }))
    }
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
        let Some(host_bytes) = self.blocks_host_bytes else { return self.check_off() };
        let Layout { config, form, dimensions, description } = self.layout.check(block_size)?;
        let mut tiers = KvBlockManagerConfig::new(config);
        tiers.form = form;
        let block = tiers.block().map_err(|error| {
            // Cannot fail: the layout was checked above.
            ConfigError::invalid("blocks-layers", error.to_string())
        })?;
        let block_bytes = usize::try_from(block.bytes()).unwrap_or(usize::MAX);
        let blocks = |field, bytes: ByteCount| blocks_of(field, bytes, block_bytes);
        let mut add = |tier, count, offers_min| {
            let eviction = self.blocks_eviction.0;
            let config = TierConfig { eviction, offers_min, ..TierConfig::new(count) };
            tiers.tiers.insert(tier, config);
        };
        add(BlockTier::Host, blocks("blocks-host-bytes", host_bytes)?, 0);
        let disk = self.disk()?;
        if let Some((_, bytes)) = &disk {
            let count = blocks("blocks-disk-bytes", *bytes)?;
            add(BlockTier::Disk, count, self.blocks_disk_offers_min);
        }
        let volume = self.volume()?;
        if let Some((_, bytes)) = &volume {
            let count = blocks("blocks-volume-bytes", *bytes)?;
            add(BlockTier::Volume, count, self.blocks_volume_offers_min);
        }
        if self.blocks_rank as usize >= WORKER_RANKS_MAX {
            let why = format!("is {}, must be 0 to {}", self.blocks_rank, WORKER_RANKS_MAX - 1);
            return Err(ConfigError::invalid("blocks-rank", why));
        }
        Ok(Some(BlocksConfig {
            manager: self.manager(tiers)?,
            block_bytes,
            dimensions,
            dtype: self.layout.blocks_dtype.clone(),
            layout: self.layout.blocks_layout.clone(),
            description: described(address, &description),
            arena: self.blocks_arena.0.clone(),
            disk: disk.map(|(disk, _)| disk),
            volume: volume.map(|(volume, _)| volume),
            socket: self.blocks_socket.clone(),
            rank: self.blocks_rank,
            storage: self.storage.check(self.blocks_volume.as_ref())?,
            peers: self.peers.check(process, is_insecure)?,
        }))
    }

    /// Whether the block manager publishes storage events over NATS.
    pub(super) const fn needs_nats(&self) -> bool {
        self.storage.storage_events
    }

    /// Refuses other options of the block manager if it has no memory.
    fn check_off(&self) -> Result<Option<BlocksConfig>, ConfigError> {
        let set = [
            ("blocks-disk", self.blocks_disk.is_some()),
            ("blocks-disk-bytes", self.blocks_disk_bytes.is_some()),
            ("blocks-volume", self.blocks_volume.is_some()),
            ("blocks-volume-bytes", self.blocks_volume_bytes.is_some()),
            ("blocks-volume-option", !self.blocks_volume_option.is_empty()),
            ("blocks-socket", self.blocks_socket.is_some()),
            ("storage-events", self.storage.storage_events),
        ];
        let first = set.iter().find(|(_, is_set)| *is_set).map(|(field, _)| *field);
        let first = self.layout.first_set().or(first);
        match first.or_else(|| self.peers.first_set()) {
            None => Ok(None),
            Some(field) => {
                let why = "is set, and the block manager is off: set blocks-host-bytes, too";
                Err(ConfigError::invalid(field, why))
            }
        }
    }

    fn disk(&self) -> Result<Option<(DiskFile, ByteCount)>, ConfigError> {
        let path = self.blocks_disk.clone();
        let both = pair(("blocks-disk", path), ("blocks-disk-bytes", self.blocks_disk_bytes))?;
        let is_direct = self.blocks_disk_direct;
        Ok(both.map(|(path, bytes)| (DiskFile { path, is_direct }, bytes)))
    }

    fn volume(&self) -> Result<Option<(VolumePlace, ByteCount)>, ConfigError> {
        let url = self.blocks_volume.clone();
        let url = ("blocks-volume", url);
        let bytes = self.blocks_volume_bytes;
        let Some((url, bytes)) = pair(url, ("blocks-volume-bytes", bytes))? else {
            return Ok(None);
        };
        let option = |option: &StoreOption| {
            let why = "is no key=value";
            let (key, value) =
                option.expose().ok_or_else(|| ConfigError::invalid("blocks-volume-option", why))?;
            Ok::<_, ConfigError>((key.to_owned(), value.to_owned()))
        };
        let options = self.blocks_volume_option.iter().map(option).collect::<Result<_, _>>()?;
        let timeout = positive("blocks-volume-timeout", self.blocks_volume_timeout)?;
        let search_interval = Some(self.blocks_volume_search_interval.0).filter(|at| !at.is_zero());
        let name = self.storage.storage_volume_name.clone();
        Ok(Some((VolumePlace { url, name, options, timeout, search_interval }, bytes)))
    }

    fn manager(&self, blocks: KvBlockManagerConfig) -> Result<ManagerConfig, ConfigError> {
        Ok(ManagerConfig {
            // One more session holds blocks for other agents.
            sessions_max: usize::from(self.peers.blocks_peer_listen.is_some())
                + within("blocks-sessions-max", self.blocks_sessions_max, SESSIONS_MAX)?,
            lease_max: positive("blocks-lease-max", self.blocks_lease_max)?,
            lease_grace: self.blocks_lease_grace.0,
            pin_ttl_max: positive("blocks-pin-ttl-max", self.blocks_pin_ttl_max)?,
            is_offloading: self.blocks_offload,
            threads: within("blocks-threads", self.blocks_threads, THREADS_MAX)?,
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

/// Combines two options that require each other.
fn pair<A, B>(
    (first, a): (&'static str, Option<A>),
    (second, b): (&'static str, Option<B>),
) -> Result<Option<(A, B)>, ConfigError> {
    match (a, b) {
        (None, None) => Ok(None),
        (Some(a), Some(b)) => Ok(Some((a, b))),
        (Some(_), None) => {
            Err(ConfigError::invalid(second, format!("is required with {first}: state a size")))
        }
        (None, Some(_)) => {
            Err(ConfigError::invalid(first, format!("is required with {second}: state a place")))
        }
    }
}

/// Number of blocks that fit into `bytes`.
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

fn within(field: &'static str, count: usize, max: usize) -> Result<usize, ConfigError> {
    if (1..=max).contains(&count) {
        return Ok(count);
    }
    Err(ConfigError::invalid(field, format!("is {count}, must be 1 to {max}")))
}

#[cfg(test)]
#[path = "blocks_test.rs"]
mod tests;
