//! The block manager of a running agent, from start to stop.

use super::peers::Peers;
use super::shared::BlockManagerService;
use super::source::{BlockSource, Readers};
use super::storages::{self, Opened};
use super::volume::{VolumeLookup, VolumeSearch};
use super::{BlocksConfig, BlocksError, VerdictCounts, messages};
use crate::storage::{Outbox, StorageBook, StorageConfig};
use kvasir_blocks::events::Image;
use kvasir_blocks::{BlockTier, Route};
use kvasir_feed::feed::{Feed, new_incarnation};
use kvasir_feed::hub::{Hub, HubError};
use kvasir_memory::shared::HEADER_BYTES;
use kvasir_process::net::{ConnectionMetrics, SocketFile};
use kvasir_process::port::Services;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::pb::block_manager_server::BlockManagerServer;
use kvasir_tiers::manager::{FeedTaken, KvBlockManager, ManagerMetrics, ShutdownReport};
use kvasir_transfer::TransferMetrics;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::spawn_blocking;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Divisor of the remaining stop time: one part for waiting offloads, and one for running transfers to end.
const STOP_PART: u32 = 3;

/// The block manager of an agent, with its service.
#[derive(Debug)]
pub struct Blocks {
    manager: Arc<KvBlockManager>,
    service: Arc<BlockManagerService>,
    search: Option<VolumeSearch>,
    storage: Option<Arc<StorageBook>>,
    stop_calls: CancellationToken,
}

impl Blocks {
    /// Opens the tiers and starts the block manager. On return, blocks on disk can be found. Also returns the socket to
    /// serve, if configured.
    ///
    /// # Errors
    /// [`BlocksError`] names the option.
    pub async fn start(
        config: BlocksConfig,
        address: WorkerAddress,
    ) -> Result<(Self, Option<SocketFile>), BlocksError> {
        let socket = match &config.socket {
            Some(path) => Some(SocketFile::bind(path).await?),
            None => None,
        };
        let opening = config.clone();
        let runtime = Handle::current();
        // A panic is in the log.
        let opened = spawn_blocking(move || {
            let Opened { storages, mapped, search } = storages::open_storages(&opening, runtime)?;
            let manager = KvBlockManager::start(opening.manager, &storages)?;
            Ok::<_, BlocksError>((manager, mapped, search))
        });
        let (manager, mapped, search) = opened.await.map_err(|_panic| BlocksError::Panic)??;
        let manager = Arc::new(manager);
        let arena = mapped.map(|mapped| pb::BlockArena {
            path: mapped.path.to_string_lossy().into_owned(),
            start_bytes: HEADER_BYTES as u64,
            stride_bytes: mapped.stride_bytes as u64,
        });
        let storage = config.storage.clone().map(|config| Arc::new(StorageBook::new(config)));
        let peers = Peers::start(&config, &address, &manager).await?;
        let stop_calls = CancellationToken::new();
        let of_service = Arc::clone(&manager);
        let stop = stop_calls.clone();
        let lookup = |search: &VolumeSearch| {
            VolumeLookup::new(Arc::clone(&search.volume), Arc::clone(&manager))
        };
        let sources = (peers, search.as_ref().map(lookup).map(Arc::new));
        let service = BlockManagerService::new(of_service, address, (config, arena), sources, stop);
        Ok((Self { manager, service: Arc::new(service), search, storage, stop_calls }, socket))
    }

    /// Adds the service to the services of a port.
    pub fn add_to(&self, services: &mut Services) {
        services.add(
            BlockManagerServer::from_arc(Arc::clone(&self.service))
                .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
                .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX),
        );
    }

    /// Whether other agents can fetch blocks here.
    #[must_use]
    pub fn has_peer_port(&self) -> bool {
        self.service.peers.is_served()
    }

    /// Serves blocks to other agents, until calls are refused. Returns immediately without such a port.
    pub async fn serve_peers(self: Arc<Self>) {
        self.service.peers.serve(self.stop_calls.clone()).await;
    }

    /// Metrics of the blocks served to other agents and fetched from other agents.
    #[must_use]
    pub fn peer_metrics(&self) -> TransferMetrics {
        self.service.peers.metrics()
    }

    /// Metrics of other agents' connections; `None` without such a port.
    #[must_use]
    pub fn peer_connections(&self) -> Option<&ConnectionMetrics> {
        self.service.peers.connections()
    }

    /// Token that is cancelled once calls are refused.
    #[must_use]
    pub const fn stop_calls(&self) -> &CancellationToken {
        &self.stop_calls
    }

    /// Opens the source of the block manager, before the hub [begins](Hub::begin). Blocks in the volume are published
    /// in the feed of its pool.
    ///
    /// # Errors
    /// If the hub refuses the source.
    pub fn open_source(
        &self,
        hub: &Arc<Hub>,
        pool: Option<&Arc<Feed>>,
    ) -> Result<BlockSource, HubError> {
        let readers = Readers { pool: pool.map(Arc::clone), storage: self.storage.clone() };
        BlockSource::open(hub, self.service.config.rank, readers)
    }

    /// Publishes all blocks through the source, then changes until `stop` is cancelled, then the rest of the changes
    /// before that.
    ///
    /// # Errors
    /// If the events have a reader already.
    pub async fn publish(
        self: Arc<Self>,
        source: BlockSource,
        stop: CancellationToken,
    ) -> Result<(), FeedTaken> {
        source.run(self.manager.events()?, stop).await;
        Ok(())
    }

    /// Queue of storage events; `None` if they are off.
    #[must_use]
    pub const fn storage(&self) -> Option<&Arc<StorageBook>> {
        self.storage.as_ref()
    }

    /// Creates the encoder for batches of storage events, under a new incarnation.
    #[must_use]
    pub fn outbox(&self, address: WorkerAddress, config: &StorageConfig) -> Outbox {
        let state = self.manager.state();
        let tiers = BlockTier::ALL.into_iter().filter(|tier| state.pool(*tier).is_some());
        let block_bytes = self.service.config.block_bytes as u64;
        Outbox::new(address, new_incarnation(), block_bytes, tiers, config)
    }

    /// All current registrations. Takes time in proportion to their number.
    #[must_use]
    pub fn registrations(&self) -> Image {
        self.manager.state().events().registrations()
    }

    /// Searches the volume for existing blocks, until `stop` is cancelled.
    pub async fn search_volume(self: Arc<Self>, stop: CancellationToken) {
        match self.search.clone() {
            Some(search) => search.run(Arc::clone(&self.manager), stop).await,
            None => stop.cancelled().await,
        }
    }

    /// Current metrics.
    #[must_use]
    pub fn metrics(&self) -> ManagerMetrics {
        self.manager.metrics()
    }

    /// Measured bandwidth of each route, in whole bytes per second; `None` without a recent measurement.
    #[must_use]
    pub fn bandwidths(&self) -> BTreeMap<Route, Option<u64>> {
        let routes = self.manager.state().stats().lanes.into_keys();
        let measured = |route| self.manager.decide(route, 0, 0.0, Duration::ZERO).bytes_per_second;
        routes.map(|route| (route, measured(route).map(messages::whole))).collect()
    }

    /// Counts of load decisions that engines asked for, by the tier to load from.
    #[must_use]
    pub fn verdicts(&self) -> BTreeMap<BlockTier, VerdictCounts> {
        self.service.verdicts.counts()
    }

    /// Refuses calls from now on, completes waiting offloads within parts of the remaining time, and stops. The source
    /// publishes the last changes afterwards. Returns whether everything stopped.
    pub async fn stop(&self, deadline: Instant) -> bool {
        self.stop_calls.cancel();
        self.service.peers.backend.close_idle();
        let part = deadline.saturating_duration_since(Instant::now()) / STOP_PART;
        let ShutdownReport { is_drained, cancelled, stuck } =
            self.manager.shutdown(part, part).await;
        self.service.ended().await;
        if !is_drained {
            tracing::warn!(cancelled, stuck, "blocks were not offloaded in time");
        }
        stuck == 0
    }
}
