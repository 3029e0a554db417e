use super::{
    ConvertError, Problem,
    shared::{
        check_block_size, check_count, check_hash_scheme, check_required, check_text, read_tier,
    },
};
use crate::{
    hash::{MultimodalSpan, Namespace, Seed, local_hashes, multimodal_hash, tokens_le},
    limits::{
        MULTIMODAL_IDENTIFIER_BYTES_MAX, NAME_BYTES_MAX, QUERY_BLOCKS_MAX,
        QUERY_MULTIMODAL_ITEMS_MAX, QUERY_TOKENS_MAX, QUERY_WORKER_IDS_MAX,
    },
    pb,
    types::{
        BlockName, Cursor, DpRank, LocalHash, PartitionKey, SourceState, Tier, TierSet, WorkerId,
    },
};
use prost::bytes::Bytes;
use std::{borrow::Cow, fmt, time::Duration};

/// A checked `FindMatchesRequest`.
#[derive(Debug, Clone)]
pub struct FindQuery {
    /// Index to ask.
    pub partition: PartitionKey,
    /// Block size that the client assumes, in tokens.
    pub block_size: Option<u32>,
    /// The prompt.
    pub input: QueryInput,
    /// Tiers that count; never empty.
    pub tiers: TierSet,
    /// These workers only.
    pub workers: Option<Vec<WorkerId>>,
    /// Leave out workers with fewer matching blocks.
    pub minimum_overlap_blocks: u32,
    /// Return at most this many matches, the best.
    pub top_k: Option<usize>,
    /// Whether what a worker's pools hold counts, too.
    pub shared: bool,
}

/// A prompt in one of the forms a query may give it.
#[derive(Debug, Clone)]
pub enum QueryInput {
    /// Tokens, to be hashed with the partition's block size.
    Tokens {
        /// The tokens.
        tokens: QueryTokens,
        /// Seed of the prompt's LoRA adapter and salt.
        seed: Seed,
        /// Multimodal content; ends within the prompt.
        multimodal: Vec<MultimodalSpan>,
    },
    /// Local hashes of the complete blocks.
    Locals(Vec<LocalHash>),
    /// The engine's own names of the blocks.
    Names(Vec<BlockName>),
}

/// Tokens of a prompt, as received. Its `Debug` form shows their number only: tokens are prompts,
/// and prompts are not logged.
#[derive(Clone)]
pub enum QueryTokens {
    /// One number each.
    Numbers(Vec<u32>),
    /// Little-endian u32, a multiple of 4 bytes.
    LittleEndian(Bytes),
}

impl QueryTokens {
    /// Number of tokens.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::Numbers(tokens) => tokens.len(),
            Self::LittleEndian(bytes) => bytes.len() / 4,
        }
    }

    /// The bytes that are hashed; not copied on little-endian machines.
    #[must_use]
    pub fn as_le(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Numbers(tokens) => tokens_le(tokens),
            Self::LittleEndian(bytes) => Cow::Borrowed(bytes),
        }
    }
}

impl fmt::Debug for QueryTokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueryTokens({})", self.count())
    }
}

/// Tokens fill more blocks than a query may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tokens fill {blocks} blocks, the limit is {QUERY_BLOCKS_MAX}: send fewer")]
pub struct TooManyBlocks {
    /// Complete blocks of the prompt.
    pub blocks: usize,
}

impl QueryInput {
    /// Local hashes of the prompt's complete blocks of `block_size` tokens, computed into `buffer` if the
    /// prompt is given as tokens; none if it is given by names.
    ///
    /// # Errors
    /// If tokens fill more than [`QUERY_BLOCKS_MAX`] blocks.
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
                local_hashes(&tokens.as_le(), block_size, *seed, multimodal, buffer);
                Ok(Some(buffer))
            }
            Self::Locals(locals) => Ok(Some(locals)),
            Self::Names(_) => Ok(None),
        }
    }
}

/// The unchecked fields of a request.
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
}

impl Fields<'_> {
    /// Checks the fields and makes them a query.
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
        let input = read_input(self)?;
        Ok(FindQuery {
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

pub(super) const INPUTS: &str = "token_ids, token_ids_le, local_hashes or sequence_hashes";

fn read_input(request: Fields<'_>) -> Result<QueryInput, ConvertError> {
    let given = [
        !request.token_ids.is_empty(),
        !request.token_ids_le.is_empty(),
        !request.local_hashes.is_empty(),
        !request.sequence_hashes.is_empty(),
    ];
    match given {
        [true, false, false, false] => {
            check_count("token_ids", request.token_ids.len(), QUERY_TOKENS_MAX)?;
            let tokens = QueryTokens::Numbers(request.token_ids);
            let extras = (request.lora_name, request.cache_salt, &*request.multimodal);
            read_tokens(tokens, extras)
        }
        [false, true, false, false] => {
            check_tokens_le("token_ids_le", &request.token_ids_le)?;
            check_count("token_ids_le", request.token_ids_le.len() / 4, QUERY_TOKENS_MAX)?;
            let tokens = QueryTokens::LittleEndian(request.token_ids_le);
            let extras = (request.lora_name, request.cache_salt, &*request.multimodal);
            read_tokens(tokens, extras)
        }
        [false, false, true, false] => {
            check_count("local_hashes", request.local_hashes.len(), QUERY_BLOCKS_MAX)?;
            refuse_extras(&request)?;
            Ok(QueryInput::Locals(request.local_hashes))
        }
        [false, false, false, true] => {
            check_count("sequence_hashes", request.sequence_hashes.len(), QUERY_BLOCKS_MAX)?;
            refuse_extras(&request)?;
            Ok(QueryInput::Names(request.sequence_hashes))
        }
        [false, false, false, false] => Err(ConvertError::new(INPUTS, Problem::Required)),
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
    check_text("cache_salt", cache_salt, NAME_BYTES_MAX)?;
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

/// The answer to one [`FindQuery`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FindAnswer {
    /// Complete blocks of the query.
    pub query_blocks: u32,
    /// Most matching blocks of any worker that passed the filter.
    pub best_overlap_blocks: u32,
    /// Block size of the partition, in tokens.
    pub block_size: u32,
    /// Best first.
    pub matches: Vec<WorkerMatch>,
    /// Ids of workers that are not fully restored yet.
    pub restoring: Vec<WorkerId>,
    /// Pools that hold blocks of the query, by id; none if it does not ask for them.
    pub pools: Vec<PoolState>,
}

/// How much of a query a pool holds, and how fresh that is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolState {
    /// The pool.
    pub pool: WorkerId,
    /// Blocks of the query that it holds, wherever they are in it.
    pub held_blocks: u32,
    /// Worst state among its sources.
    pub state: SourceState,
    /// Whether all sources that feed it are connected; false if there are none.
    pub connected: bool,
    /// Announced batches that are not applied yet.
    pub lag_batches: u64,
    /// Time since it was last confirmed to have nothing newer.
    pub verified_age: Option<Duration>,
}

/// One rank's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMatch {
    /// The worker.
    pub worker: WorkerId,
    /// Its rank.
    pub rank: DpRank,
    /// Leading blocks of the query that it holds.
    pub blocks: u32,
    /// Leading blocks of the query that are expected there because of placements.
    pub speculative_blocks: u32,
    /// How many of its `blocks` are in each tier, by [`Tier::index`].
    pub by_tier: [u32; Tier::COUNT],
    /// How many of its `blocks` have each tier as their best one: with `pool_blocks`, the sum is `blocks`.
    pub by_best_tier: [u32; Tier::COUNT],
    /// How many of its `blocks` only a pool of the worker holds.
    pub pool_blocks: u32,
    /// Worst state among its sources.
    pub state: SourceState,
    /// Cursor of that source.
    pub applied: Option<Cursor>,
    /// Announced batches of it that are not applied yet.
    pub lag_batches: u64,
    /// Time since it was last confirmed to have nothing newer.
    pub verified_age: Option<Duration>,
    /// Blocks of the rank that the index lacks because of its byte budget.
    pub shed_blocks: u64,
    /// Whether all sources that feed the rank are connected; false if there are none.
    pub connected: bool,
}

impl WorkerMatch {
    /// Leading blocks of the query that it holds or is expected to hold: matches are sorted by this.
    #[must_use]
    pub fn expected_blocks(&self) -> u32 {
        self.blocks.max(self.speculative_blocks)
    }
}

#[cfg(test)]
#[path = "find_test.rs"]
mod tests;
