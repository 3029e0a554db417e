//! Exchanges blocks with other agents, as client and server.

use super::{BlocksConfig, BlocksError, NixlOptions, PeersConfig};
use kvasir_blocks::sets::{BlockSetLimits, BlockSetRegistry, ContentId};
use kvasir_process::access::Guard;
use kvasir_process::net::ConnectionMetrics;
use kvasir_process::program::listen;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::hash::HASH_SCHEME;
use kvasir_tiers::manager::KvBlockManager;
#[cfg(feature = "nixl")]
use kvasir_transfer::NixlBackend;
use kvasir_transfer::serve::OwnerConfig;
use kvasir_transfer::wire::form_number;
use kvasir_transfer::{
    BlockDescription, ClientConfig, Owner, TcpBackend, TransferBackend, TransferCounters,
    TransferMetrics,
};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use tokio::net::TcpListener;
#[cfg(feature = "nixl")]
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

/// Client and server of the exchange.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) backend: Arc<dyn TransferBackend>,
    owner: Option<Arc<Owner>>,
    /// The port, until it is served.
    port: Mutex<Option<(TcpListener, Guard)>>,
    counters: Arc<TransferCounters>,
}

impl Peers {
    /// Creates the client that fetches blocks from other agents. With `listen`, also creates the server for requests of
    /// other agents, and opens its port.
    pub(super) async fn start(
        config: &BlocksConfig,
        address: &WorkerAddress,
        manager: &Arc<KvBlockManager>,
    ) -> Result<Self, BlocksError> {
        let PeersConfig { listen: at, guard, dialer, nixl, .. } = config.peers.clone();
        let counters: Arc<TransferCounters> = Arc::default();
        let registry = BlockSetRegistry::new(epoch(), BlockSetLimits::DEFAULT);
        let worker = address.worker.clone();
        let blocks = described(config, address);
        let client = ClientConfig { worker: worker.clone(), blocks: blocks.clone(), dialer };
        let imports = (registry.clone(), Arc::clone(&counters));
        let nixl_is_used = nixl.is_some();
        let backend = backend(client, imports, manager, nixl.clone()).await?;
        tracing::info!(backend = backend.name(), "the backend for blocks of other agents");
        if nixl_is_used {
            tracing::warn!(
                "insecure: NIXL has neither TLS nor identities. Whoever reaches its ports can read and change the blocks: \
                 use it on a network that you trust, or set backend=tcp in blocks-peer"
            );
        }
        let mut owner = None;
        let mut port = None;
        if let Some(at) = at {
            let (listener, bound) = listen("blocks-peer listen", at).await?;
            tracing::info!(address = %bound, "other agents fetch blocks here");
            let content = ContentId(content(config));
            let config = OwnerConfig::new(worker, blocks, content);
            let books = (registry, Arc::clone(&counters));
            let serving = serving(config, Arc::clone(manager), books, nixl).await?;
            (owner, port) = (Some(Arc::new(serving)), Some((listener, guard)));
        }
        Ok(Self { backend, owner, port: Mutex::new(port), counters })
    }

    /// Serves the port until `stop` is cancelled. Returns immediately without a port.
    pub(super) async fn serve(&self, stop: CancellationToken) {
        let port = self.port.lock().take();
        if let (Some(owner), Some((listener, guard))) = (self.owner.clone(), port) {
            owner.serve(listener, guard, stop).await;
        }
    }

    pub(super) const fn is_served(&self) -> bool {
        self.owner.is_some()
    }

    pub(super) fn metrics(&self) -> TransferMetrics {
        self.counters.metrics()
    }

    pub(super) fn connections(&self) -> Option<&ConnectionMetrics> {
        self.owner.as_deref().map(Owner::connections)
    }
}

/// Block sets of peers, and counters.
type Books = (BlockSetRegistry, Arc<TransferCounters>);

/// Creates the transport for fetches: NIXL if `nixl` is given, else TCP. Without the feature `nixl`,
/// [`NixlOptions`] has no values.
#[cfg_attr(
    not(feature = "nixl"),
    expect(unused_variables, clippy::unused_async, reason = "for NIXL alone")
)]
async fn backend(
    client: ClientConfig,
    (registry, counters): Books,
    manager: &KvBlockManager,
    nixl: Option<NixlOptions>,
) -> Result<Arc<dyn TransferBackend>, BlocksError> {
    let Some(nixl) = nixl else {
        return Ok(Arc::new(TcpBackend::new(client, registry, counters)));
    };
    #[cfg(feature = "nixl")]
    {
        let arena = Arc::clone(manager.arena());
        // Loading the library takes a while. A panic is in the log.
        let made =
            spawn_blocking(move || NixlBackend::new(client, registry, counters, &arena, &nixl));
        Ok(Arc::new(made.await.map_err(|_panic| BlocksError::Panic)??))
    }
    #[cfg(not(feature = "nixl"))]
    match nixl {}
}

/// Creates the server of blocks for other agents, with NIXL if `nixl` is given. Without the feature `nixl`,
/// [`NixlOptions`] has no values.
#[cfg_attr(not(feature = "nixl"), expect(clippy::unused_async, reason = "for NIXL alone"))]
async fn serving(
    config: OwnerConfig,
    manager: Arc<KvBlockManager>,
    (registry, counters): Books,
    nixl: Option<NixlOptions>,
) -> Result<Owner, BlocksError> {
    let Some(nixl) = nixl else {
        return Ok(Owner::new(config, &manager, registry, counters)?);
    };
    #[cfg(feature = "nixl")]
    {
        // Registering memory blocks the thread. A panic is in the log.
        let made =
            spawn_blocking(move || Owner::with_nixl(config, &manager, registry, counters, &nixl));
        Ok(made.await.map_err(|_panic| BlocksError::Panic)??)
    }
    #[cfg(not(feature = "nixl"))]
    match nixl {}
}

/// Epoch of this process, which fences the exports of earlier processes. It grows from start to start, as long as the
/// machine's clock does.
fn epoch() -> u64 {
    let since = UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Short fingerprint: its first 8 bytes are enough to distinguish sets.
fn content(config: &BlocksConfig) -> u64 {
    let kvasir_tiers::Fingerprint(bytes) = config.fingerprint();
    bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

/// The description of this agent's blocks, which both sides of a transfer compare.
fn described(
    config: &BlocksConfig,
    WorkerAddress { partition, .. }: &WorkerAddress,
) -> BlockDescription {
    let model = partition.model().to_owned();
    let tenant = partition.tenant().to_owned();
    let mut described = BlockDescription {
        model,
        tenant,
        hash_scheme: HASH_SCHEME.to_owned(),
        block_size: config.manager.blocks.layout.page_size,
        block_bytes: config.block_bytes as u64,
        dtype: config.dtype.clone(),
        layout: config.layout.clone(),
        ..Default::default()
    };
    if let Some(at) = config.dimensions {
        described.layers = at.layers;
        described.outer_dim = at.outer_dim;
        described.inner_dim = at.inner_dim;
        described.dtype_width_bytes = at.dtype_width_bytes;
        described.form = form_number(at.form);
        described.alignment_bytes = at.alignment_bytes;
        described.tp_rank = at.parallel.rank;
        described.tp_size = at.parallel.size;
        described.tp_replicas = at.parallel.replicas;
    }
    described
}
