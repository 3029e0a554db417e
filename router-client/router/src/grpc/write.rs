//! Builds answers.

use crate::metrics::{index_elapsed, index_outcome};
use crate::reports::RankMetrics;
use kvasir_proto::convert::{WorkerAddress, WorkerLoad};
use kvasir_proto::pb;
use kvasir_proto::types::{PartitionKey, WorkerKey};
use router_client::route::{
    BusyThresholds, Cost, Decision, Explanation, FetchPeer, Mode, NoFetch, RankLoad, Reason,
    TierBlocks, Trust,
};
use router_client::router::{Choice, IndexUse, PrefillOutcome};
use std::time::Duration;

/// Builds the answer for a decision, with the hashing time of the prompt.
pub(super) fn selected(
    request_id: String,
    choice: Choice,
    query_blocks: usize,
    hashing: Duration,
) -> pb::SelectWorkerResponse {
    let Choice { decision, index_use, queued, choosing } = choice;
    let overhead = pb::RouteOverhead {
        hashing_us: micros(hashing),
        index_us: micros(index_elapsed(&index_use)),
        queue_us: queued.map_or(0, |at| micros(at.waited)),
        choosing_us: micros(choosing),
    };
    let (missing_shards, distrusted) = match &index_use {
        IndexUse::Answered { missing_shards, distrusted_ranks, .. } => {
            (missing_shards.clone(), *distrusted_ranks)
        }
        IndexUse::NotNeeded | IndexUse::Failed { .. } => (Vec::new(), 0),
    };
    let removed = decision.removed.iter().map(|(reason, ranks)| pb::RemovedRanks {
        reason: reason.to_string(),
        ranks: count(*ranks),
    });
    pb::SelectWorkerResponse {
        request_id,
        worker_id: decision.worker.worker.as_str().to_owned(),
        dp_rank: decision.worker.rank,
        mode: mode(&decision).into(),
        reason: reason(&decision).into(),
        cost: Some(cost(&decision.cost)),
        query_blocks: count(query_blocks),
        index: index_outcome(&index_use).into(),
        index_error: match &index_use {
            IndexUse::Failed { error, .. } => error.to_string(),
            IndexUse::NotNeeded | IndexUse::Answered { .. } => String::new(),
        },
        missing_shards,
        distrusted_ranks: count(distrusted),
        eligible_ranks: count(decision.eligible),
        removed: removed.collect(),
        ejection_ignored: decision.is_ejection_ignored,
        queued: queued.is_some(),
        queue_position: queued.map_or(0, |at| count(at.position)),
        overhead: Some(overhead),
        explanations: decision.explanations.iter().map(explanation).collect(),
        prefill: None,
        prefill_outcome: pb::PrefillOutcome::Unspecified.into(),
        fetch: fetch(&decision),
        fetch_outcome: fetch_outcome(&decision).into(),
    }
}

/// Converts the plan to fetch blocks, if there is one.
fn fetch(decision: &Decision) -> Option<pb::FetchPlan> {
    let plan = decision.fetch.as_ref().ok()?;
    let peer = |at: &FetchPeer| pb::FetchPeer {
        worker_id: at.worker.worker.as_str().to_owned(),
        dp_rank: at.worker.rank,
        address: at.address.clone(),
        blocks: at.blocks,
    };
    Some(pb::FetchPlan {
        first_block: plan.first_block,
        blocks: plan.blocks,
        recompute_blocks: plan.recompute_blocks,
        peers: plan.peers.iter().map(peer).collect(),
        expected_us: micros(plan.expected),
        compute_us: micros(plan.compute),
        block_bytes: plan.block_bytes,
        bytes_per_second: plan.bandwidth.per_second,
        bandwidth_is_measured: plan.bandwidth.is_measured,
        prefill_tokens_per_second: plan.prefill.per_second,
        prefill_rate_is_measured: plan.prefill.is_measured,
    })
}

/// Converts why blocks are, or are not, fetched from other workers.
const fn fetch_outcome(decision: &Decision) -> pb::FetchOutcome {
    match decision.fetch {
        Ok(_) => pb::FetchOutcome::Planned,
        Err(NoFetch::NotAsked) => pb::FetchOutcome::NotAsked,
        Err(NoFetch::Complete) => pb::FetchOutcome::Complete,
        Err(NoFetch::NoAgent) => pb::FetchOutcome::NoAgent,
        Err(NoFetch::NoHolder) => pb::FetchOutcome::NoHolder,
        Err(NoFetch::UnknownRate) => pb::FetchOutcome::UnknownRate,
        Err(NoFetch::NotFaster) => pb::FetchOutcome::NotFaster,
    }
}

/// Builds the answer's part about the prefill worker.
pub(super) fn prefill_choice(choice: &Choice) -> pb::PrefillChoice {
    let Choice { decision, index_use, .. } = choice;
    pb::PrefillChoice {
        worker_id: decision.worker.worker.as_str().to_owned(),
        dp_rank: decision.worker.rank,
        reason: reason(decision).into(),
        cost: Some(cost(&decision.cost)),
        index: index_outcome(index_use).into(),
        fetch: fetch(decision),
        fetch_outcome: fetch_outcome(decision).into(),
    }
}

/// Converts the outcome of choosing a prefill worker.
pub(super) const fn prefill_outcome(outcome: PrefillOutcome) -> pb::PrefillOutcome {
    match outcome {
        PrefillOutcome::NotAsked => pb::PrefillOutcome::Unspecified,
        PrefillOutcome::Chosen => pb::PrefillOutcome::Chosen,
        PrefillOutcome::NoWorker => pb::PrefillOutcome::NoWorker,
        PrefillOutcome::MostlyCached => pb::PrefillOutcome::MostlyCached,
        PrefillOutcome::Busy => pb::PrefillOutcome::Busy,
        PrefillOutcome::NoDomain => pb::PrefillOutcome::NoDomain,
    }
}

pub(super) fn load(load: &RankLoad) -> pb::RankLoad {
    pb::RankLoad {
        requests: load.requests,
        prefilling_requests: load.prefilling_requests,
        prefill_tokens: load.prefill_tokens,
        active_blocks: load.active_blocks(),
    }
}

/// Converts the load of a rank, with its engine's report if there is one.
pub(super) fn rank_load(
    partition: &PartitionKey,
    rank: &WorkerKey,
    routed: &RankLoad,
    reported: Option<&RankMetrics>,
) -> pb::RouterRankLoad {
    let address = || WorkerAddress { partition: partition.clone(), worker: rank.worker.clone() };
    pb::RouterRankLoad {
        model: partition.model().to_owned(),
        tenant: partition.tenant().to_owned(),
        worker_id: rank.worker.as_str().to_owned(),
        dp_rank: rank.rank,
        routed: Some(load(routed)),
        reported_is_stale: reported.is_some_and(|at| at.is_stale),
        reported: reported.map(|at| {
            let metrics = at.metrics;
            let age = at.age;
            pb::WorkerLoad::from(&WorkerLoad { address: address(), rank: rank.rank, metrics, age })
        }),
    }
}

pub(super) const fn busy(thresholds: BusyThresholds) -> pb::BusyThresholds {
    let BusyThresholds {
        active_decode_blocks,
        active_prefill_tokens,
        active_prefill_tokens_fraction,
    } = thresholds;
    pb::BusyThresholds {
        active_decode_blocks,
        active_prefill_tokens,
        active_prefill_tokens_fraction,
    }
}

/// Converts a count to its wire type, saturating.
pub(super) fn count(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Converts the explanation for one rank.
fn explanation(at: &Explanation) -> pb::RankExplanation {
    let TierBlocks { device, host, disk, pool } = at.overlap;
    let trust = match at.trust {
        Trust::Full => pb::IndexTrust::Full,
        Trust::Stale => pb::IndexTrust::Stale,
        Trust::Behind => pb::IndexTrust::Behind,
        Trust::Unknown => pb::IndexTrust::Unknown,
    };
    pb::RankExplanation {
        worker_id: at.worker.worker.as_str().to_owned(),
        dp_rank: at.worker.rank,
        removed: at.removed.map(|what| what.to_string()).unwrap_or_default(),
        overlap: Some(pb::BlocksByTier { device, host, disk }),
        trust: trust.into(),
        shared_blocks: at.shared_blocks,
        load: Some(load(&at.load)),
        cost: Some(cost(&at.cost)),
        preference: at.preference,
        slow_start: at.slow_start,
        score: at.score,
        fetch_blocks: at.fetch_blocks,
        pool_blocks: pool,
    }
}

const fn cost(cost: &Cost) -> pb::RouteCost {
    pb::RouteCost {
        credited_blocks: cost.credited_blocks,
        new_prefill_tokens: cost.new_prefill_tokens,
        prefill_blocks: cost.prefill_blocks,
        decode_blocks: cost.decode_blocks,
        decode_cost: cost.decode_cost,
        fetch_tokens: cost.fetch_tokens,
        total: cost.total,
    }
}

const fn mode(decision: &Decision) -> pb::RouterMode {
    match decision.mode {
        Mode::Kv => pb::RouterMode::Kv,
        Mode::RoundRobin => pb::RouterMode::RoundRobin,
        Mode::Random => pb::RouterMode::Random,
        Mode::Direct => pb::RouterMode::Direct,
        Mode::PowerOfTwo => pb::RouterMode::PowerOfTwo,
        Mode::LeastLoaded => pb::RouterMode::LeastLoaded,
    }
}

/// Converts the reason of a decision.
const fn reason(decision: &Decision) -> pb::DecisionReason {
    match decision.reason {
        Reason::OnlyOne => pb::DecisionReason::OnlyOne,
        Reason::LowestScore => pb::DecisionReason::LowestScore,
        Reason::LeastLoadedOfEqual => pb::DecisionReason::LeastLoadedOfEqual,
        Reason::TurnOfEqual => pb::DecisionReason::TurnOfEqual,
        Reason::Sampled => pb::DecisionReason::Sampled,
        Reason::Turn => pb::DecisionReason::Turn,
        Reason::Random => pb::DecisionReason::Random,
        Reason::LessLoadedOfTwo => pb::DecisionReason::LessLoadedOfTwo,
        Reason::Direct => pb::DecisionReason::Direct,
    }
}
