use super::chains::NodeId;
use super::key::RequestKey;
use super::rank::{BLOCK_MILLIBLOCKS, RankId};
use kvasir_proto::digest::block_digest;
use kvasir_proto::hash::{Namespace, local_hash};
use kvasir_proto::limits::QUERY_BLOCKS_MAX;
use kvasir_proto::types::{BlockName, LocalHash, SequenceHash, WorkerKey};
use std::num::NonZeroU32;
use std::time::Duration;

/// Most blocks of one request.
pub const REQUEST_BLOCKS_MAX: usize = QUERY_BLOCKS_MAX;
/// Most tokens of a request's prompt, and of its output.
pub const REQUEST_TOKENS_MAX: u64 = 1 << 30;

/// The whole blocks of a request's prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PromptBlocks<'a> {
    /// A chain from the root, by sequence hashes: requests of one rank share what begins alike.
    Chain(&'a [SequenceHash]),
    /// So many blocks that no other request shares.
    Unique(u32),
}

/// A request that is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewRequest<'a> {
    /// The rank that it goes to.
    pub rank: RankId,
    /// Its blocks.
    pub blocks: PromptBlocks<'a>,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Tokens of its prompt that the rank has to compute; see [`Cost::booked_prefill_tokens`](crate::route::Cost).
    pub prefill_tokens: u64,
    /// Tokens of output that the client expects (`osl` of document 004); none if it says nothing.
    pub expected_output_tokens: Option<u64>,
}

/// What is remembered of a request. No load depends on it, nor does a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestNotes {
    /// Blocks of its prompt that its rank held when it was placed (overlap score of document 001).
    pub overlap_blocks: u32,
    /// Whether it is half of a request that has another half in another pool. Replicas need not know.
    pub is_paired: bool,
    /// Whether it waits for blocks from peers: then the time to its first token does not show the pace of its rank.
    pub has_fetch: bool,
}

/// What is known of a request under way, for a replica that lacks it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRequest {
    /// The request.
    pub key: RequestKey,
    /// Where it is.
    pub worker: WorkerKey,
    /// The sequence hashes of its whole blocks; empty where reuse is not assumed.
    pub hashes: Vec<SequenceHash>,
    /// Number of its whole blocks.
    pub blocks: u32,
    /// Tokens of its prompt.
    pub input_tokens: u64,
    /// Tokens of its prompt that were to be computed when it was placed.
    pub prefill_tokens: u64,
    /// Whether its first token is out.
    pub is_prefill_completed: bool,
    /// Tokens of output that the client expects.
    pub expected_output_tokens: Option<u64>,
    /// Blocks of its prompt that the rank held when it was placed (overlap score of document 001).
    pub overlap_blocks: u32,
}

/// A request under way.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) rank: RankId,
    pub(super) end: Option<NodeId>,
    pub(super) blocks: u32,
    pub(super) unique_blocks: u64,
    pub(super) input_tokens: u64,
    pub(super) prefill_tokens: u64,
    pub(super) is_prefill_completed: bool,
    /// The number of its prompt among its rank's [`Prefills`](super::prefills::Prefills), until its first token; none if it
    /// has no tokens to compute.
    pub(super) prefill_number: Option<u64>,
    /// Tokens of its prompt that count as context; 0 where blocks are not tracked.
    pub(super) context_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) expected_output_tokens: Option<u64>,
    pub(super) notes: RequestNotes,
    /// Counted at its rank.
    pub(super) output_milliblocks: u64,
    /// When its lease ends unless it is heard of.
    pub(super) expires: Duration,
    /// When its lease is looked at: not after its end.
    pub(super) due: Duration,
    /// Of what does not change and counts: id, router, worker and rank, blocks, tokens.
    digest: u64,
}

// === impl PromptBlocks ===

impl PromptBlocks<'_> {
    /// How many there are; a chain beyond the limit of 32 bits counts as that.
    #[must_use]
    pub fn count(&self) -> u32 {
        match self {
            Self::Chain(hashes) => u32::try_from(hashes.len()).unwrap_or(u32::MAX),
            Self::Unique(blocks) => *blocks,
        }
    }

    /// The last block of a chain, which names the whole chain.
    fn last(&self) -> u64 {
        match self {
            Self::Chain(hashes) => hashes.last().map_or(0, |hash| hash.0),
            Self::Unique(_) => 0,
        }
    }
}

// === impl Request ===

impl Request {
    /// A request that is not counted anywhere yet, at a rank of this [`place_digest`].
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

    /// Tokens that count at its rank.
    pub(super) fn counted_prefill_tokens(&self) -> u64 {
        if self.is_prefill_completed { 0 } else { self.prefill_tokens }
    }

    /// Digest of what replicas tell each other of it. Output is not part of that (document 001 names three messages:
    /// added, prefill completed, freed), nor is the lease.
    pub(super) fn digest(&self) -> u64 {
        mix(self.digest, u64::from(self.is_prefill_completed))
    }

    /// The weight of its blocks of output at its current length.
    ///
    /// A block counts once it is begun beyond the prompt's last one. Document 004: the weight of each falls from 1 to 0
    /// as the output approaches its expected length, and stays 1 if none is expected.
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

/// Digest of where requests are. It is part of theirs, so that one that moved differs.
pub(super) fn place_digest(worker: &WorkerKey) -> u64 {
    mix(text_digest(worker.worker.as_str()), u64::from(worker.rank))
}

fn text_digest(text: &str) -> u64 {
    local_hash(text.as_bytes(), &[], Namespace::default().seed()).0
}

fn mix(digest: u64, fact: u64) -> u64 {
    block_digest(BlockName(digest), Some(LocalHash(fact)))
}
