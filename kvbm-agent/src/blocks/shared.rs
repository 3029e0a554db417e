//! State shared by the calls of `BlockManager`.

use super::BlocksConfig;
use super::checks::Checks;
use super::peers::Peers;
use super::sessions::{Open, Sessions};
use super::status::no_session;
use super::verdicts::Verdicts;
use super::volume::VolumeLookup;
use kvasir_proto::convert::{SessionId, WorkerAddress};
use kvasir_proto::pb;
use kvasir_tiers::manager::KvBlockManager;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

/// Maximum number of concurrent Read streams, each with a copy of a block.
pub(super) const READS_MAX: usize = 32;

/// gRPC service `BlockManager` for one agent's blocks. All calls need the right to publish for the agent's worker.
#[derive(Debug)]
pub struct BlockManagerService {
    pub(super) manager: Arc<KvBlockManager>,
    pub(super) address: WorkerAddress,
    pub(super) config: BlocksConfig,
    /// Memory that engines can map, if any.
    pub(super) arena: Option<pb::BlockArena>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) peers: Peers,
    /// Lookup of blocks in the volume; `None` without a volume.
    pub(super) volume: Option<Arc<VolumeLookup>>,
    pub(super) verdicts: Verdicts,
    pub(super) checks: Checks,
    pub(super) reads: Arc<Semaphore>,
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl BlockManagerService {
    /// Creates the service. Its streams end once `stop` is cancelled.
    pub(super) fn new(
        manager: Arc<KvBlockManager>,
        address: WorkerAddress,
        (config, arena): (BlocksConfig, Option<pb::BlockArena>),
        (peers, volume): (Peers, Option<Arc<VolumeLookup>>),
        stop: CancellationToken,
    ) -> Self {
        Self {
            manager,
            address,
            config,
            arena,
            sessions: Arc::default(),
            peers,
            volume,
            verdicts: Verdicts::default(),
            checks: Checks::new(),
            reads: Arc::new(Semaphore::new(READS_MAX)),
            tasks: TaskTracker::new(),
            stop,
        }
    }

    /// Waits until all tasks have ended, after the stop.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The open session with this id.
    pub(super) fn session(&self, id: SessionId) -> Result<Arc<Open>, Status> {
        self.sessions.get(id).ok_or_else(no_session)
    }
}
