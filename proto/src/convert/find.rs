use super::shared::{
    check_block_size, check_count, check_hash_scheme, check_range, check_required, check_text,
    read_tier,
};
use super::{ConvertError, Problem};
use crate::hash::{
    MultimodalSpan, Namespace, Seed, leaf, local_hashes, multimodal_hash, next_token, stem,
    tokens_le, wide_local_hashes,
};
use crate::limits::{
    MULTIMODAL_IDENTIFIER_BYTES_MAX, NAME_BYTES_MAX, QUERY_BLOCKS_MAX, QUERY_MULTIMODAL_ITEMS_MAX,
    QUERY_TOKENS_MAX, QUERY_WORKER_IDS_MAX, SALT_BYTES_MAX,
};
use crate::pb;
use crate::types::{BlockName, LocalHash, PartitionKey, Tier, TierSet, WorkerId};
use prost::bytes::Bytes;
use std::fmt;

/// A checked `FindMatchesRequest`.
#[derive(Debug, Clone)]
pub struct FindQuery {
    /// The partition to query.
    pub partition: PartitionKey,
    /// Block size that the client assumes, in tokens.
    pub block_size: Option<u32>,
    /// The prompt.
    pub input: QueryInput,
    /// Tiers that count; never empty.
    pub tiers: TierSet,
    /// Only these workers; none for all workers.
    pub workers: Option<Vec<WorkerId>>,
    /// Leave out workers with fewer matching blocks.
    pub minimum_overlap_blocks: u32,
    /// Maximum number of matches, the best ones.
    pub top_k: Option<usize>,
    /// Whether blocks in a worker's pools count, too.
    pub shared: bool,
    /// For a prompt given by local hashes: the [`next_token`](crate::hash::next_token) after each block, required for
    /// workers whose hashes cover that token. None if unknown.
    pub next_tokens: Option<Vec<u32>>,
    /// Whether to return the reasons of states.
    pub explain: bool,
    /// Tokens of a prompt given by hashes. None: the prompt goes on after its last block.
    pub prompt_tokens: Option<u32>,
}

/// The prompt of a query, in one of its forms.
#[derive(Debug, Clone)]
pub enum QueryInput {
    /// Tokens, to be hashed with the partition's block size.
    Tokens {
        /// The tokens.
        tokens: QueryTokens,
        /// Seed of the prompt's LoRA adapter and salt.
        seed: Seed,
        /// Multimodal content, within the prompt.
        multimodal: Vec<MultimodalSpan>,
    },
    /// Local hashes of the complete blocks.
    Locals(Vec<LocalHash>),
    /// The engine's own names of the blocks.
    Names(Vec<BlockName>),
}

/// Tokens of a prompt, as received. `Debug` shows only their number: prompts are not logged.
#[derive(Clone)]
pub enum QueryTokens {
    /// One number per token.
    Numbers(Vec<u32>),
    /// Little-endian u32 per token; the length is a multiple of 4 bytes.
    LittleEndian(Bytes),
    /// One number per token; some numbers are beyond 32 bits.
    Wide(Vec<u64>),
}

impl QueryTokens {
    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Numbers(tokens) => tokens.len(),
            Self::LittleEndian(bytes) => bytes.len() / 4,
            Self::Wide(tokens) => tokens.len(),
        }
    }

    /// The token at `index`; none past the end, or if the token is beyond 32 bits.
    fn get(&self, index: usize) -> Option<u32> {
        match self {
            Self::Numbers(tokens) => tokens.get(index).copied(),
            Self::LittleEndian(bytes) => {
                let (tokens, _no_rest) = bytes.as_chunks();
                tokens.get(index).map(|token| u32::from_le_bytes(*token))
            }
            Self::Wide(tokens) => u32::try_from(*tokens.get(index)?).ok(),
        }
    }
}

impl fmt::Debug for QueryTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueryTokens({})", self.count())
    }
}

/// The tokens fill more blocks than a query may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tokens fill {blocks} blocks, the limit is {QUERY_BLOCKS_MAX}: send fewer")]
pub struct TooManyBlocks {
    /// Complete blocks of the prompt.
    pub blocks: usize,
}

impl QueryInput {
    /// Local hashes of the prompt's complete blocks of `block_size` tokens. Tokens are hashed into `buffer`. None for a
    /// prompt given by names.
    ///
    /// # Errors
    /// If the tokens fill more than [`QUERY_BLOCKS_MAX`] blocks.
    pub fn local_hashes<'a>(
        &'a self,
        block_size: u32,
        buffer: &'a mut Vec<LocalHash>,
    ) -> Result<Option<&'a [LocalHash]>, TooManyBlocks> {
        match self {
            Self::Tokens { tokens, seed, multimodal } => {
                let block_size = usize::try_from(block_size).unwrap_or(usize::MAX);
                let blocks = tokens.count() / block_size.max(1);
                if blocks > QUERY_BLOCKS_MAX {
                    return Err(TooManyBlocks { blocks });
                }
                buffer.clear();
                match tokens {
                    QueryTokens::Wide(tokens) => {
                        wide_local_hashes(tokens, block_size, *seed, multimodal, buffer);
                    }
                    QueryTokens::Numbers(tokens) => {
                        local_hashes(&tokens_le(tokens), block_size, *seed, multimodal, buffer);
                    }
                    QueryTokens::LittleEndian(bytes) => {
                        local_hashes(bytes, block_size, *seed, multimodal, buffer);
                    }
                }
                Ok(Some(buffer))
            }
            Self::Locals(locals) => Ok(Some(locals)),
            Self::Names(_) => Ok(None),
        }
    }
}

impl QueryInput {
    /// The [`next_token`] after each complete block of a prompt given as tokens. If the prompt ends with the last
    /// block, that block has no entry. Empty for a prompt given by hashes.
    #[must_use]
    pub fn next_tokens(&self, block_size: u32) -> Vec<u32> {
        let Self::Tokens { tokens, multimodal, .. } = self else { return Vec::new() };
        let block_size = usize::try_from(block_size).unwrap_or(usize::MAX).max(1);
        let ends = (1..=tokens.count() / block_size).map(|blocks| blocks * block_size);
        let next = ends.map_while(|end| match next_of(tokens, multimodal, end) {
            Next::Token(token) => Some(token),
            // A placeholder: engines with such hashes have no token beyond 32 bits.
            Next::Wide => Some(u32::MAX),
            Next::End => None,
        });
        next.collect()
    }
}

impl FindQuery {
    /// Number of tokens of the prompt; none if it goes on after its last block.
    #[must_use]
    pub fn prompt_tokens(&self) -> Option<u32> {
        match &self.input {
            QueryInput::Tokens { tokens, .. } => u32::try_from(tokens.count()).ok(),
            QueryInput::Locals(_) | QueryInput::Names(_) => self.prompt_tokens,
        }
    }

    /// Positions of the prompt at workers whose hashes cover the token after each block. Each block has two: its stem,
    /// then its leaf, unless the prompt ends with the block. `locals` are the prompt's local hashes. Returns false if
    /// the tokens after the blocks are unknown.
    pub fn look_ahead_positions(
        &self,
        block_size: u32,
        locals: &[LocalHash],
        out: &mut Vec<LocalHash>,
    ) -> bool {
        out.clear();
        let block_size = usize::try_from(block_size).unwrap_or(usize::MAX);
        let is_known = match (&self.input, &self.next_tokens) {
            (QueryInput::Tokens { .. }, _) => true,
            (QueryInput::Locals(_), Some(next)) => next.len() + 1 >= locals.len(),
            // The prompt ends with its only block.
            (QueryInput::Locals(_), None) => {
                let tokens = self.prompt_tokens.and_then(|tokens| usize::try_from(tokens).ok());
                locals.len() == 1 && tokens.is_none_or(|tokens| tokens <= block_size)
            }
            (QueryInput::Names(_), _) => false,
        };
        if !is_known {
            return false;
        }
        for (at, &local) in locals.iter().enumerate() {
            let next = match &self.input {
                QueryInput::Tokens { tokens, multimodal, .. } => {
                    next_of(tokens, multimodal, (at + 1).saturating_mul(block_size))
                }
                QueryInput::Locals(_) | QueryInput::Names(_) => {
                    let next = self.next_tokens.as_ref().and_then(|next| next.get(at));
                    next.map_or(Next::End, |&next| Next::Token(next))
                }
            };
            match next {
                Next::Token(next) => out.extend([stem(local), leaf(next)]),
                Next::End => out.push(stem(local)),
                // No engine can have hashed this token.
                Next::Wide => break,
            }
        }
        true
    }
}

/// The token after a block of a prompt.
enum Next {
    Token(u32),
    /// The prompt ends with the block.
    End,
    /// A token beyond 32 bits.
    Wide,
}

fn next_of(tokens: &QueryTokens, multimodal: &[MultimodalSpan], index: usize) -> Next {
    if index >= tokens.count() {
        return Next::End;
    }
    let Some(token) = tokens.get(index) else { return Next::Wide };
    let begins = multimodal.iter().filter(|span| span.start == index).map(|span| span.hash);
    let mut begins: Vec<u64> = begins.collect();
    begins.sort_unstable();
    Next::Token(next_token(token, &begins))
}

/// Unchecked fields of a request.
#[derive(Default)]
pub(super) struct Fields<'a> {
    pub(super) request_id: u64,
    pub(super) model: &'a str,
    pub(super) tenant: &'a str,
    pub(super) lora_name: &'a str,
    pub(super) cache_salt: &'a str,
    pub(super) block_size: Option<u32>,
    pub(super) hash_scheme: Option<&'a str>,
    pub(super) token_ids: Vec<u32>,
    pub(super) token_ids_le: Bytes,
    pub(super) local_hashes: Vec<LocalHash>,
    pub(super) sequence_hashes: Vec<BlockName>,
    pub(super) multimodal: Vec<pb::MultimodalItem>,
    pub(super) tiers: Vec<i32>,
    pub(super) worker_ids: Vec<&'a str>,
    pub(super) minimum_overlap_blocks: Option<u32>,
    pub(super) top_k: u32,
    pub(super) shared: bool,
    pub(super) next_tokens_le: Bytes,
    pub(super) wide_token_ids: Vec<u64>,
    pub(super) explain: bool,
    pub(super) prompt_tokens: Option<u32>,
}

impl Fields<'_> {
    /// Checks the fields and builds a query.
    pub(super) fn check(self) -> Result<FindQuery, ConvertError> {
        let partition = PartitionKey::new(self.model, self.tenant)?;
        let block_size = self.block_size.map(check_block_size).transpose()?;
        check_hash_scheme(self.hash_scheme)?;
        let tiers = read_tiers(&self.tiers)?;
        let workers = read_workers(&self.worker_ids)?;
        let minimum_overlap_blocks = self.minimum_overlap_blocks.unwrap_or(1);
        let top_k = match self.top_k {
            0 => None,
            count => Some(usize::try_from(count).unwrap_or(usize::MAX)),
        };
        let shared = self.shared;
        let explain = self.explain;
        let next_tokens = read_next_tokens(&self)?;
        let prompt_tokens = read_prompt_tokens(&self)?;
        let input = read_input(self)?;
        Ok(FindQuery {
            next_tokens,
            prompt_tokens,
            explain,
            partition,
            block_size,
            input,
            tiers,
            workers,
            minimum_overlap_blocks,
            top_k,
            shared,
        })
    }
}

fn read_next_tokens(request: &Fields<'_>) -> Result<Option<Vec<u32>>, ConvertError> {
    const FIELD: &str = "next_tokens_le";
    let bytes = &request.next_tokens_le;
    if bytes.is_empty() {
        return Ok(None);
    }
    check_tokens_le(FIELD, bytes)?;
    let (tokens, _no_rest) = bytes.as_chunks();
    let blocks = request.local_hashes.len();
    if tokens.len() != blocks && tokens.len() + 1 != blocks {
        let actual = format!("has {} tokens for {blocks} local_hashes", tokens.len());
        let expected = "a token for each, or for each but the last".to_owned();
        return Err(ConvertError::new(FIELD, Problem::Mismatch { actual, expected }));
    }
    Ok(Some(tokens.iter().map(|token| u32::from_le_bytes(*token)).collect()))
}

/// Checks the number of tokens of a prompt given by hashes.
fn read_prompt_tokens(request: &Fields<'_>) -> Result<Option<u32>, ConvertError> {
    const FIELD: &str = "prompt_tokens";
    let Some(tokens) = request.prompt_tokens else { return Ok(None) };
    let has_hashes = !request.local_hashes.is_empty() || !request.sequence_hashes.is_empty();
    if !has_hashes {
        return Err(ConvertError::new(FIELD, Problem::Unexpected("with tokens: they are counted")));
    }
    check_range(FIELD, tokens.into(), 1, QUERY_TOKENS_MAX as u64)?;
    Ok(Some(tokens))
}

fn read_tiers(tiers: &[i32]) -> Result<TierSet, ConvertError> {
    if tiers.is_empty() {
        return Ok(TierSet::ALL);
    }
    check_count("tiers", tiers.len(), Tier::COUNT)?;
    tiers
        .iter()
        .enumerate()
        .map(|(index, &tier)| read_tier(&format!("tiers[{index}]"), tier, None))
        .collect()
}

fn read_workers(ids: &[&str]) -> Result<Option<Vec<WorkerId>>, ConvertError> {
    check_count("worker_ids", ids.len(), QUERY_WORKER_IDS_MAX)?;
    if ids.is_empty() {
        return Ok(None);
    }
    let workers = ids.iter().enumerate().map(|(index, id)| {
        WorkerId::new(id).map_err(|error| ConvertError {
            field: format!("worker_ids[{index}]"),
            ..ConvertError::from(error)
        })
    });
    workers.collect::<Result<_, _>>().map(Some)
}

pub(super) const INPUTS: &str =
    "token_ids, token_ids_le, wide_token_ids, local_hashes or sequence_hashes";

fn read_input(request: Fields<'_>) -> Result<QueryInput, ConvertError> {
    let given = [
        !request.token_ids.is_empty(),
        !request.token_ids_le.is_empty(),
        !request.local_hashes.is_empty(),
        !request.sequence_hashes.is_empty(),
        !request.wide_token_ids.is_empty(),
    ];
    match given {
        [false, false, false, false, true] => {
            check_count("wide_token_ids", request.wide_token_ids.len(), QUERY_TOKENS_MAX)?;
            let tokens = QueryTokens::Wide(request.wide_token_ids);
            let extras = (request.lora_name, request.cache_salt, &*request.multimodal);
            read_tokens(tokens, extras)
        }
        [true, false, false, false, false] => {
            check_count("token_ids", request.token_ids.len(), QUERY_TOKENS_MAX)?;
            let tokens = QueryTokens::Numbers(request.token_ids);
            let extras = (request.lora_name, request.cache_salt, &*request.multimodal);
            read_tokens(tokens, extras)
        }
        [false, true, false, false, false] => {
            check_tokens_le("token_ids_le", &request.token_ids_le)?;
            check_count("token_ids_le", request.token_ids_le.len() / 4, QUERY_TOKENS_MAX)?;
            let tokens = QueryTokens::LittleEndian(request.token_ids_le);
            let extras = (request.lora_name, request.cache_salt, &*request.multimodal);
            read_tokens(tokens, extras)
        }
        [false, false, true, false, false] => {
            check_count("local_hashes", request.local_hashes.len(), QUERY_BLOCKS_MAX)?;
            refuse_extras(&request)?;
            Ok(QueryInput::Locals(request.local_hashes))
        }
        [false, false, false, true, false] => {
            check_count("sequence_hashes", request.sequence_hashes.len(), QUERY_BLOCKS_MAX)?;
            refuse_extras(&request)?;
            Ok(QueryInput::Names(request.sequence_hashes))
        }
        [false, false, false, false, false] => Err(ConvertError::new(INPUTS, Problem::Required)),
        _ => {
            let set = given.iter().filter(|set| **set).count();
            let actual = format!("are {set} inputs");
            Err(ConvertError::new(
                INPUTS,
                Problem::Mismatch { actual, expected: "exactly one".to_owned() },
            ))
        }
    }
}

pub(super) fn check_tokens_le(field: &str, bytes: &[u8]) -> Result<(), ConvertError> {
    if bytes.len().is_multiple_of(4) {
        return Ok(());
    }
    let actual = format!("has {} bytes", bytes.len());
    let expected = "a multiple of 4: little-endian u32".to_owned();
    Err(ConvertError::new(field, Problem::Mismatch { actual, expected }))
}

fn read_tokens(
    tokens: QueryTokens,
    (lora_name, cache_salt, items): (&str, &str, &[pb::MultimodalItem]),
) -> Result<QueryInput, ConvertError> {
    check_text("lora_name", lora_name, NAME_BYTES_MAX)?;
    check_text("cache_salt", cache_salt, SALT_BYTES_MAX)?;
    check_count("multimodal", items.len(), QUERY_MULTIMODAL_ITEMS_MAX)?;
    let spans = items.iter().enumerate().map(|(index, item)| {
        read_span(item, tokens.count())
            .map_err(|error| error.within(format!("multimodal[{index}]")))
    });
    let mut multimodal = spans.collect::<Result<Vec<MultimodalSpan>, _>>()?;
    multimodal.sort_unstable_by_key(|span| span.start);
    for (before, after) in multimodal.iter().zip(multimodal.iter().skip(1)) {
        if after.start < before.end {
            let actual = format!("has two items at token {}", after.start);
            let expected = "items that do not overlap".to_owned();
            return Err(ConvertError::new("multimodal", Problem::Mismatch { actual, expected }));
        }
    }
    Ok(QueryInput::Tokens { tokens, seed: Namespace { lora_name, cache_salt }.seed(), multimodal })
}

fn read_span(item: &pb::MultimodalItem, tokens: usize) -> Result<MultimodalSpan, ConvertError> {
    check_required("identifier", &item.identifier, MULTIMODAL_IDENTIFIER_BYTES_MAX)?;
    if item.token_count == 0 {
        return Err(ConvertError::new("token_count", Problem::Required));
    }
    let end = u64::from(item.token_offset) + u64::from(item.token_count);
    match (usize::try_from(item.token_offset), usize::try_from(end)) {
        (Ok(start), Ok(end)) if end <= tokens => {
            Ok(MultimodalSpan { hash: multimodal_hash(&item.identifier), start, end })
        }
        _ => {
            let actual = format!("ends at token {end}");
            let expected = format!("within the prompt's {tokens} tokens");
            Err(ConvertError::new("token_count", Problem::Mismatch { actual, expected }))
        }
    }
}

fn refuse_extras(request: &Fields<'_>) -> Result<(), ConvertError> {
    const REASON: &str = "with hashes: they contain it; send tokens instead";
    let extras = [
        ("lora_name", request.lora_name.is_empty()),
        ("cache_salt", request.cache_salt.is_empty()),
        ("multimodal", request.multimodal.is_empty()),
    ];
    match extras.iter().find(|(_, empty)| !empty) {
        Some((field, _)) => Err(ConvertError::new(*field, Problem::Unexpected(REASON))),
        None => Ok(()),
    }
}

#[cfg(test)]
#[path = "find_test.rs"]
mod tests;
