//! Tokens to block hashes: the single implementation that index, agents and routers use,
//! interoperable bit for bit with `dynamo-kv-router` 1.6.1 and `kv-index` 2.0.0 (golden vectors in
//! `tests/golden_hashes.rs`).
//!
//! - seed = 1337 + XXH3-64(LoRA name, seed 0) + XXH3-64(salt, seed 1), wrapping, each term only if set
//! - local hash = XXH3-64(little-endian u32 tokens of the block ‖ its multimodal hashes, ascending,
//!   as little-endian u64; seed)
//! - bucket of a worker = XXH3-64(`worker_id` as UTF-8, seed 0) mod 256
//! - sequence hash: `s[0] = l[0]`, `s[i] = XXH3-64(s[i-1] ‖ l[i], seed 1337)`, both little-endian
//!
//! Only complete blocks are hashed. The cost is one pass over the tokens and no allocation per block:
//! a 16-token block is 64 bytes, so a 4,096-token prompt reads 16 KiB and writes 2 KiB.

use crate::types::{LocalHash, SequenceHash, WorkerId};
use std::borrow::Cow;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of this scheme, as requests may state it.
pub const HASH_SCHEME: &str = "xxh3-64/1337";

const SEED: u64 = 1337;
const SALT_SEED: u64 = 1;

/// What decides the content of a prompt's blocks besides its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Namespace<'a> {
    /// LoRA adapter; "" for none.
    pub lora_name: &'a str,
    /// Cache salt; "" for none.
    pub cache_salt: &'a str,
}

impl Namespace<'_> {
    /// Seed of the local hashes of this namespace.
    #[must_use]
    pub fn seed(self) -> Seed {
        let mut seed = SEED;
        if !self.lora_name.is_empty() {
            seed = seed.wrapping_add(xxh3_64(self.lora_name.as_bytes()));
        }
        if !self.cache_salt.is_empty() {
            let salt = xxh3_64_with_seed(self.cache_salt.as_bytes(), SALT_SEED);
            seed = seed.wrapping_add(salt);
        }
        Seed(seed)
    }
}

/// Seed of one namespace's local hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// A namespace that no query can name: blocks hashed with it never match.
    ///
    /// `discriminator` separates unrelated content of this kind.
    #[must_use]
    pub fn opaque(discriminator: &[u8]) -> Self {
        Self(!xxh3_64_with_seed(discriminator, SEED))
    }
}

/// Hash of a multimodal identifier: the first 16 of exactly 64 hexadecimal digits, else XXH3-64.
#[must_use]
pub fn multimodal_hash(identifier: &str) -> u64 {
    let bytes = identifier.as_bytes();
    if bytes.len() == 64 && bytes.iter().all(u8::is_ascii_hexdigit) {
        let head = identifier.get(..16).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        if let Some(hash) = head {
            return hash;
        }
    }
    xxh3_64(bytes)
}

/// Multimodal content that spans tokens `start..end` of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MultimodalSpan {
    /// [`multimodal_hash`] of its identifier.
    pub hash: u64,
    /// First token.
    pub start: usize,
    /// One past its last token.
    pub end: usize,
}

/// The tokens as the little-endian bytes that are hashed; borrowed on little-endian machines.
#[must_use]
pub fn tokens_le(tokens: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(tokens))
    } else {
        Cow::Owned(tokens.iter().flat_map(|token| token.to_le_bytes()).collect())
    }
}

/// Local hash of one complete block. `multimodal` must be ascending.
#[must_use]
pub fn local_hash(block_le: &[u8], multimodal: &[u64], seed: Seed) -> LocalHash {
    if multimodal.is_empty() {
        return LocalHash(xxh3_64_with_seed(block_le, seed.0));
    }
    let mut hasher = xxhash_rust::xxh3::Xxh3::with_seed(seed.0);
    hasher.update(block_le);
    for hash in multimodal {
        hasher.update(&hash.to_le_bytes());
    }
    LocalHash(hasher.digest())
}

/// Local hashes of all complete blocks of `tokens_le`, appended to `out`. A `block_size` of 0 yields
/// none.
pub fn local_hashes(
    tokens_le: &[u8],
    block_size: usize,
    seed: Seed,
    multimodal: &[MultimodalSpan],
    out: &mut Vec<LocalHash>,
) {
    if block_size == 0 {
        return;
    }
    let blocks = tokens_le.chunks_exact(block_size.saturating_mul(4));
    out.reserve(blocks.len());
    if multimodal.is_empty() {
        out.extend(blocks.map(|block| LocalHash(xxh3_64_with_seed(block, seed.0))));
        return;
    }
    let mut spans: Vec<&MultimodalSpan> = multimodal.iter().collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut spans = spans.into_iter().peekable();
    let mut open: Vec<&MultimodalSpan> = Vec::new();
    let mut extras = Vec::new();
    for (index, block) in blocks.enumerate() {
        let (start, end) = (index * block_size, (index + 1) * block_size);
        open.retain(|span| start < span.end);
        while let Some(span) = spans.next_if(|span| span.start < end) {
            open.push(span);
        }
        extras.clear();
        extras.extend(open.iter().filter(|span| start < span.end).map(|span| span.hash));
        extras.sort_unstable();
        out.push(local_hash(block, &extras, seed));
    }
}

/// Number of buckets. It can never change: subjects and shard maps name buckets.
pub const BUCKETS: usize = 256;

/// The bucket of a worker, below [`BUCKETS`]. It can never change: shards own buckets, and a worker moves with
/// its bucket.
#[must_use]
pub fn bucket(worker: &WorkerId) -> u8 {
    let [lowest, ..] = xxh3_64(worker.as_str().as_bytes()).to_le_bytes();
    lowest
}

const _: () = assert!(BUCKETS == 1 << u8::BITS);

/// Canonical sequence hash of a block whose parent has the sequence hash `parent`.
#[must_use]
pub fn sequence_hash(parent: Option<SequenceHash>, local: LocalHash) -> SequenceHash {
    let Some(parent) = parent else {
        return SequenceHash(local.0);
    };
    let mut bytes = [0; 16];
    let (head, tail) = bytes.split_at_mut(8);
    head.copy_from_slice(&parent.0.to_le_bytes());
    tail.copy_from_slice(&local.0.to_le_bytes());
    SequenceHash(xxh3_64_with_seed(&bytes, SEED))
}

/// Canonical sequence hashes of a chain of blocks that starts at the root.
pub fn sequence_hashes(locals: &[LocalHash]) -> impl Iterator<Item = SequenceHash> + '_ {
    locals.iter().scan(None, |parent, &local| {
        *parent = Some(sequence_hash(*parent, local));
        *parent
    })
}
