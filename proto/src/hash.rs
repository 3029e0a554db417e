//! Hashes tokens to block hashes: the single implementation for index, agents and routers. Interoperable bit for bit
//! with `dynamo-kv-router` 1.6.1 and `kv-index` 2.0.0 (golden vectors in `tests/golden_hashes.rs`).
//!
//! - seed = 1337 + XXH3-64(LoRA name, seed 0) + XXH3-64(salt, seed 1), wrapping, each term only if set
//! - local hash = XXH3-64(little-endian u32 tokens of the block ‖ its multimodal hashes, ascending,
//!   as little-endian u64; seed)
//! - bucket of a worker = XXH3-64(`worker_id` as UTF-8, seed 0) mod 256
//! - sequence hash: `s[0] = l[0]`, `s[i] = XXH3-64(s[i-1] ‖ l[i], seed 1337)`, both little-endian
//!
//! Only complete blocks are hashed. The cost is one pass over the tokens and no allocation per block:
//! a 16-token block is 64 bytes, so a 4,096-token prompt reads 16 KiB and writes 2 KiB.

use crate::types::{BlockName, LocalHash, SequenceHash, WorkerId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Name of this hash scheme, for requests that state one.
pub const HASH_SCHEME: &str = "xxh3-64/1337";

const SEED: u64 = 1337;
const SALT_SEED: u64 = 1;

/// The parts of a prompt, besides its tokens, that determine the content of its blocks.
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
    /// Seed of a namespace that no query can name: blocks hashed with it never match.
    ///
    /// `discriminator` separates unrelated contents of this kind.
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
    /// One past the last token.
    pub end: usize,
}

/// The tokens as little-endian bytes, for hashing; borrowed on little-endian machines.
#[must_use]
pub fn tokens_le(tokens: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        Cow::Borrowed(bytemuck::cast_slice(tokens))
    } else {
        Cow::Owned(tokens.iter().flat_map(|token| token.to_le_bytes()).collect())
    }
}

/// Local hash of one complete block. `multimodal` must be in ascending order.
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

/// Local hash of one complete block of little-endian u64 tokens. If all tokens are below 2^32, the result equals
/// [`local_hash`] of the tokens as u32; else the u64 bytes are hashed. `multimodal` must be in ascending order.
#[must_use]
pub fn wide_local_hash(block_le: &[u8], multimodal: &[u64], seed: Seed) -> LocalHash {
    let (tokens, _no_rest) = block_le.as_chunks::<8>();
    let narrow = |token: &[u8; 8]| u32::try_from(u64::from_le_bytes(*token)).ok();
    let narrow: Option<Vec<u32>> = tokens.iter().map(narrow).collect();
    match narrow {
        Some(tokens) => local_hash(&tokens_le(&tokens), multimodal, seed),
        None => local_hash(block_le, multimodal, seed),
    }
}

/// Seed of the hashes of look-ahead blocks.
const LOOK_AHEAD_SEED: u64 = 0x6c6f_6f6b;

/// The number that a look-ahead block's hash covers for the next token: a hash of the token and of the multimodal
/// content that begins there, in ascending order. Without such content, the token itself.
#[must_use]
pub fn next_token(token: u32, multimodal: &[u64]) -> u32 {
    if multimodal.is_empty() {
        return token;
    }
    let hash = local_hash(&token.to_le_bytes(), multimodal, Seed(LOOK_AHEAD_SEED)).0;
    let [_, _, _, _, a, b, c, d] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The [`next_token`] after each complete block of a prompt. If the prompt ends with the last block, that block has no
/// entry. A `block_size` of 0 yields none.
#[must_use]
pub fn next_tokens(tokens: &[u32], block_size: usize, multimodal: &[MultimodalSpan]) -> Vec<u32> {
    let ends = tokens.iter().enumerate().skip(block_size).step_by(block_size.max(1));
    let next = ends.filter(|_| block_size > 0).map(|(at, &token)| (at, token));
    mix_in_multimodal(next, multimodal)
}

/// [`next_tokens`] for tokens of which some are beyond 32 bits. Engines that hash the next token have no such tokens,
/// so `u32::MAX` replaces each.
#[must_use]
pub fn wide_next_tokens(
    tokens: &[u64],
    block_size: usize,
    multimodal: &[MultimodalSpan],
) -> Vec<u32> {
    let ends = tokens.iter().enumerate().skip(block_size).step_by(block_size.max(1));
    let next = ends.filter(|_| block_size > 0);
    let next = next.map(|(at, &token)| (at, u32::try_from(token).unwrap_or(u32::MAX)));
    mix_in_multimodal(next, multimodal)
}

/// The [`next_token`] of each token, with the multimodal content that begins at its position.
fn mix_in_multimodal(
    tokens: impl Iterator<Item = (usize, u32)>,
    multimodal: &[MultimodalSpan],
) -> Vec<u32> {
    let mut begins: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
    for span in multimodal {
        begins.entry(span.start).or_default().push(span.hash);
    }
    // The order of the spans must not matter.
    begins.values_mut().for_each(|hashes| hashes.sort_unstable());
    let next =
        tokens.map(|(at, token)| next_token(token, begins.get(&at).map_or(&[], Vec::as_slice)));
    next.collect()
}

/// Content position of a look-ahead block, which takes two positions of a chain: this one, and below it [`leaf`] for
/// the next token. A prompt that ends with the block therefore matches it whatever the next token is.
#[must_use]
pub fn stem(local: LocalHash) -> LocalHash {
    LocalHash(xxh3_64_with_seed(&local.0.to_le_bytes(), LOOK_AHEAD_SEED))
}

/// Next-token position of a look-ahead block, below its [`stem`], for the result of [`next_token`].
#[must_use]
pub fn leaf(next_token: u32) -> LocalHash {
    LocalHash(xxh3_64_with_seed(&next_token.to_le_bytes(), LOOK_AHEAD_SEED))
}

/// Name of the [`stem`] of a look-ahead block, derived from the block's name.
#[must_use]
pub fn stem_name(name: BlockName) -> BlockName {
    BlockName(xxh3_64_with_seed(&name.0.to_le_bytes(), LOOK_AHEAD_SEED))
}

/// Name of a block in a connector's chunk, derived from the chunk's name and the number of following blocks in the
/// chunk. The last block has the chunk's name.
#[must_use]
pub fn chunk_block_name(chunk: BlockName, blocks_after: u32) -> BlockName {
    if blocks_after == 0 {
        return chunk;
    }
    BlockName(xxh3_64_with_seed(&chunk.0.to_le_bytes(), u64::from(blocks_after)))
}

/// Appends the local hashes of all complete blocks of `tokens_le` to `out`. A `block_size` of 0 yields none.
pub fn local_hashes(
    tokens_le: &[u8],
    block_size: usize,
    seed: Seed,
    multimodal: &[MultimodalSpan],
    out: &mut Vec<LocalHash>,
) {
    hash_blocks(tokens_le, 4, block_size, seed, multimodal, out);
}

/// [`local_hashes`] for tokens of which some are beyond 32 bits.
pub fn wide_local_hashes(
    tokens: &[u64],
    block_size: usize,
    seed: Seed,
    multimodal: &[MultimodalSpan],
    out: &mut Vec<LocalHash>,
) {
    let tokens_le: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    hash_blocks(&tokens_le, 8, block_size, seed, multimodal, out);
}

/// Hashes the blocks of tokens with the given number of bytes per token.
fn hash_blocks(
    tokens_le: &[u8],
    width: usize,
    block_size: usize,
    seed: Seed,
    multimodal: &[MultimodalSpan],
    out: &mut Vec<LocalHash>,
) {
    if block_size == 0 {
        return;
    }
    let blocks = tokens_le.chunks_exact(block_size.saturating_mul(width));
    out.reserve(blocks.len());
    let hash = |block: &[u8], extras: &[u64]| {
        if width == 8 {
            wide_local_hash(block, extras, seed)
        } else {
            local_hash(block, extras, seed)
        }
    };
    if multimodal.is_empty() {
        out.extend(blocks.map(|block| hash(block, &[])));
        return;
    }
    let mut spans: Vec<&MultimodalSpan> = multimodal.iter().collect();
    spans.sort_unstable_by_key(|span| span.start);
    let mut spans = spans.into_iter().peekable();
    let mut open: Vec<&MultimodalSpan> = Vec::new();
    let mut extras = Vec::new();
    for (index, block) in blocks.enumerate() {
        let start = index * block_size;
        let end = (index + 1) * block_size;
        open.retain(|span| start < span.end);
        while let Some(span) = spans.next_if(|span| span.start < end) {
            open.push(span);
        }
        extras.clear();
        extras.extend(open.iter().filter(|span| start < span.end).map(|span| span.hash));
        extras.sort_unstable();
        out.push(hash(block, &extras));
    }
}

/// Number of buckets. It must never change, because subjects and shard maps name buckets.
pub const BUCKETS: usize = 256;

/// The bucket of a worker, below [`BUCKETS`]. It must never change: shards own buckets, and a worker moves with its
/// bucket.
#[must_use]
pub fn bucket(worker: &WorkerId) -> u8 {
    let [lowest, ..] = xxh3_64(worker.as_str().as_bytes()).to_le_bytes();
    lowest
}

const _: () = assert!(BUCKETS == 1 << u8::BITS);

/// Canonical sequence hash of a block whose parent has the sequence hash `parent`; none for a first block.
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
