//! Counters and histograms of the router. All are registered at the start, with zero in modes that do not use them.

use crate::fetches::FetchCounters;
use crate::fleet::{Fleet, Partition};
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

/// Most ranks with gauges of their own: more would make the page too large.
const RANKS_SHOWN_MAX: usize = 4_096;

/// Why workers are chosen.
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
/// Why none is.
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
/// What the index contributes.
const INDEX_OUTCOMES: [&str; 6] =
    ["not_needed", "answered", "partial", "timeout", "unavailable", "refused"];

/// What becomes of the choice of a prefill worker.
const PREFILL_OUTCOMES: [&str; 5] = ["chosen", "no_worker", "mostly_cached", "busy", "no_domain"];

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// One label.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabel {
    outcome: &'static str,
}

/// One label.
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

/// What is counted by request.
#[derive(Debug, Clone)]
pub struct RequestMetrics {
    decisions: Family<ReasonLabel, Counter>,
    rejections: Family<ReasonLabel, Counter>,
    index: Family<OutcomeLabel, Counter>,
    prefill: Family<OutcomeLabel, Counter>,
    fetches: FetchCounters,
    overhead: Family<PhaseLabel, Histogram, fn() -> Histogram>,
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
    /// Registers all of them.
    #[must_use]
    pub fn registered(registry: &mut Registry) -> Self {
        let registry = registry.sub_registry_with_prefix("router");
        let metrics = Self {
            decisions: Family::default(),
            rejections: Family::default(),
            index: Family::default(),
            prefill: Family::default(),
            fetches: FetchCounters::registered(registry),
            // From 1 us to 8 s.
            overhead: Family::new_with_constructor(|| {
                Histogram::new(exponential_buckets(1e-6, 4.0, 12))
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
        registry.register("decisions", "Workers chosen, by reason", at.decisions.clone());
        registry.register(
            "rejections",
            "Requests without a worker, by reason",
            at.rejections.clone(),
        );
        let help = "What the index contributed to decisions";
        registry.register("index_outcomes", help, at.index.clone());
        let help = "What became of the choice of a prefill worker for disaggregated requests";
        registry.register("prefill_outcomes", help, at.prefill.clone());
        let help = "Time that decisions took, by phase";
        registry.register("overhead_seconds", help, at.overhead.clone());
        let help = "Tokens of prompts that got a worker";
        registry.register("input_tokens", help, at.input_tokens.clone());
        let help = "Share of a prompt's blocks that its worker was expected to hold, in mode kv";
        registry.register("kv_hit_ratio", help, at.hit_ratio.clone());
        registry.register("freed", "Requests whose end was reported", at.freed.clone());
        registry.register("failed", "Of these, those that their worker failed", at.failed.clone());
        let help = "Tokens that an engine had cached, less those that were expected: below 0 the index knew too much";
        registry.register("cached_tokens_error", help, at.cached_tokens_error.clone());
        metrics
    }

    /// A worker was chosen for a prompt, whose hashing took so long.
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

    /// A worker's agent fetched so many bytes from peers for a request, in so much time.
    pub fn fetched(&self, bytes: u64, took: Duration) {
        self.fetches.reported(bytes, took);
    }

    /// A disaggregated request got a prefill worker, or none.
    pub fn prefill(&self, outcome: PrefillOutcome) {
        let outcome = prefill_word(outcome);
        self.prefill.get_or_create(&OutcomeLabel { outcome }).inc();
    }

    /// No worker was chosen.
    pub fn rejected(&self, error: &RouteError) {
        let reason = rejection_word(error);
        self.rejections.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// A phase took so long.
    fn took(&self, phase: Phase, time: Duration) {
        let label = PhaseLabel { phase: phase.word() };
        self.overhead.get_or_create(&label).observe(time.as_secs_f64());
    }

    /// A request has ended.
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

/// How long the index took.
pub fn index_elapsed(index_use: &IndexUse) -> Duration {
    match index_use {
        IndexUse::NotNeeded => Duration::ZERO,
        IndexUse::Answered { elapsed, .. } | IndexUse::Failed { elapsed, .. } => *elapsed,
    }
}

/// What the index contributed.
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

/// An error as a label of a metric: one of [`REJECTIONS`].
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

/// A reason as a label of a metric.
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

/// An outcome as a label of a metric.
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

/// What is read when the page is asked for: loads and counts of all routers.
#[derive(Debug)]
pub struct FleetMetrics(pub Arc<Fleet>);

/// A gauge of a rank: its name, its help, its value.
type RankGauge = (&'static str, &'static str, fn(&RankLoad) -> u64);
/// A counter: its name, its help, its value.
type Count = (&'static str, &'static str, fn(&RouterCounts) -> u64);

const RANK_GAUGES: [RankGauge; 4] = [
    ("active_requests", "Requests under way at a rank", |load| load.requests),
    ("prefilling_requests", "Those whose first token is not out", |load| load.prefilling_requests),
    ("prefill_tokens", "Tokens of prompts that a rank has yet to compute", |load| {
        load.prefill_tokens
    }),
    (
        "active_blocks",
        "Blocks in use at a rank: those of requests under way, and others that its engine reports",
        |load| whole(load.active_blocks().ceil()),
    ),
];

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
const fn whole(number: f64) -> u64 {
    number as u64
}

const COUNTS: [Count; 5] = [
    ("untracked_requests", "Requests that do not count as load, because of a limit", |at| {
        at.untracked
    }),
    ("queued_requests", "Requests that waited in the queue", |at| at.queued),
    ("expired_requests", "Requests whose lease ended", |at| at.expired),
    ("ejections", "Times that a worker was left alone because it failed", |at| at.ejections),
    (
        "unrecorded_placements",
        "Decisions that were not recorded at the index: too many at a time",
        |at| at.unrecorded,
    ),
];

/// A counter of replica sync: its name, its help, its value.
type SyncCount = (&'static str, &'static str, fn(&SyncCounts) -> u64);

const SYNC_COUNTS: [SyncCount; 6] = [
    ("sync_sent", "Messages to replicas", |at| at.messages_sent),
    ("sync_received", "Messages on the replicas' subject, own ones included", |at| {
        at.messages_received
    }),
    (
        "sync_digests_differing",
        "Digests of replicas that differed from what was known here",
        |at| at.digests_differing,
    ),
    ("sync_healed", "Requests of replicas that were put right after that", SyncCounts::healed),
    (
        "sync_abandoned",
        "Requests of replicas that are gone, freed because nobody tells of them any more",
        |at| at.abandoned_freed,
    ),
    ("sync_unknown_ranks", "Requests of replicas at ranks that are not known here", |at| {
        at.dropped.unknown_rank
    }),
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
        let help = "Requests that wait in the queue";
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
        let help = "Bytes per second that plans to fetch blocks assume; absent without fetch-plans";
        let rows = partitions.iter().filter_map(bandwidth).collect();
        encode_gauge(to, "router_fetch_bytes_per_second", help, rows)?;
        let sync: Vec<_> = routers().filter_map(Router::sync_counts).collect();
        encode_sync(to, &sync)
    }
}

/// Replica sync, over all partitions. All are 0 without it.
fn encode_sync(
    to: &mut DescriptorEncoder<'_>,
    counts: &[(SyncCounts, usize)],
) -> Result<(), fmt::Error> {
    let replicas = counts.iter().map(|(_, peers)| *peers as u64).max().unwrap_or(0);
    let help = "Other replicas of the router heard of in the last two minutes";
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
