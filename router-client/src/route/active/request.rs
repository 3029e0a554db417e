use super::chains::NodeId;
use super::key::RequestKey;
use super::rank::{BLOCK_MILLIBLOCKS, RankId};
use kvasir_proto::digest::block_digest;
use kvasir_proto::hash::{Namespace, local_hash};
use kvasir_proto::limits::QUERY_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, LocalHash, PartitionKey, SequenceHash, WorkerKey};
use std::num::NonZeroU32;
use std::time::Duration;

/// Maximum blocks of one request.
pub const REQUEST_BLOCKS_MAX: usize = QUERY_BLOCKS_MAX;
/// Maximum tokens of a request's prompt, and of its output.
pub const REQUEST_TOKENS_MAX: u64 = 1 << 30;

/// The complete blocks of a request's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBlocks<'a> {
    /// A chain from the root, by sequence hashes: requests of one rank share the blocks of a common prefix.
    Chain(&'a [SequenceHash]),
    /// A number of blocks that the request shares with no other.
    Unique(u32),
}

/// A request to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRequest<'a> {
    /// Rank of the request.
    pub rank: RankId,
    /// Complete blocks of the prompt.
    pub blocks: PromptBlocks<'a>,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Prompt tokens that the rank has to compute; see [`Cost::booked_prefill_tokens`](crate::route::Cost).
    pub prefill_tokens: u64,
    /// Output tokens that the client expects (`osl` of document 004); `None` if unknown.
    pub expected_output_tokens: Option<u64>,
}

/// Reuse of a prompt that the index predicted for a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedReuse {
    /// Model and tenant of the prompt.
    pub partition: PartitionKey,
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Predicted reuse, in tokens.
    pub expected: u32,
}

/// Notes about a request. They affect neither loads nor digests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestNotes {
    /// Prompt blocks that the rank had when the request was placed (overlap score of document 001).
    pub overlap_blocks: u32,
    /// Whether the request is one half of a pair, with the other half in another pool. Not sent to replicas.
    pub is_paired: bool,
    /// Whether the request waits for blocks from peers. Then the time to its first token does not show the rank's pace.
    pub has_fetch: bool,
    /// Predicted reuse of the prompt; `None` if it can't be compared with the engine's report.
    pub reuse: Option<Box<ExpectedReuse>>,
}

/// Data of an active request, for a replica that lacks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRequest {
    /// Key of the request.
    pub key: RequestKey,
    /// Rank of the request.
    pub worker: WorkerKey,
    /// Sequence hashes of the prompt's complete blocks; empty without reuse.
    pub hashes: Vec<SequenceHash>,
    /// Number of complete blocks.
    pub blocks: u32,
    /// Tokens of the prompt.
    pub input_tokens: u64,
    /// Prompt tokens that had to be computed when the request was placed.
    pub prefill_tokens: u64,
    /// Whether the first token was produced.
    pub is_prefill_completed: bool,
    /// Output tokens that the client expects.
    pub expected_output_tokens: Option<u64>,
    /// Prompt blocks that the rank had when the request was placed (overlap score of document 001).
    pub overlap_blocks: u32,
}

/// An active request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) rank: RankId,
    pub(super) end: Option<NodeId>,
    pub(super) blocks: u32,
    pub(super) unique_blocks: u64,
    pub(super) input_tokens: u64,
    pub(super) prefill_tokens: u64,
    pub(super) is_prefill_completed: bool,
    /// The prompt's number in its rank's [`Prefills`](super::prefills::Prefills), until the first token; `None` if
    /// there are no tokens to compute.
    pub(super) prefill_number: Option<u64>,
    /// Prompt tokens that count as context; 0 if blocks are not tracked.
    pub(super) context_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) expected_output_tokens: Option<u64>,
    pub(super) notes: RequestNotes,
    /// Weighted output blocks, as counted at the rank.
    pub(super) output_milliblocks: u64,
    /// End of the lease, unless it is renewed.
    pub(super) expires: Duration,
    /// When the lease is checked next; never after its end.
    pub(super) due: Duration,
    /// Digest of the constant fields that count: id, router, worker and rank, blocks, tokens.
    digest: u64,
}

// === impl PromptBlocks ===

impl PromptBlocks<'_> {
    /// Number of blocks, at most the maximum of 32 bits.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Chain(hashes) => u32::try_from(hashes.len()).unwrap_or(u32::MAX),
            Self::Unique(blocks) => *blocks,
        }
    }

    /// Hash of the last block, which identifies the complete chain.
    fn last(&self) -> u64 {
        match self {
            Self::Chain(hashes) => hashes.last().map_or(0, |hash| hash.0),
            Self::Unique(_) => 0,
        }
    }
}

// === impl Request ===

impl Request {
    /// Creates a request that is not counted yet. `place` is the [`place_digest`] of its rank.
    pub(super) fn new(
        key: &RequestKey,
        new: &NewRequest<'_>,
        place: u64,
        expires: Duration,
    ) -> Self {
        let blocks = new.blocks.count();
        let facts = [
            key.router.0,
            place,
            new.blocks.last(),
            u64::from(blocks),
            new.input_tokens,
            new.prefill_tokens,
            new.expected_output_tokens.map_or(0, |tokens| tokens.saturating_add(1)),
        ];
        Self {
            rank: new.rank,
            end: None,
            blocks,
            unique_blocks: 0,
            input_tokens: new.input_tokens,
            prefill_tokens: new.prefill_tokens,
            is_prefill_completed: false,
            prefill_number: None,
            context_tokens: 0,
            output_tokens: 0,
            expected_output_tokens: new.expected_output_tokens,
            notes: RequestNotes::default(),
            output_milliblocks: 0,
            expires,
            due: expires,
            digest: facts.into_iter().fold(text_digest(key.id()), mix),
        }
    }

    /// Prefill tokens that count at the rank.
    pub(super) fn counted_prefill_tokens(&self) -> u64 {
        if self.is_prefill_completed { 0 } else { self.prefill_tokens }
    }

    /// Digest of the data that replicas exchange about the request. Excludes the lease and the output: document 001
    /// names three messages (added, prefill completed, freed).
    pub(super) fn digest(&self) -> u64 {
        mix(self.digest, u64::from(self.is_prefill_completed))
    }

    /// Returns the weight of the output blocks at the current length, in thousandths of a block.
    pub(super) fn weigh_output(&self, block_size: NonZeroU32) -> u64 {
        let block_size = u64::from(block_size.get());
        let all = (self.input_tokens + self.output_tokens).div_ceil(block_size);
        let blocks = all - self.input_tokens.div_ceil(block_size);
        let whole = blocks * BLOCK_MILLIBLOCKS;
        let Some(expected) = self.expected_output_tokens else { return whole };
        let left = expected.saturating_sub(self.output_tokens);
        let weighed = u128::from(whole) * u128::from(left) / u128::from(expected.max(1));
        debug_assert!(weighed <= u128::from(whole), "a weight is at most 1");
        u64::try_from(weighed).unwrap_or(whole)
    }
}

/// Digest of a rank's key. Part of the requests' digests, so that a moved request has another digest.
pub(super) fn place_digest(worker: &WorkerKey) -> u64 {
    mix(text_digest(worker.worker.as_str()), u64::from(worker.rank))
}

fn text_digest(text: &str) -> u64 {
    local_hash(text.as_bytes(), &[], Namespace::default().seed()).0
}

fn mix(digest: u64, fact: u64) -> u64 {
    block_digest(BlockName(digest), Some(LocalHash(fact)))
}
