use crate::error::ClientError;
use kvasir_proto::convert::{ConvertError, ImageTokens, Registration, WorkerProfile};
use kvasir_proto::pb;
use kvasir_proto::types::{DpRank, PartitionKey, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum workers in one list; further workers are dropped.
pub const LISTED_WORKERS_MAX: usize = 16_384;

/// The workers that a server lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerList {
    /// The workers.
    pub workers: Vec<ListedWorker>,
    /// Id of the server's process, new with each start; 0 if the server does not report it. A server that has just
    /// started lists only the workers that have registered again.
    pub server_id: u64,
}

/// A worker as the index lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWorker {
    /// Model and tenant of the worker.
    pub partition: PartitionKey,
    /// Id of the worker.
    pub worker: WorkerId,
    /// Tokens per block.
    pub block_size: u32,
    /// Data-parallel ranks, publishing or registered. Rank 0 if none is known.
    pub ranks: BTreeSet<DpRank>,
    /// Profile that the worker published.
    pub profile: WorkerProfile,
    /// How the worker's engine replaces an image's placeholder tokens.
    pub image_tokens: ImageTokens,
    /// LoRA adapters loaded at the worker.
    pub adapters: BTreeSet<String>,
    /// Address of the worker's agent; `None` without an agent.
    pub agent: Option<String>,
    /// Whether the index has a block of this worker.
    pub has_blocks: bool,
    /// Number of blocks of each rank in the index.
    pub held_blocks: BTreeMap<DpRank, u64>,
}

impl TryFrom<pb::WorkerInfo> for ListedWorker {
    type Error = ClientError;

    fn try_from(info: pb::WorkerInfo) -> Result<Self, ClientError> {
        let malformed = |error: ConvertError| ClientError::Malformed(error.to_string());
        let registration = info.registration.unwrap_or_default();
        let registration = Registration::try_from(registration).map_err(malformed)?;
        let mut ranks: BTreeSet<DpRank> = info.ranks.iter().map(|rank| rank.dp_rank).collect();
        ranks.extend(registration.endpoints.iter().map(|at| at.rank));
        if ranks.is_empty() {
            ranks.insert(0);
        }
        let image_tokens = registration.image_tokens();
        Ok(Self {
            partition: registration.partition,
            worker: registration.worker,
            block_size: registration.block_size,
            ranks,
            adapters: registration.lora_names.into_values().collect(),
            image_tokens,
            profile: registration.profile,
            agent: registration.local_indexer,
            has_blocks: info.ranks.iter().any(|rank| rank.placed_blocks > 0),
            held_blocks: info.ranks.iter().map(|at| (at.dp_rank, at.placed_blocks)).collect(),
        })
    }
}
