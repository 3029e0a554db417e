//! Result types of [`ActiveLoads`](super::ActiveLoads).

use super::key::RequestKey;
use super::rank::RankId;
use super::request::{ExpectedReuse, REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX};
use kvasir_proto::types::WorkerKey;

/// Why a request does not count as load. It can still be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The router already has an active request with this id.
    #[error("a request with this id is under way")]
    Duplicate,
    /// The rank is unknown or was removed.
    #[error("the rank is not known")]
    UnknownRank,
    /// The request exceeds the limit of blocks.
    #[error("the request has more than {REQUEST_BLOCKS_MAX} blocks")]
    TooManyBlocks,
    /// The request exceeds the limit of tokens.
    #[error("the request has more than {REQUEST_TOKENS_MAX} tokens")]
    TooManyTokens,
    /// The limit of active requests or of blocks in use is reached.
    #[error("as much is under way as may be tracked")]
    Full,
}

/// Effect of an update of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The load of this rank changed.
    Changed(RankId),
    /// Only the lease changed.
    Unchanged,
    /// There is no such active request: it was freed, its lease expired, or its rank was removed.
    Unknown,
}

/// Summary of an active request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Rank of the request.
    pub worker: &'a WorkerKey,
    /// Prompt tokens that were expected in the rank's cache, over all tiers.
    pub cached_tokens: u64,
    /// Whether the first token was produced.
    pub is_prefill_completed: bool,
    /// Whether the request is one half of a pair, with the other half in another pool.
    pub is_paired: bool,
    /// Predicted reuse of the prompt, to compare with the engine's report.
    pub reuse: Option<&'a ExpectedReuse>,
}

/// A request whose lease has expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// Key of the request.
    pub key: RequestKey,
    /// Rank of the request.
    pub rank: RankId,
}

/// For each rank, the number of leading blocks of a request that the rank uses already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedBlocks(pub(super) Vec<u32>);

// === impl SharedBlocks ===

impl SharedBlocks {
    /// The number of shared blocks of one rank.
    #[must_use]
    pub fn of(&self, rank: RankId) -> u32 {
        let blocks = usize::try_from(rank.slot).ok().and_then(|slot| self.0.get(slot));
        blocks.copied().unwrap_or(0)
    }
}
