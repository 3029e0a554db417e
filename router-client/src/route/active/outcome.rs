//! What [`ActiveLoads`](super::ActiveLoads) answers.

use super::key::RequestKey;
use super::rank::RankId;
use super::request::{REQUEST_BLOCKS_MAX, REQUEST_TOKENS_MAX};
use kvasir_proto::types::WorkerKey;

/// Why a request is not counted. It can be served all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// The router has a request under way with this id.
    #[error("a request with this id is under way")]
    Duplicate,
    /// The rank is not known, or no longer.
    #[error("the rank is not known")]
    UnknownRank,
    /// The request has more blocks than one may have.
    #[error("the request has more than {REQUEST_BLOCKS_MAX} blocks")]
    TooManyBlocks,
    /// The request has more tokens than one may have.
    #[error("the request has more than {REQUEST_TOKENS_MAX} tokens")]
    TooManyTokens,
    /// As many requests are under way, or blocks in use, as may be.
    #[error("as much is under way as may be tracked")]
    Full,
}

/// What a message about a request changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// The load of this rank changed.
    Changed(RankId),
    /// Nothing but the lease.
    Unchanged,
    /// No such request is under way: it was freed, its lease ended, or its rank went.
    Unknown,
}

/// A request under way, in short.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed<'a> {
    /// Where it is.
    pub worker: &'a WorkerKey,
    /// Tokens of its prompt that were expected in its rank's cache, in whatever tier.
    pub cached_tokens: u64,
    /// Whether its first token is out.
    pub is_prefill_completed: bool,
    /// Whether it is half of a request that has another one in another pool.
    pub is_paired: bool,
}

/// A request whose lease ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// The request.
    pub key: RequestKey,
    /// Where it was.
    pub rank: RankId,
}

/// How many leading blocks of a request each rank uses already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SharedBlocks(pub(super) Vec<u32>);

// === impl SharedBlocks ===

impl SharedBlocks {
    /// The number of a rank.
    #[must_use]
    pub fn of(&self, rank: RankId) -> u32 {
        let blocks = usize::try_from(rank.slot).ok().and_then(|slot| self.0.get(slot));
        blocks.copied().unwrap_or(0)
    }
}
