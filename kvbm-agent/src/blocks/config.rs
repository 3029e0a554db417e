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

/// Slots begin at multiples of it, so that direct I/O needs no copy.
pub const SLOT_ALIGNMENT_BYTES: usize = 4_096;

/// Longest name of a volume that is spelled out in the id of its pool.
const POOL_NAME_BYTES_MAX: usize = 200;

/// Where the engines' memory is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArenaBacking {
    /// The agent's own memory: engines read and write over gRPC.
    Private,
    /// The same, locked: never on a swap device.
    Locked,
    /// Shared memory without a name, which engines open below `/proc`.
    Memfd,
    /// A file that engines map, best below `/dev/shm`.
    File(PathBuf),
}

/// A tier on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFile {
    /// The file.
    pub path: PathBuf,
    /// Whether to use direct I/O where the file system allows it.
    pub is_direct: bool,
}

/// A volume of objects.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumePlace {
    /// Where it is; it may have a password in it.
    pub url: ServerUrl,
    /// Its name among agents that share it; its URL if none.
    pub name: Option<String>,
    /// Options of its store, which may be keys.
    pub options: Vec<(String, String)>,
    /// Longest time of one transfer.
    pub timeout: Duration,
    /// Time between two searches for blocks of other agents; none for one search at the start.
    pub search_interval: Option<Duration>,
}

/// Keys are not shown.
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

/// What blocks consist of, as it was configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutDimensions {
    /// Layers of the model.
    pub layers: u32,
    /// 2 for keys and values apart, else 1.
    pub outer_dim: u32,
    /// Elements per token, layer and outer index, of one rank.
    pub inner_dim: u32,
    /// Bytes of an element.
    pub dtype_width_bytes: u32,
    /// How layers, keys and values lie in a slot.
    pub form: LayoutForm,
    /// What they are aligned to in it.
    pub alignment_bytes: u64,
    /// Which part of each token the blocks hold.
    pub parallel: TensorParallel,
}

/// Where other agents fetch blocks, and how this one connects to them.
#[derive(Debug, Clone)]
pub struct PeersConfig {
    /// Where to listen; none for not at all.
    pub listen: Option<SocketAddr>,
    /// What other agents connect to; none if that is known only once the port is open, or there is none.
    pub advertise: Option<String>,
    /// Who gets in.
    pub guard: Guard,
    /// What connects to other agents. They learn its token.
    pub dialer: Dialer,
    /// How NIXL is used; none for TCP alone.
    pub nixl: Option<NixlOptions>,
}

/// Without the feature `nixl` there is no way to use it.
#[cfg(not(feature = "nixl"))]
#[derive(Debug, Clone)]
pub enum NixlOptions {}
#[cfg(feature = "nixl")]
pub use kvasir_transfer::NixlOptions;

/// What the block manager of an agent is made of.
#[derive(Debug, Clone)]
pub struct BlocksConfig {
    /// Pools, lanes, sessions.
    pub manager: ManagerConfig,
    /// Bytes of a block.
    pub block_bytes: usize,
    /// What they consist of; none if only their number is known.
    pub dimensions: Option<LayoutDimensions>,
    /// What their elements are, in the operator's words.
    pub dtype: String,
    /// How their bytes lie, in the operator's words.
    pub layout: String,
    /// What these bytes mean, in words: whatever differs in it are other blocks.
    pub description: String,
    /// The engines' memory.
    pub arena: ArenaBacking,
    /// The disk tier's file; none for no such tier.
    pub disk: Option<DiskFile>,
    /// The volume; none for no such tier.
    pub volume: Option<VolumePlace>,
    /// Where to listen beside the agent's port; none for nowhere.
    pub socket: Option<PathBuf>,
    /// The rank for which blocks are published.
    pub rank: DpRank,
    /// How what is stored where is published for storage providers; none for not at all.
    pub storage: Option<StorageConfig>,
    /// Blocks from and for other agents.
    pub peers: PeersConfig,
}

impl BlocksConfig {
    /// Where other agents fetch them; none if nowhere, or if that is known only once the port is open.
    #[must_use]
    pub fn peer_address(&self) -> Option<&str> {
        self.peers.advertise.as_deref()
    }

    /// The pool under which an index knows the volume's blocks of this kind; none without a volume. Blocks of another kind in
    /// the same volume are another pool's.
    ///
    /// # Errors
    /// If the volume's URL has a character that an id must not have.
    pub fn pool(&self) -> Result<Option<WorkerId>, NameError> {
        let Some(place) = &self.volume else { return Ok(None) };
        // Without a password.
        let name = place.name.clone().unwrap_or_else(|| place.url.to_string());
        let name = if name.len() > POOL_NAME_BYTES_MAX {
            format!("{:016x}", xxh3_64(name.as_bytes()))
        } else {
            name
        };
        let kind = xxh3_64(&self.fingerprint().0) >> 32;
        WorkerId::new(&format!("volume:{name}#{kind:08x}")).map(Some)
    }

    /// What tells blocks from those of another model, layout or dtype.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let text = format!("{HASH_SCHEME}\n{}", self.description);
        let halves = [0, 1].map(|seed| xxh3_128_with_seed(text.as_bytes(), seed).to_le_bytes());
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(halves.as_flattened()).for_each(|(byte, half)| *byte = *half);
        Fingerprint(bytes)
    }
}
