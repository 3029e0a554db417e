use crate::error::ClientError;
use kvasir_proto::convert::{ConvertError, ImageTokens, Registration, WorkerProfile};
use kvasir_proto::pb;
use kvasir_proto::types::{DpRank, PartitionKey, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// Most workers of one list; of more, those that come last are left out.
pub const LISTED_WORKERS_MAX: usize = 16_384;

/// The workers that a server lists.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WorkerList {
    /// The workers.
    pub workers: Vec<ListedWorker>,
    /// Id of the server's process, new with each start; 0 if the server does not state it. A server that has just started
    /// lists the workers that have registered again.
    pub server_id: u64,
}

/// A worker as the index lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedWorker {
    /// Its model and tenant.
    pub partition: PartitionKey,
    /// Its id.
    pub worker: WorkerId,
    /// Tokens per block.
    pub block_size: u32,
    /// Its ranks: those that publish and those that are to. 0 if none is known.
    pub ranks: BTreeSet<DpRank>,
    /// What it states about itself.
    pub profile: WorkerProfile,
    /// What its engine has in the place of an image's tokens.
    pub image_tokens: ImageTokens,
    /// LoRA adapters that it has loaded.
    pub adapters: BTreeSet<String>,
    /// Where its agent is, if it has one.
    pub agent: Option<String>,
    /// Whether the index knows a block that it holds.
    pub has_blocks: bool,
    /// Blocks that each rank holds, as the index knows.
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
