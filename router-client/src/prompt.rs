use kvasir_proto::hash::{self, MultimodalSpan, Namespace};
use kvasir_proto::limits::QUERY_TOKENS_MAX;
use kvasir_proto::pb::{FindMatchesRequest, RecordPlacementRequest, Tier};
use kvasir_proto::types::{LocalHash, SequenceHash, WorkerKey};
use std::time::Duration;

/// A prompt to route.
#[derive(Debug, Clone, Copy)]
pub struct Prompt<'a> {
    /// Model that serves the prompt.
    pub model: &'a str,
    /// Tenant, "" by default.
    pub tenant: &'a str,
    /// LoRA adapter and salt.
    pub namespace: Namespace<'a>,
    /// Tokens per block of the fleet.
    pub block_size: u32,
    /// Tokens of the prompt.
    pub tokens: &'a [u32],
    /// The prompt's tokens where some may be beyond 32 bits ([`with_images`](crate::with_images)); empty otherwise.
    pub wide_tokens: &'a [u64],
    /// Multimodal content of the prompt.
    pub multimodal: &'a [MultimodalSpan],
    /// Exclude workers with fewer confirmed and fewer expected blocks of the prompt. 0 lists every rank.
    pub minimum_overlap_blocks: u32,
    /// List at most this many workers, the best ones; 0 for all.
    pub top_k: u32,
    /// Whether a worker's overlap includes blocks that it can read only from a pool.
    pub shared: bool,
}

/// A prompt as hashes of its complete blocks. Hashed once, it serves every query and placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashedPrompt {
    /// Model that serves the prompt.
    pub model: String,
    /// Tenant, "" by default.
    pub tenant: String,
    /// Tokens per block of the fleet.
    pub block_size: u32,
    /// Number of tokens, including those after the last complete block.
    pub input_tokens: u64,
    /// Local hashes of the complete blocks, which include adapter, salt and multimodal content.
    pub local_hashes: Vec<u64>,
    /// Token after each block, for workers whose hashes cover it, as in
    /// [`next_tokens`](kvasir_proto::hash::next_tokens). Empty if unknown.
    pub next_tokens: Vec<u32>,
    /// See [`Prompt::minimum_overlap_blocks`].
    pub minimum_overlap_blocks: u32,
    /// See [`Prompt::top_k`].
    pub top_k: u32,
    /// See [`Prompt::shared`].
    pub shared: bool,
}

impl<'a> Prompt<'a> {
    /// A plain prompt without tenant, adapter, salt or multimodal content. Queries return all workers with at least one
    /// confirmed or expected block.
    #[must_use]
    pub fn new(model: &'a str, block_size: u32, tokens: &'a [u32]) -> Self {
        let namespace = Namespace::default();
        Self {
            model,
            tenant: "",
            namespace,
            block_size,
            tokens,
            wide_tokens: &[],
            multimodal: &[],
            minimum_overlap_blocks: 1,
            top_k: 0,
            shared: false,
        }
    }

    /// Returns the local hashes of the prompt's complete blocks.
    #[must_use]
    pub fn local_hashes(&self) -> Vec<LocalHash> {
        let mut hashes = Vec::new();
        let block_size = self.block_tokens();
        let seed = self.namespace.seed();
        if self.wide_tokens.is_empty() {
            let tokens = hash::tokens_le(self.tokens);
            hash::local_hashes(&tokens, block_size, seed, self.multimodal, &mut hashes);
        } else {
            let tokens = self.wide_tokens;
            hash::wide_local_hashes(tokens, block_size, seed, self.multimodal, &mut hashes);
        }
        hashes
    }

    fn block_tokens(&self) -> usize {
        usize::try_from(self.block_size).unwrap_or(usize::MAX)
    }

    /// The token after each block: see [`hash::next_tokens`].
    fn next_tokens(&self) -> Vec<u32> {
        if self.wide_tokens.is_empty() {
            return hash::next_tokens(self.tokens, self.block_tokens(), self.multimodal);
        }
        hash::wide_next_tokens(self.wide_tokens, self.block_tokens(), self.multimodal)
    }

    /// Hashes the prompt.
    #[must_use]
    pub fn hashed(&self) -> HashedPrompt {
        HashedPrompt {
            model: self.model.to_owned(),
            tenant: self.tenant.to_owned(),
            block_size: self.block_size,
            input_tokens: self.tokens.len().max(self.wide_tokens.len()) as u64,
            local_hashes: self.local_hashes().into_iter().map(|hash| hash.0).collect(),
            next_tokens: self.next_tokens(),
            minimum_overlap_blocks: self.minimum_overlap_blocks,
            top_k: self.top_k,
            shared: self.shared,
        }
    }

    /// The query for an indexer.
    #[must_use]
    pub fn request(&self) -> FindMatchesRequest {
        self.hashed().request()
    }

    /// The placement to record at an indexer after this prompt was sent to `worker`. A `ttl` of `None` means the
    /// server's default. On the wire, the unit is the millisecond.
    #[must_use]
    pub fn placement(&self, worker: &WorkerKey, ttl: Option<Duration>) -> RecordPlacementRequest {
        self.hashed().placement(worker, ttl)
    }
}

impl HashedPrompt {
    /// Whether the prompt has no complete block. If so, no worker can match, and no query is needed.
    pub(crate) fn is_short(&self) -> bool {
        // The server refuses a block size of 0.
        self.local_hashes.is_empty() && self.block_size != 0
    }

    /// Returns the sequence hashes of the prompt's blocks. Each identifies the complete prefix up to its block.
    #[must_use]
    pub fn sequence_hashes(&self) -> Vec<SequenceHash> {
        let mut parent = None;
        let next = |local: &u64| {
            let hash = hash::sequence_hash(parent, LocalHash(*local));
            parent = Some(hash);
            hash
        };
        self.local_hashes.iter().map(next).collect()
    }

    /// Number of tokens for a query. `None` for 0 and above [`QUERY_TOKENS_MAX`], which indexes reject.
    pub(crate) fn prompt_tokens(&self) -> Option<u32> {
        let tokens = u32::try_from(self.input_tokens).ok()?;
        let is_valid = tokens > 0 && tokens as usize <= QUERY_TOKENS_MAX;
        Some(tokens).filter(|_| is_valid && !self.local_hashes.is_empty())
    }

    /// Builds the query for an indexer.
    #[must_use]
    pub fn request(&self) -> FindMatchesRequest {
        FindMatchesRequest {
            model: self.model.clone(),
            tenant: self.tenant.clone(),
            block_size: Some(self.block_size),
            hash_scheme: Some(hash::HASH_SCHEME.to_owned()),
            local_hashes: self.local_hashes.clone(),
            next_tokens_le: hash::tokens_le(&self.next_tokens).into_owned().into(),
            prompt_tokens: self.prompt_tokens(),
            minimum_overlap_blocks: Some(self.minimum_overlap_blocks).filter(|least| *least != 1),
            top_k: self.top_k,
            shared: self.shared,
            ..FindMatchesRequest::default()
        }
    }

    /// The query for blocks in `tiers` of the workers' own memory; an empty list means all tiers.
    pub(crate) fn request_in(&self, tiers: &[Tier]) -> FindMatchesRequest {
        let shared = self.shared && tiers.is_empty();
        let tiers = tiers.iter().map(|tier| i32::from(*tier)).collect();
        FindMatchesRequest { tiers, shared, ..self.request() }
    }

    /// Builds the placement to record, as [`Prompt::placement`].
    #[must_use]
    pub fn placement(&self, worker: &WorkerKey, ttl: Option<Duration>) -> RecordPlacementRequest {
        RecordPlacementRequest {
            model: self.model.clone(),
            tenant: self.tenant.clone(),
            block_size: Some(self.block_size),
            hash_scheme: Some(hash::HASH_SCHEME.to_owned()),
            local_hashes: self.local_hashes.clone(),
            worker_id: worker.worker.as_str().to_owned(),
            dp_rank: worker.rank,
            ttl_ms: ttl.map(|ttl| u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX)),
            ..RecordPlacementRequest::default()
        }
    }
}
