use crate::counters::TransferCounters;
use crate::limits::UNTAKEN_TIMEOUT;
use crate::wire::BlockDescription;
use kvasir_blocks::sets::{BlockSet, BlockSetRegistry, ContentId};
use kvasir_proto::types::WorkerId;
use kvasir_tiers::manager::Session;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Configuration of an owner.
#[derive(Debug, Clone)]
pub struct OwnerConfig {
    /// The worker that owns the blocks.
    pub worker: WorkerId,
    /// Description of the blocks.
    pub blocks: BlockDescription,
    /// Content id, which distinguishes different blocks.
    pub content: ContentId,
    /// How long a peer may read nothing while data waits for it: [`UNTAKEN_TIMEOUT`] outside of tests.
    pub untaken: Duration,
}

impl OwnerConfig {
    /// A configuration with the default timeout.
    #[must_use]
    pub const fn new(worker: WorkerId, blocks: BlockDescription, content: ContentId) -> Self {
        Self { worker, blocks, content, untaken: UNTAKEN_TIMEOUT }
    }
}

/// State shared by all connections of an owner.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: OwnerConfig,
    /// Holds blocks while they are sent.
    pub(super) session: Session,
    pub(super) registry: BlockSetRegistry,
    /// The exported set. Dropping it ends the export.
    pub(super) set: BlockSet,
    pub(super) counters: Arc<TransferCounters>,
    /// Distance between the starts of two slots, in bytes.
    pub(super) stride_bytes: u64,
    /// Metadata of the owner's NIXL agent; empty if it does not lend blocks.
    pub(super) nixl: Vec<u8>,
    /// Permits for loans.
    pub(super) loans: Arc<Semaphore>,
}
