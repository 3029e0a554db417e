use super::ahead::Ahead;
use super::pools::{self, Asked};
use super::size::{SMALL, Small};
use super::{QueryError, QueryMetrics, speculative};
use crate::partitions::{Origin, Partition, Partitions};
use kvasir_index::{
    HolderView, Index, Match, PlacedScratch, Prompt, Query, QueryKey, Reuse, Scratch, SharedBlocks,
};
use kvasir_proto::convert::{FindAnswer, FindQuery, QueryInput, WorkerMatch};
use kvasir_proto::types::{LocalHash, PartitionKey, SourceState, SourceStatus, Tier, WorkerKey};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of model names in the error for an unknown model.
const MODELS_NAMED_MAX: usize = 8;

/// Answers queries.
#[derive(Debug, Clone)]
pub struct Finder {
    partitions: Arc<Partitions>,
    origin: Origin,
    metrics: QueryMetrics,
}

/// Buffers of one thread's lookups, reused between queries.
#[derive(Default)]
struct Workspace {
    scratch: Scratch,
    placed: PlacedScratch,
    locals: Vec<LocalHash>,
    shared: SharedBlocks,
    ahead: Ahead,
}

thread_local! {
    static WORKSPACE: RefCell<Workspace> = RefCell::default();
}

impl Finder {
    /// Creates a finder that reads `partitions`.
    #[must_use]
    pub const fn new(partitions: Arc<Partitions>, origin: Origin, metrics: QueryMetrics) -> Self {
        Self { partitions, origin, metrics }
    }

    /// Returns the partition of a model and tenant.
    ///
    /// # Errors
    /// If no worker of that model and tenant is registered.
    pub fn partition(&self, key: &PartitionKey) -> Result<Arc<Partition>, QueryError> {
        self.partitions.get(key).ok_or_else(|| {
            let known = self.partitions.list().into_iter();
            let models = known
                .filter(|partition| partition.key().tenant() == key.tenant())
                .map(|partition| partition.key().model().to_owned())
                .take(MODELS_NAMED_MAX)
                .collect();
            QueryError::UnknownPartition { key: key.clone(), models }
        })
    }

    /// Scores a prompt against every worker of its partition. May take long: do not call it on a runtime thread. `None`
    /// as soon as `is_wanted` is false.
    ///
    /// # Errors
    /// If the partition is unknown, has another block size, or the query is too long for it.
    pub fn find(
        &self,
        query: &FindQuery,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<FindAnswer>, QueryError> {
        self.find_within(query, None, is_wanted)
    }

    /// Like [`find`](Self::find), for small queries only. Takes microseconds, plus at most one critical section of the
    /// writer. `None` for a large query, which may take milliseconds.
    ///
    /// # Errors
    /// See [`find`](Self::find).
    pub fn find_small(&self, query: &FindQuery) -> Result<Option<FindAnswer>, QueryError> {
        self.find_within(query, Some(SMALL), || true)
    }

    /// Answers a query. Returns `None` if the query exceeds `limits`, so that it must run on another thread, or if
    /// `is_wanted` is false.
    fn find_within(
        &self,
        query: &FindQuery,
        limits: Option<Small>,
        is_wanted: impl Fn() -> bool,
    ) -> Result<Option<FindAnswer>, QueryError> {
        let begin = Instant::now();
        let partition = self.partition(&query.partition)?;
        check_block_size(query, partition.block_size())?;
        if limits.is_some_and(|limits| limits.are_exceeded(query, &partition)) {
            return Ok(None);
        }
        let now = self.origin.since(begin);
        let answer = WORKSPACE.with_borrow_mut(|workspace| {
            find_in(&partition, query, now, limits, workspace, is_wanted)
        })?;
        if let Some(answer) = &answer {
            self.metrics.count(answer.query_blocks, answer.best_overlap_blocks, begin.elapsed());
        }
        Ok(answer)
    }
}

/// Answers a query from a partition. Returns `None` if `is_wanted` is false, or if the answer exceeds the limits.
fn find_in(
    partition: &Partition,
    query: &FindQuery,
    now: Duration,
    limits: Option<Small>,
    workspace: &mut Workspace,
    is_wanted: impl Fn() -> bool,
) -> Result<Option<FindAnswer>, QueryError> {
    let present = partition.block_size();
    let Workspace { scratch, placed, locals, shared, ahead } = workspace;
    ahead.reset();
    let (key, blocks) = key(&query.input, present, locals)?;
    let at = (now, query.explain);
    let placed = match key {
        // Blocks of a placement will be in device memory.
        QueryKey::Locals(locals) if query.tiers.contains(Tier::Device) => {
            partition.find_speculative(locals, now, placed)
        }
        QueryKey::Locals(_) | QueryKey::Names(_) => &[],
    };
    // Overlaps below the requested minimum are needed, too: the answer reports the best overlap.
    let minimum_overlap = query.minimum_overlap_blocks.min(1);
    // Speculative blocks may change the order and the set of workers.
    let (top_k, at_least) = if placed.is_empty() {
        (query.top_k.unwrap_or(usize::MAX), query.minimum_overlap_blocks)
    } else {
        (usize::MAX, minimum_overlap)
    };
    let workers = query.workers.as_deref();
    let asked = pools::collect_inputs(partition, query, key, shared, now, &is_wanted);
    let Some(Asked { shared, pools, restoring }) = asked else { return Ok(None) };
    let prompt = Prompt { block_size: present, tokens: query.prompt_tokens() };
    let requested =
        Query { key, tiers: query.tiers, workers, minimum_overlap, shared, prompt: Some(prompt) };
    let mut best_overlap_blocks = 0;
    let mut matches = Vec::new();
    for shard in partition.shards() {
        let index = shard.read();
        if !is_wanted() || !index.find_while(requested, scratch, &is_wanted) {
            return Ok(None);
        }
        let asked = (query, present);
        let found = ahead.add(&index, asked, requested, scratch.matches(), &is_wanted);
        let Some(found) = found else { return Ok(None) };
        let best = found.first().map_or(0, |best| best.blocks);
        best_overlap_blocks = best_overlap_blocks.max(best);
        let wanted = found.partition_point(|at| at.blocks >= at_least);
        let wanted = wanted.min(top_k);
        if limits.is_some_and(|limits| matches.len() + wanted > limits.matches) {
            return Ok(None);
        }
        matches.reserve(wanted);
        let listed = found.iter().take(wanted);
        matches.extend(listed.filter_map(|found| worker_match(&index, found, prompt, at)));
    }
    if partition.shards().len() > 1 {
        merge_shards(&mut matches, top_k);
    }
    if !placed.is_empty() {
        let unconfirmed = |key: &WorkerKey| unconfirmed(partition, key, at);
        speculative::add(&mut matches, placed, query, unconfirmed);
    }
    Ok(Some(FindAnswer {
        query_blocks: blocks,
        best_overlap_blocks,
        block_size: present,
        matches,
        restoring,
        pools,
        wants_next_tokens: ahead.is_lacking(),
    }))
}

fn check_block_size(query: &FindQuery, present: u32) -> Result<(), QueryError> {
    match query.block_size.filter(|requested| *requested != present) {
        Some(requested) => Err(QueryError::BlockSize { present, requested }),
        None => Ok(()),
    }
}

/// Orders the answers of several shards like the answer of one. Each worker is in one shard, so together they are
/// complete.
fn merge_shards(matches: &mut Vec<WorkerMatch>, top_k: usize) {
    matches.sort_by(|a, b| {
        let blocks = b.blocks.cmp(&a.blocks);
        blocks.then_with(|| a.worker.cmp(&b.worker)).then(a.rank.cmp(&b.rank))
    });
    matches.truncate(top_k);
}

/// Returns the lookup key of a query, and its number of blocks. Tokens are hashed into `buffer`.
fn key<'a>(
    input: &'a QueryInput,
    block_size: u32,
    buffer: &'a mut Vec<LocalHash>,
) -> Result<(QueryKey<'a>, u32), QueryError> {
    let (key, blocks) = match input {
        QueryInput::Names(names) => (QueryKey::Names(names), names.len()),
        QueryInput::Tokens { .. } | QueryInput::Locals(_) => {
            let locals = input.local_hashes(block_size, buffer)?.unwrap_or_default();
            (QueryKey::Locals(locals), locals.len())
        }
    };
    // All three inputs are limited to QUERY_BLOCKS_MAX.
    Ok((key, u32::try_from(blocks).unwrap_or(u32::MAX)))
}

/// Builds the answer for a rank with matching blocks. Returns `None` if the rank was removed.
fn worker_match(
    index: &Index,
    found: &Match,
    prompt: Prompt,
    now: (Duration, bool),
) -> Option<WorkerMatch> {
    let holder = index.holder(found.holder)?;
    let reuse = found.reuse.unwrap_or_else(|| reuse_blocks(found.blocks, prompt));
    let key = WorkerKey { worker: holder.worker().clone(), rank: holder.rank() };
    Some(WorkerMatch {
        blocks: found.blocks,
        main_group_blocks: reuse.main_group_blocks,
        reusable_tokens: reuse.tokens,
        by_tier: found.by_tier,
        by_best_tier: found.by_best_tier,
        pool_blocks: found.pool_blocks,
        ..confirmed_by(key, holder, now)
    })
}

/// What an engine with one KV-cache group reuses of `blocks` cached blocks: whole blocks, without the last token of the
/// prompt.
fn reuse_blocks(blocks: u32, prompt: Prompt) -> Reuse {
    let block_size = u64::from(prompt.block_size.max(1));
    let before_last = prompt.tokens.map_or(u64::MAX, |tokens| u64::from(tokens.saturating_sub(1)));
    let tokens = u64::from(blocks).min(before_last / block_size) * block_size;
    Reuse { main_group_blocks: blocks, tokens }
}

/// Builds the answer for a rank with the state of its sources, but zero blocks. `explain` adds the reasons of the
/// state.
fn confirmed_by(
    key: WorkerKey,
    holder: HolderView<'_>,
    (now, explain): (Duration, bool),
) -> WorkerMatch {
    let nothing = nothing_held(key, holder.worst_source(), now);
    let state =
        if holder.is_partial() { nothing.state.max(SourceState::Partial) } else { nothing.state };
    let reasons = if explain { holder.reasons() } else { Vec::new() };
    let reasons = reasons.into_iter().map(|seen| {
        let is_known = seen.since > Duration::ZERO;
        let age = is_known.then(|| now.saturating_sub(seen.since));
        (seen, age)
    });
    WorkerMatch {
        shed_blocks: holder.shed_blocks(),
        state,
        may_be_high: holder.may_be_high(),
        reasons: reasons.collect(),
        ..nothing
    }
}

/// The answer for a rank without confirmed blocks, with or without events.
fn unconfirmed(partition: &Partition, key: &WorkerKey, now: (Duration, bool)) -> WorkerMatch {
    let index = partition.shard_of(&key.worker).read();
    let mut ranks = index.worker(&key.worker).into_iter().flat_map(|worker| worker.holders());
    let Some(holder) = ranks.find(|holder| holder.rank() == key.rank) else {
        return nothing_held(key.clone(), (None, false), now.0);
    };
    confirmed_by(key.clone(), holder, now)
}

/// Builds the answer for a rank with zero blocks and the given status.
fn nothing_held(
    key: WorkerKey,
    (status, connected): (Option<&SourceStatus>, bool),
    now: Duration,
) -> WorkerMatch {
    let verified_at = status.and_then(|status| status.verified_at);
    WorkerMatch {
        worker: key.worker,
        rank: key.rank,
        blocks: 0,
        main_group_blocks: 0,
        reusable_tokens: 0,
        speculative_blocks: 0,
        by_tier: [0; Tier::COUNT],
        by_best_tier: [0; Tier::COUNT],
        pool_blocks: 0,
        state: status.map_or(SourceState::Cold, |status| status.state),
        applied: status.and_then(|status| status.applied),
        lag_batches: status.map_or(0, SourceStatus::lag_batches),
        verified_age: verified_at.map(|at| now.saturating_sub(at)),
        shed_blocks: 0,
        connected,
        may_be_high: false,
        reasons: Vec::new(),
    }
}
