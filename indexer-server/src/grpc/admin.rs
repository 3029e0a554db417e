use super::Parts;
use crate::partitions::{Partition, SPECULATIVE_OUTCOMES};
use crate::query::{SourceView, describe};
use kvasir_access::Principal;
use kvasir_process::telemetry::VERSION;
use kvasir_proto::convert::{self, ListQuery, Registration, page_token};
use kvasir_proto::limits::LIST_PAGE_BYTES_MAX;
use kvasir_proto::pb;
use kvasir_proto::types::{PartitionKey, SourceState, SourceStatus};
use prost::Message;
use std::ops::ControlFlow;

/// Builds one page of `ListWorkers`, with the workers that the caller may see.
pub(super) fn list(
    parts: &Parts,
    principal: &Principal,
    query: &ListQuery,
) -> pb::ListWorkersResponse {
    let shard = shard(parts);
    let server_id = parts.server_id;
    let mut page = pb::ListWorkersResponse { shard, server_id, ..Default::default() };
    let mut bytes = 0;
    let mut last = None;
    let sees = |key: &PartitionKey| principal.sees(key.tenant(), key.model());
    parts.ingest.visit(query, sees, |registration| {
        let worker = worker(parts, registration);
        let after = bytes + worker.encoded_len();
        // A page has at least one worker: each worker fits into a page.
        let is_full = page.workers.len() >= query.page_size || after > LIST_PAGE_BYTES_MAX;
        if is_full && let Some(last) = last.take() {
            page.next_page_token = last;
            return ControlFlow::Break(());
        }
        (bytes, last) = (after, Some(page_token(registration)));
        page.workers.push(worker);
        ControlFlow::Continue(())
    });
    page
}

fn shard(parts: &Parts) -> Option<pb::ShardInfo> {
    parts.ingest.shard().map(|shard| convert::shard_info(shard.place, &shard.map))
}

/// Describes a worker: its registration, ranks and sources, also sources that are still to be restored.
fn worker(parts: &Parts, registration: &Registration) -> pb::WorkerInfo {
    // Read before the index: a source that is no longer awaited is already in the index.
    let awaited = parts.ingest.awaited_sources(&registration.address());
    let partition = parts.partitions.get(&registration.partition);
    let describe = |at: &Partition| describe(at, &registration.worker, parts.origin);
    let description = partition.as_deref().map(describe).unwrap_or_default();
    let ranks = description.ranks.iter().map(|rank| pb::RankInfo {
        dp_rank: rank.rank,
        placed_blocks: rank.placed_blocks,
        parked_blocks: rank.parked_blocks,
        shed_blocks: rank.shed_blocks,
    });
    let is_there = |name: &String| description.sources.iter().any(|view| view.name == *name);
    let awaited: Vec<_> = awaited.into_iter().filter(|name| !is_there(name)).collect();
    let sources = description.sources.into_iter().chain(awaited.into_iter().map(on_its_way));
    let sources = sources.map(|view| source(registration, view));
    pb::WorkerInfo {
        worker_id: registration.worker.as_str().to_owned(),
        model: registration.partition.model().to_owned(),
        tenant: registration.partition.tenant().to_owned(),
        block_size: registration.block_size,
        engine: registration.engine.message().into(),
        ranks: ranks.collect(),
        sources: sources.collect(),
        registration: Some(registration.into()),
    }
}

/// A source whose blocks are still on their way to the index.
fn on_its_way(name: String) -> SourceView {
    let status = SourceStatus { state: SourceState::CatchingUp, ..SourceStatus::default() };
    let reasons = status.all_reasons().into_iter().map(|seen| (seen, None)).collect();
    SourceView { name, status, verified_age: None, reasons }
}

/// Describes a source of a worker.
fn source(registration: &Registration, view: SourceView) -> pb::SourceInfo {
    let endpoint = registration.endpoints.iter().find(|spec| spec.endpoint == view.name);
    let replay = endpoint.and_then(|spec| spec.replay.clone());
    let status = view.status;
    pb::SourceInfo {
        source: view.name,
        replay_endpoint: replay.unwrap_or_default(),
        connected: status.connected,
        state: convert::state(status.state).into(),
        applied: status.applied.map(convert::cursor),
        lag_batches: status.lag_batches(),
        buffered_batches: status.buffered_batches,
        verified_age_ms: view.verified_age.map(convert::age_ms),
        reasons: view.reasons.iter().map(|(seen, age)| convert::state_reason(seen, *age)).collect(),
    }
}

/// Answers `GetStats`. Only callers that may see all partitions get the counts over all partitions.
pub(super) fn stats(parts: &Parts, principal: &Principal) -> pb::GetStatsResponse {
    let mut buffered_batches = 0;
    let mut partitions = Vec::new();
    for partition in parts.partitions.list() {
        if !principal.sees(partition.key().tenant(), partition.key().model()) {
            continue;
        }
        buffered_batches += partition.buffered_batches();
        let stats = partition.stats();
        let key = partition.key();
        let speculative = partition.speculative_size();
        partitions.push(pb::PartitionStats {
            model: key.model().to_owned(),
            tenant: key.tenant().to_owned(),
            block_size: partition.block_size(),
            workers: partition.registered().saturating_sub(partition.pools()),
            blocks: stats.blocks,
            pairs: stats.pairs,
            parked: stats.parked,
            index_bytes: stats.bytes,
            speculative_blocks: speculative.blocks as u64,
            speculative_bytes: speculative.bytes as u64,
            shed_blocks: stats.shed_blocks,
            pools: partition.pools(),
            pool_pairs: partition.pool_pairs(),
        });
    }
    let version = VERSION.to_owned();
    let seen = pb::GetStatsResponse { version, partitions, buffered_batches, ..Default::default() };
    if !principal.sees_all() {
        return seen;
    }
    let budget = parts.partitions.budget();
    let bytes = budget.bytes();
    let shed = budget.shed();
    pb::GetStatsResponse {
        counters: counters(parts),
        queries: parts.query_metrics.queries.get(),
        query_blocks: parts.query_metrics.query_blocks.get(),
        hit_blocks: parts.query_metrics.hit_blocks.get(),
        index_bytes: bytes.allocated as u64,
        index_free_bytes: bytes.free as u64,
        index_bytes_max: budget.limit().map(|bytes| bytes as u64),
        shed_pairs: shed.pairs,
        shed_parked: shed.parked,
        checkpoints: parts.checkpoints.as_ref().map(|checkpoints| {
            let figures = checkpoints.metrics().figures();
            pb::CheckpointStats {
                written: figures.written,
                failed: figures.failed,
                age_ms: figures.age.map(convert::age_ms),
                disk_bytes: figures.disk_bytes,
                error: figures.error,
            }
        }),
        shard: shard(parts),
        ..seen
    }
}

/// Returns all counters of blocks, batches and speculative blocks.
fn counters(parts: &Parts) -> Vec<pb::Counter> {
    let counted = parts.ingest.counts().into_iter();
    let counters = counted.map(|count| pb::Counter {
        unit: count.unit.to_owned(),
        outcome: count.outcome.to_owned(),
        reason: count.reason.to_owned(),
        count: count.count,
    });
    let speculative = SPECULATIVE_OUTCOMES.into_iter().map(|outcome| pb::Counter {
        unit: "speculative_block".to_owned(),
        outcome: outcome.to_owned(),
        reason: String::new(),
        count: parts.speculation.metrics().get(outcome),
    });
    counters.chain(speculative).collect()
}
