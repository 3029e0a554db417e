use crate::counters::TransferCounters;
use crate::limits::UNTAKEN_TIMEOUT;
use crate::wire::BlockDescription;
use kvasir_blocks::sets::{BlockSet, BlockSetRegistry, ContentId};
use kvasir_proto::types::WorkerId;
use kvasir_tiers::manager::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Whose blocks are served.
#[derive(Debug, Clone)]
pub struct OwnerConfig {
    /// The worker.
    pub worker: WorkerId,
    /// What its blocks are.
    pub blocks: BlockDescription,
    /// What tells them from others, as a number.
    pub content: ContentId,
    /// How long a peer may read nothing while data waits for it: [`UNTAKEN_TIMEOUT`] outside of tests.
    pub untaken: Duration,
}

impl OwnerConfig {
    /// With the usual patience.
    #[must_use]
    pub const fn new(worker: WorkerId, blocks: BlockDescription, content: ContentId) -> Self {
        Self { worker, blocks, content, untaken: UNTAKEN_TIMEOUT }
    }
}

/// What all connections of an owner use.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: OwnerConfig,
    /// Holds blocks while they are sent.
    pub(super) session: Session,
    pub(super) registry: BlockSetRegistry,
    /// Exported for as long as this exists.
    pub(super) set: BlockSet,
    pub(super) counters: Arc<TransferCounters>,
    /// Bytes from the start of a slot to the start of the next one.
    pub(super) stride_bytes: u64,
    /// Metadata of the owner's NIXL agent; empty if it lends no blocks.
    pub(super) nixl: Vec<u8>,
    /// Places for loans.
    pub(super) loans: Arc<Semaphore>,
}
