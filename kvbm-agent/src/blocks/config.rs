use crate::storage::StorageConfig;
use kvasir_blocks::LayoutForm;
use kvasir_blocks::sets::TensorParallel;
use kvasir_process::access::Guard;
use kvasir_process::text::ServerUrl;
use kvasir_proto::hash::HASH_SCHEME;
use kvasir_proto::types::{DpRank, NameError, WorkerId};
use kvasir_tiers::Fingerprint;
use kvasir_tiers::manager::ManagerConfig;
use kvasir_tls::Dialer;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// Alignment of slots in bytes, so that direct I/O needs no copy.
pub const SLOT_ALIGNMENT_BYTES: usize = 4_096;

/// Maximum length of a volume's name in the id of its pool. Longer names are hashed.
const POOL_NAME_BYTES_MAX: usize = 200;

/// Backing of the engines' memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArenaBacking {
    /// The agent's own memory: engines read and write over gRPC.
    Private,
    /// Like `Private`, but locked in memory: never on a swap device.
    Locked,
    /// Shared memory without a name, which engines open below `/proc`.
    Memfd,
    /// A file that engines map, best below `/dev/shm`.
    File(PathBuf),
}

/// A tier on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Whether to use direct I/O where the file system allows it.
    pub is_direct: bool,
}

/// An object store as a tier.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumePlace {
    /// URL of the store. It may contain a password.
    pub url: ServerUrl,
    /// Name of the volume for all agents that share it; its URL if `None`.
    pub name: Option<String>,
    /// Options of the store. They may contain keys.
    pub options: Vec<(String, String)>,
    /// Maximum time of one transfer.
    pub timeout: Duration,
    /// Time between two searches for blocks of other agents; `None` searches once, at the start.
    pub search_interval: Option<Duration>,
}

/// Omits keys.
impl fmt::Debug for VolumePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.iter().map(|(key, _secret)| key).collect();
        let shown = &mut f.debug_struct("VolumePlace");
        shown
            .field("url", &self.url)
            .field("name", &self.name)
            .field("options", &options)
            .finish_non_exhaustive()
    }
}

/// Configured dimensions of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutDimensions {
    /// Layers of the model.
    pub layers: u32,
    /// 2 if keys and values are separate, else 1.
    pub outer_dim: u32,
    /// Elements per token, layer and outer index, of one rank.
    pub inner_dim: u32,
    /// Bytes per element.
    pub dtype_width_bytes: u32,
    /// Layout of layers, keys and values in a slot.
    pub form: LayoutForm,
    /// Alignment of the parts of a slot.
    pub alignment_bytes: u64,
    /// Part of each token that the blocks contain.
    pub parallel: TensorParallel,
}

/// Exchange of blocks with other agents.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// Address to listen on; `None` to serve no blocks.
    pub listen: Option<SocketAddr>,
    /// Address for other agents; `None` if there is none, or it is known only once the port is open.
    pub advertise: Option<String>,
    /// TLS and access control of the port.
    pub guard: Guard,
    /// Dialer that connects to other agents. They receive its token.
    pub dialer: Dialer,
    /// Options of NIXL; `None` for TCP alone.
    pub nixl: Option<NixlOptions>,
}

/// Options of NIXL. Cannot exist without the feature `nixl`.
#[cfg(not(feature = "nixl"))]
#[derive(Debug, Clone)]
pub enum NixlOptions {}
#[cfg(feature = "nixl")]
pub use kvasir_transfer::NixlOptions;

/// Configuration of an agent's block manager.
#[derive(Debug, Clone)]
pub struct BlocksConfig {
    /// Pools, lanes, sessions.
    pub manager: ManagerConfig,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// Dimensions of a block; `None` if only its size is known.
    pub dimensions: Option<LayoutDimensions>,
    /// Type of the elements, as the operator names it.
    pub dtype: String,
    /// Layout of the bytes, as the operator names it.
    pub layout: String,
    /// Description of the bytes' meaning. Blocks with different descriptions are different blocks.
    pub description: String,
    /// Backing of the engines' memory.
    pub arena: ArenaBacking,
    /// File of the disk tier; `None` for no disk tier.
    pub disk: Option<DiskFile>,
    /// The volume; `None` for no volume tier.
    pub volume: Option<VolumePlace>,
    /// Path of a socket to listen on, besides the agent's port; `None` for no socket.
    pub socket: Option<PathBuf>,
    /// The rank for which blocks are published.
    pub rank: DpRank,
    /// How storage events are published for storage providers; `None` if they are off.
    pub storage: Option<StorageConfig>,
    /// Exchange of blocks with other agents.
    pub peers: PeersConfig,
}

impl BlocksConfig {
    /// Number of blocks that fit into all tiers.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.manager.blocks.tiers.values().map(|tier| tier.blocks as usize).sum()
    }

    /// Address where other agents fetch blocks; `None` if there is none, or it is known only once the port is open.
    #[must_use]
    pub fn peer_address(&self) -> Option<&str> {
        self.peers.advertise.as_deref()
    }

    /// Pool of the volume's blocks of this kind, as the index names it; `None` without a volume. Blocks of another kind
    /// in the same volume belong to another pool.
    ///
    /// # Errors
    /// If the volume's URL has a character that an id must not have.
    pub fn pool(&self) -> Result<Option<WorkerId>, NameError> {
        let Some(place) = &self.volume else { return Ok(None) };
        // The URL is displayed without a password.
        let name = place.name.clone().unwrap_or_else(|| place.url.to_string());
        let name = if name.len() > POOL_NAME_BYTES_MAX {
            format!("{:016x}", xxh3_64(name.as_bytes()))
        } else {
            name
        };
        let kind = xxh3_64(&self.fingerprint().0) >> 32;
        WorkerId::new(&format!("volume:{name}#{kind:08x}")).map(Some)
    }

    /// Fingerprint that distinguishes blocks of another model, layout or dtype.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let text = format!("{HASH_SCHEME}\n{}", self.description);
        let halves = [0, 1].map(|seed| xxh3_128_with_seed(text.as_bytes(), seed).to_le_bytes());
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(halves.as_flattened()).for_each(|(byte, half)| *byte = *half);
        Fingerprint(bytes)
    }
}
