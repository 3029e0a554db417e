//! Counters and histograms of the router. All are registered at the start, and stay 0 in modes that do not use them.

use crate::fetches::FetchCounters;
use crate::fleet::{Fleet, Partition};
use kvasir_process::telemetry::TimeHistogram;
use kvasir_process::telemetry::{Row, encode_counter, encode_gauge};
use kvasir_proto::pb;
use kvasir_proto::types::{PartitionKey, WorkerKey};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets, linear_buckets};
use prometheus_client::registry::Registry;
use router_client::route::{Mode, RankLoad, Reason, SelectError, SyncCounts};
use router_client::router::{Choice, IndexUse, PrefillOutcome, RouteError, Router, RouterCounts};
use router_client::{ClientError, HashedPrompt};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;

/// Maximum ranks with their own gauges: more would make the metrics page too large.
const RANKS_SHOWN_MAX: usize = 4_096;

/// Label values: why a worker was chosen.
const DECISIONS: [&str; 9] = [
    "only_one",
    "lowest_score",
    "least_loaded_of_equal",
    "turn_of_equal",
    "sampled",
    "turn",
    "random",
    "less_loaded_of_two",
    "direct",
];
/// Label values: why no worker was chosen.
const REJECTIONS: [&str; 9] = [
    "invalid",
    "duplicate_id",
    "queue_full",
    "queue_timeout",
    "busy",
    "no_workers",
    "none_allowed",
    "no_target",
    "unknown_target",
];
/// Label values: the index's contribution.
const INDEX_OUTCOMES: [&str; 6] =
    ["not_needed", "answered", "partial", "timeout", "unavailable", "refused"];

/// Label values: outcome of choosing a prefill worker.
const PREFILL_OUTCOMES: [&str; 5] = ["chosen", "no_worker", "mostly_cached", "busy", "no_domain"];

/// Label `reason`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// Label `outcome`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// Label `phase`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabel {
    phase: &'static str,
}

/// A phase of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Hashing,
    Index,
    Queue,
    Choosing,
}

/// Counters and histograms by request.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    decisions: Family<ReasonLabel, Counter>,
    rejections: Family<ReasonLabel, Counter>,
    index: Family<OutcomeLabel, Counter>,
    prefill: Family<OutcomeLabel, Counter>,
    fetches: FetchCounters,
    overhead: Family<PhaseLabel, TimeHistogram, fn() -> TimeHistogram>,
    input_tokens: Histogram,
    hit_ratio: Histogram,
    freed: Counter,
    failed: Counter,
    cached_tokens_error: Histogram,
}

// === impl Phase ===

impl Phase {
    const ALL: [Self; 4] = [Self::Hashing, Self::Index, Self::Queue, Self::Choosing];

    const fn word(self) -> &'static str {
        match self {
            Self::Hashing => "hashing",
            Self::Index => "index",
            Self::Queue => "queue",
            Self::Choosing => "choosing",
        }
    }
}

// === impl RequestMetrics ===

impl RequestMetrics {
    /// Creates and registers all metrics.
    #[must_use]
    pub fn registered(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("router");
        let metrics = Self {
            decisions: Family::default(),
            rejections: Family::default(),
            index: Family::default(),
            prefill: Family::default(),
            fetches: FetchCounters::registered(registry),
            // Buckets from 1 us to 8 s.
            overhead: Family::new_with_constructor(|| {
                TimeHistogram::new(exponential_buckets(1e-6, 4.0, 12))
            }),
            input_tokens: Histogram::new(exponential_buckets(16.0, 4.0, 9)),
            hit_ratio: Histogram::new(linear_buckets(0.0, 0.1, 11)),
            freed: Counter::default(),
            failed: Counter::default(),
            cached_tokens_error: Histogram::new([
                -65_536.0, -16_384.0, -4_096.0, -1_024.0, -256.0, -64.0, -16.0, 0.0, 16.0, 64.0,
                256.0, 1_024.0, 4_096.0, 16_384.0, 65_536.0,
            ]),
        };
        for phase in Phase::ALL {
            drop(metrics.overhead.get_or_create(&PhaseLabel { phase: phase.word() }));
        }
        for reason in DECISIONS {
            drop(metrics.decisions.get_or_create(&ReasonLabel { reason }));
        }
        for reason in REJECTIONS {
            drop(metrics.rejections.get_or_create(&ReasonLabel { reason }));
        }
        for outcome in INDEX_OUTCOMES {
            drop(metrics.index.get_or_create(&OutcomeLabel { outcome }));
        }
        for outcome in PREFILL_OUTCOMES {
            drop(metrics.prefill.get_or_create(&OutcomeLabel { outcome }));
        }
        let at = &metrics;
        registry.register(
            "decisions",
            "Routing decisions that chose a worker, by reason",
            at.decisions.clone(),
        );
        registry.register(
            "rejections",
            "Requests rejected because no worker was chosen, by reason",
            at.rejections.clone(),
        );
        let help = "Routing decisions by the outcome of the index query";
        registry.register("index_outcomes", help, at.index.clone());
        let help = "Disaggregated requests by the outcome of choosing a prefill worker";
        registry.register("prefill_outcomes", help, at.prefill.clone());
        let help = "Duration of a routing decision by phase, in seconds";
        registry.register("overhead_seconds", help, at.overhead.clone());
        let help = "Prompt tokens of a request that received a worker";
        registry.register("input_tokens", help, at.input_tokens.clone());
        let help =
            "Fraction of a prompt's blocks expected in the chosen worker's cache (0-1), in mode kv";
        registry.register("kv_hit_ratio", help, at.hit_ratio.clone());
        registry.register(
            "freed",
            "Requests whose end was reported to the router",
            at.freed.clone(),
        );
        registry.register(
            "failed",
            "Requests whose end was reported to the router as failed by the worker",
            at.failed.clone(),
        );
        let help = "Cached prompt tokens that the engine reports, minus the tokens that the router expected; below 0: too many expected";
        registry.register("cached_tokens_error", help, at.cached_tokens_error.clone());
        metrics
    }

    /// Counts a choice for a prompt, with the prompt's hashing time.
    pub fn chosen(&self, choice: &Choice, prompt: &HashedPrompt, hashing: Duration) {
        let reason = reason_word(choice.decision.reason);
        self.decisions.get_or_create(&ReasonLabel { reason }).inc();
        let outcome = index_word(index_outcome(&choice.index_use));
        self.index.get_or_create(&OutcomeLabel { outcome }).inc();
        self.input_tokens.observe(prompt.input_tokens as f64);
        self.took(Phase::Hashing, hashing);
        self.took(Phase::Index, index_elapsed(&choice.index_use));
        self.took(Phase::Choosing, choice.choosing);
        if let Some(queued) = choice.queued {
            self.took(Phase::Queue, queued.waited);
        }
        self.fetches.chosen(&choice.decision.fetch);
        if choice.decision.mode == Mode::Kv && !prompt.local_hashes.is_empty() {
            let blocks = prompt.local_hashes.len() as f64;
            self.hit_ratio.observe(f64::from(choice.decision.overlap.total()) / blocks);
        }
    }

    /// Counts a fetch by a worker's agent from peers: bytes and duration.
    pub fn fetched(&self, bytes: u64, took: Duration) {
        self.fetches.reported(bytes, took);
    }

    /// Counts the prefill outcome of a disaggregated request.
    pub fn prefill(&self, outcome: PrefillOutcome) {
        let outcome = prefill_word(outcome);
        self.prefill.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// Counts a request without a worker.
    pub fn rejected(&self, error: &RouteError) {
        let reason = rejection_word(error);
        self.rejections.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// Records the duration of a phase.
    fn took(&self, phase: Phase, time: Duration) {
        let label = PhaseLabel { phase: phase.word() };
        self.overhead.get_or_create(&label).observe(time);
    }

    /// Counts the end of a request. `expected_and_found` has the cached tokens that the router expected and that the
    /// engine reported.
    pub fn freed(&self, has_failed: bool, expected_and_found: Option<(u64, u64)>) {
        self.freed.inc();
        if has_failed {
            self.failed.inc();
        }
        if let Some((expected, found)) = expected_and_found {
            self.cached_tokens_error.observe(found as f64 - expected as f64);
        }
    }
}

/// Duration of the query to the index.
pub fn index_elapsed(index_use: &IndexUse) -> Duration {
    match index_use {
        IndexUse::NotNeeded => Duration::ZERO,
        IndexUse::Answered { elapsed, .. } | IndexUse::Failed { elapsed, .. } => *elapsed,
    }
}

/// Returns the outcome of the query to the index: answered, partial, timeout, unavailable, refused or not needed.
pub fn index_outcome(index_use: &IndexUse) -> pb::IndexOutcome {
    match index_use {
        IndexUse::NotNeeded => pb::IndexOutcome::NotNeeded,
        IndexUse::Answered { missing_shards, .. } if missing_shards.is_empty() => {
            pb::IndexOutcome::Answered
        }
        IndexUse::Answered { .. } => pb::IndexOutcome::Partial,
        IndexUse::Failed { error: ClientError::DeadlineExceeded { .. }, .. } => {
            pb::IndexOutcome::Timeout
        }
        IndexUse::Failed { error: ClientError::Status(status), .. } => {
            let code = status.code();
            if code == Code::DeadlineExceeded {
                pb::IndexOutcome::Timeout
            } else if [Code::Unavailable, Code::Cancelled, Code::Unknown].contains(&code) {
                pb::IndexOutcome::Unavailable
            } else {
                pb::IndexOutcome::Refused
            }
        }
        IndexUse::Failed { .. } => pb::IndexOutcome::Refused,
    }
}

/// Returns the label value for what happened to the prefill of a request.
const fn prefill_word(outcome: PrefillOutcome) -> &'static str {
    match outcome {
        PrefillOutcome::NotAsked => "not_asked",
        PrefillOutcome::Chosen => "chosen",
        PrefillOutcome::NoWorker => "no_worker",
        PrefillOutcome::MostlyCached => "mostly_cached",
        PrefillOutcome::Busy => "busy",
        PrefillOutcome::NoDomain => "no_domain",
    }
}

/// Converts an error to its label value, one of [`REJECTIONS`].
const fn rejection_word(error: &RouteError) -> &'static str {
    match error {
        RouteError::Config(_) => "invalid",
        RouteError::DuplicateId => "duplicate_id",
        RouteError::QueueFull => "queue_full",
        RouteError::QueueTimeout(_) => "queue_timeout",
        RouteError::Select(error) => match error {
            SelectError::AllBusy { .. } => "busy",
            SelectError::NoWorkers => "no_workers",
            SelectError::NoneAllowed { .. } => "none_allowed",
            SelectError::NoTarget => "no_target",
            SelectError::UnknownTarget => "unknown_target",
        },
    }
}

/// Converts a reason to its label value, one of `DECISIONS`.
const fn reason_word(reason: Reason) -> &'static str {
    match reason {
        Reason::OnlyOne => "only_one",
        Reason::LowestScore => "lowest_score",
        Reason::LeastLoadedOfEqual => "least_loaded_of_equal",
        Reason::TurnOfEqual => "turn_of_equal",
        Reason::Sampled => "sampled",
        Reason::Turn => "turn",
        Reason::Random => "random",
        Reason::LessLoadedOfTwo => "less_loaded_of_two",
        Reason::Direct => "direct",
    }
}

/// Converts an index outcome to its label value, one of `INDEX_OUTCOMES`.
const fn index_word(outcome: pb::IndexOutcome) -> &'static str {
    match outcome {
        pb::IndexOutcome::Unspecified => "",
        pb::IndexOutcome::NotNeeded => "not_needed",
        pb::IndexOutcome::Answered => "answered",
        pb::IndexOutcome::Partial => "partial",
        pb::IndexOutcome::Timeout => "timeout",
        pb::IndexOutcome::Unavailable => "unavailable",
        pb::IndexOutcome::Refused => "refused",
    }
}

/// Collector of loads and counters of all routers, read at each request of the metrics page.
#[derive(Debug)]
pub struct FleetMetrics(pub Arc<Fleet>);

/// A gauge of a rank: name, help, value.
type RankGauge = (&'static str, &'static str, fn(&RankLoad) -> u64);
/// A counter: name, help, value.
type Count = (&'static str, &'static str, fn(&RouterCounts) -> u64);

const RANK_GAUGES: [RankGauge; 4] = [
    ("active_requests", "Active requests at a rank", |load| load.requests),
    (
        "prefilling_requests",
        "Active requests at a rank that have not produced a first token",
        |load| load.prefilling_requests,
    ),
    ("prefill_tokens", "Prompt tokens that a rank must still compute", |load| load.prefill_tokens),
    (
        "active_blocks",
        "KV blocks in use at a rank: blocks of active requests, and others that the engine reports",
        |load| whole(load.active_blocks().ceil()),
    ),
];

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
const fn whole(number: f64) -> u64 {
    number as u64
}

const COUNTS: [Count; 5] = [
    (
        "untracked_requests",
        "Requests that received a worker but do not count as load because of a limit",
        |at| at.untracked,
    ),
    ("queued_requests", "Requests that waited in the router's queue", |at| at.queued),
    ("expired_requests", "Requests whose lease expired before their end was reported", |at| {
        at.expired
    }),
    ("ejections", "Times that a worker was ejected because of failures", |at| at.ejections),
    (
        "unrecorded_placements",
        "Decisions not recorded at the index because too many recordings were in flight",
        |at| at.unrecorded,
    ),
];

/// A counter of replica sync: name, help, value.
type SyncCount = (&'static str, &'static str, fn(&SyncCounts) -> u64);

const SYNC_COUNTS: [SyncCount; 6] = [
    ("sync_sent", "Sync messages sent to router replicas", |at| at.messages_sent),
    (
        "sync_received",
        "Sync messages received on the replicas' NATS subject, including the router's own",
        |at| at.messages_received,
    ),
    (
        "sync_digests_differing",
        "Digests of router replicas that differed from the local state",
        |at| at.digests_differing,
    ),
    (
        "sync_healed",
        "Requests of router replicas corrected after a digest differed",
        SyncCounts::healed,
    ),
    (
        "sync_abandoned",
        "Requests freed because their router replica sent nothing for too long",
        |at| at.abandoned_freed,
    ),
    (
        "sync_unknown_ranks",
        "Requests of router replicas ignored because the rank is unknown here",
        |at| at.dropped.unknown_rank,
    ),
];

impl Collector for FleetMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let partitions = self.0.partitions();
        let to = &mut encoder;
        for (name, help, value) in RANK_GAUGES {
            let ranks = partitions.iter().flat_map(|(key, partition)| {
                let row = |(rank, load): &(_, RankLoad)| (rank_labels(key, rank), value(load));
                partition.loads().iter().map(row).collect::<Vec<Row>>()
            });
            let rows = ranks.take(RANKS_SHOWN_MAX).collect();
            encode_gauge(to, &format!("router_{name}"), help, rows)?;
        }
        let routers = || partitions.iter().flat_map(|(_, at)| at.routers());
        let waiting = routers().map(|at| at.waiting().0 as u64).sum();
        let help = "Requests waiting in the router's queue";
        let rows = vec![(Vec::new(), waiting)];
        encode_gauge(to, "router_waiting_requests", help, rows)?;
        for (name, help, value) in COUNTS {
            let sum = routers().map(|at| value(&at.counts())).sum();
            let rows = vec![(Vec::new(), sum)];
            encode_counter(to, &format!("router_{name}"), help, rows)?;
        }
        let bandwidth = |(key, at): &(PartitionKey, Partition)| {
            let rate = at.pool(false).fetch_bandwidth()?;
            Some((partition_labels(key), whole(rate.per_second)))
        };
        let help = "Bandwidth between agents that fetch plans assume, in bytes per second; absent without fetch-plans";
        let rows = partitions.iter().filter_map(bandwidth).collect();
        encode_gauge(to, "router_fetch_bytes_per_second", help, rows)?;
        let sync: Vec<_> = routers().filter_map(Router::sync_counts).collect();
        encode_sync(to, &sync)
    }
}

/// Encodes replica sync over all partitions. All values are 0 without sync.
fn encode_sync(
    to: &mut DescriptorEncoder<'_>,
    counts: &[(SyncCounts, usize)],
) -> Result<(), fmt::Error> {
    let replicas = counts.iter().map(|(_, peers)| *peers as u64).max().unwrap_or(0);
    let help = "Other router replicas that sent a message in the last two minutes";
    let rows = vec![(Vec::new(), replicas)];
    encode_gauge(to, "router_sync_replicas", help, rows)?;
    for (name, help, value) in SYNC_COUNTS {
        let sum = counts.iter().map(|(at, _)| value(at)).sum();
        let rows = vec![(Vec::new(), sum)];
        encode_counter(to, &format!("router_{name}"), help, rows)?;
    }
    Ok(())
}

fn partition_labels(key: &PartitionKey) -> Vec<(&'static str, String)> {
    vec![("model", key.model().to_owned()), ("tenant", key.tenant().to_owned())]
}

fn rank_labels(key: &PartitionKey, rank: &WorkerKey) -> Vec<(&'static str, String)> {
    vec![
        ("model", key.model().to_owned()),
        ("tenant", key.tenant().to_owned()),
        ("worker", rank.worker.as_str().to_owned()),
        ("dp_rank", rank.rank.to_string()),
    ]
}
