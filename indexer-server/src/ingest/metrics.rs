use crate::partitions::{INDEX_OUTCOMES, IndexMetrics};
use kvasir_engine::link::ReplayOutcome;
use kvasir_engine::normalise::{DropReason, Drops};
use kvasir_engine::recover::Ask;
use kvasir_engine::zmtp::Excess;
use kvasir_proto::types::{BatchOutcome, Reason, SourceState};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

/// Outcome of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct BatchLabels {
    /// applied, duplicate, stale, undecodable or lost; received for every batch.
    pub outcome: &'static str,
}

/// Outcome of a gap.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct GapLabels {
    /// opened, healed or lost.
    pub outcome: &'static str,
}

/// Outcome of a round of replay.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReplayLabels {
    /// completed, failed or cancelled.
    pub outcome: &'static str,
}

/// Outcome of a request to a worker's local indexer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AskLabels {
    /// range or dump.
    pub what: &'static str,
    /// completed, gone, `other_life`, failed or cancelled.
    pub outcome: &'static str,
}

/// Outcome of an audit: the comparison of a source's blocks with its agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct AuditLabels {
    /// same, differs, repaired, dumped or abandoned.
    pub outcome: &'static str,
}

/// Why a connection to an engine was closed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ExcessLabels {
    /// The exceeded limit: `frame_bytes`, `command_bytes`, `message_bytes`, `message_frames` or `unread_bytes`.
    pub reason: &'static str,
}

/// Why a block on a medium with a time to live was dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ExpiryLabels {
    /// `ttl`: the time to live is over. `limit`: the block made room before its time. `restart`: the block came from a
    /// checkpoint or a sibling, and its age is unknown.
    pub reason: &'static str,
}

/// Why a source is worse than exact.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct ReasonLabels {
    /// Reason as in `SourceInfo.reasons`, in lowercase.
    pub reason: &'static str,
}

/// Why a publisher's batch was refused.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct RefusalLabels {
    /// fenced, gap or invalid.
    pub reason: &'static str,
}

/// One counter, as `GetStats` reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Count {
    /// block or batch.
    pub unit: &'static str,
    /// Outcome of the blocks or batches.
    pub outcome: &'static str,
    /// Why they were ignored or rejected; else "".
    pub reason: &'static str,
    /// Number since the server started.
    pub count: u64,
}

/// Bounds of the differences between answers and engines, in tokens: none, one block of usual sizes, and more.
const REUSE_DIFFERENCES: [f64; 13] = [
    -16_384.0, -4_096.0, -1_024.0, -256.0, -64.0, -16.0, -1.0, 0.0, 16.0, 64.0, 256.0, 1_024.0,
    16_384.0,
];

const BATCH_OUTCOMES: [&str; 7] =
    ["received", "applied", "duplicate", "stale", "undecodable", "lost", "other_topic"];

/// Metrics of all sources together.
#[derive(Debug, Clone)]
pub struct IngestMetrics {
    /// Counts block operations, including operations that never reach the index.
    pub operations: IndexMetrics,
    /// Outcomes of every batch.
    pub batches: Family<BatchLabels, Counter>,
    /// Cached counters that every batch increments: a lookup in the family costs more than the increment.
    batches_received: Counter,
    batches_applied: Counter,
    /// Gaps in engines' streams.
    pub gaps: Family<GapLabels, Counter>,
    /// Operations, events or blocks that make sources worse than exact, by reason.
    pub reasons: Family<ReasonLabels, Counter>,
    /// Rounds of replay.
    pub replays: Family<ReplayLabels, Counter>,
    /// Connections to engines that were closed because the engine exceeded a limit.
    pub excesses: Family<ExcessLabels, Counter>,
    /// Refused batches of publishers. The publishers send them again.
    pub refusals: Family<RefusalLabels, Counter>,
    /// Requests to workers' local indexers.
    pub asks: Family<AskLabels, Counter>,
    /// Records received in dumps from local indexers.
    pub dump_records: Counter,
    /// Audits: comparisons of a source's blocks in the index and at its agent.
    pub audits: Family<AuditLabels, Counter>,
    /// Blocks that audits repaired.
    pub repaired_blocks: Counter,
    /// Blocks that queries never match: an adapter without a name, or unsupported content.
    pub unmatchable_blocks: Counter,
    /// Blocks on media with a time to live that were dropped.
    pub expired_blocks: Family<ExpiryLabels, Counter>,
    /// Cached tokens that engines reported, minus the tokens that the index had said they would reuse.
    pub reuse_difference: Histogram,
    /// Registered workers.
    pub workers: Gauge,
    /// Open `PublishEvents` streams.
    pub publishers: Gauge,
}

impl IngestMetrics {
    /// Registers the metrics of events and workers.
    #[must_use]
    pub fn register(registry: &mut Registry, operations: IndexMetrics) -> Self {
        let batches = Family::<BatchLabels, Counter>::default();
        for outcome in BATCH_OUTCOMES {
            drop(batches.get_or_create(&BatchLabels { outcome }));
        }
        let at_hand = |outcome| batches.get_or_create_owned(&BatchLabels { outcome });
        let metrics = Self {
            operations,
            batches_received: at_hand("received"),
            batches_applied: at_hand("applied"),
            batches,
            gaps: Family::default(),
            replays: Family::default(),
            excesses: Family::default(),
            reasons: Family::default(),
            refusals: Family::default(),
            asks: Family::default(),
            dump_records: Counter::default(),
            audits: Family::default(),
            repaired_blocks: Counter::default(),
            unmatchable_blocks: Counter::default(),
            expired_blocks: Family::default(),
            reuse_difference: Histogram::new(REUSE_DIFFERENCES),
            workers: Gauge::default(),
            publishers: Gauge::default(),
        };
        registry.register(
            "batches",
            "Batches of events by outcome; outcome received counts every batch",
            metrics.batches.clone(),
        );
        registry.register(
            "gaps",
            "Gaps in engines' event streams: opened, then healed by a replay or lost permanently",
            metrics.gaps.clone(),
        );
        registry.register(
            "source_reasons",
            "Occurrences of each reason why a source is not EXACT; ListWorkers has the same reasons",
            metrics.reasons.clone(),
        );
        registry.register(
            "replays",
            "Replay rounds requested from engines, including probes, by outcome",
            metrics.replays.clone(),
        );
        registry.register(
            "asks",
            "Requests to workers' local indexers (range: batches by number, dump: all cached blocks) \
             by outcome; gone: no longer retained, other_life: from another incarnation",
            metrics.asks.clone(),
        );
        registry.register(
            "dump_records",
            "Dump records received from workers' local indexers",
            metrics.dump_records.clone(),
        );
        metrics.register_audits(registry);
        metrics.register_blocks(registry);
        metrics.register_senders(registry);
        metrics
    }

    /// Registers the metrics of workers and of the connections that carry their events.
    fn register_senders(&self, registry: &mut Registry) {
        registry.register("workers", "Registered workers", self.workers.clone());
        registry.register(
            "publishers",
            "Open PublishEvents streams of publishers",
            self.publishers.clone(),
        );
        registry.register(
            "engine_connections_cut",
            "Connections to engines closed because a frame or message exceeded a limit, by limit",
            self.excesses.clone(),
        );
        registry.register(
            "publish_refusals",
            "Batches refused from publishers, by reason",
            self.refusals.clone(),
        );
    }

    /// Registers the metrics of dropped and unmatchable blocks.
    fn register_blocks(&self, registry: &mut Registry) {
        registry.register(
            "unmatchable_blocks",
            "Stored blocks that no query can match: adapter without a known name, or unsupported \
             content besides tokens",
            self.unmatchable_blocks.clone(),
        );
        registry.register(
            "expired_blocks",
            "Blocks on media with a time to live that were dropped, by reason: ttl (expired), limit \
             (too many blocks waiting to expire) or restart (age unknown)",
            self.expired_blocks.clone(),
        );
    }

    /// Registers the comparison of answers with engines, and the metrics of audits.
    fn register_audits(&self, registry: &mut Registry) {
        for outcome in ["same", "differs", "repaired", "dumped", "abandoned"] {
            drop(self.audits.get_or_create(&AuditLabels { outcome }));
        }
        registry.register(
            "audits",
            "Comparisons of a source's blocks with the agent, by outcome: same or differs, then \
             repaired, dumped (too many differences) or abandoned (retried)",
            self.audits.clone(),
        );
        registry.register_with_unit(
            "reuse_difference",
            "Cached prompt tokens that engines reported (ReportReuse), minus reusable_tokens of the answer; below 0: the \
             answer was too high",
            Unit::Other("tokens".to_owned()),
            self.reuse_difference.clone(),
        );
        registry.register(
            "repaired_blocks",
            "Blocks repaired in the index by audits",
            self.repaired_blocks.clone(),
        );
    }

    /// Returns all counters of block operations and batches, in a fixed order.
    pub(super) fn counts(&self) -> Vec<Count> {
        let dropped = DropReason::ALL.iter().map(|at| (at.kind().as_str(), at.as_str()));
        let operations = INDEX_OUTCOMES.into_iter().chain(dropped).map(|(outcome, reason)| {
            let count = self.operations.get(outcome, reason);
            Count { unit: "block", outcome, reason, count }
        });
        let batches = BATCH_OUTCOMES.into_iter().map(|outcome| {
            let counter = self.batches.get_or_create(&BatchLabels { outcome });
            Count { unit: "batch", outcome, reason: "", count: counter.get() }
        });
        operations.chain(batches).collect()
    }

    /// Counts `batches` with a final outcome, as received and by outcome.
    pub(super) fn count_batches(&self, outcome: BatchOutcome, batches: u64) {
        self.batches_received.inc_by(batches);
        let outcome = match outcome {
            BatchOutcome::Applied => {
                self.batches_applied.inc_by(batches);
                return;
            }
            BatchOutcome::Duplicate => "duplicate",
            BatchOutcome::Stale => "stale",
            BatchOutcome::Undecodable => "undecodable",
            BatchOutcome::Lost => "lost",
            BatchOutcome::OtherTopic => "other_topic",
        };
        self.batches.get_or_create(&BatchLabels { outcome }).inc_by(batches);
    }

    /// Counts received operations, and those among them that are dropped early.
    pub(super) fn count_received(&self, operations: usize, drops: &Drops) {
        let received = (operations as u64).saturating_add(drops.total());
        self.operations.count_received(received);
        for (reason, count) in drops.iter() {
            self.operations.add(reason.kind().as_str(), reason.as_str(), count);
        }
    }

    /// Counts reasons that make a source worse than exact.
    pub(super) fn count_reason(&self, reason: Reason, count: u64) {
        self.reasons.get_or_create(&ReasonLabels { reason: reason.as_str() }).inc_by(count);
    }

    /// Counts a gap that a change of state opens, heals or loses. Does nothing for other changes.
    pub(super) fn count_state(&self, before: SourceState, after: SourceState) {
        let outcome = match (before, after) {
            (SourceState::Gap, SourceState::Gap) => return,
            (_, SourceState::Gap) => "opened",
            (SourceState::Gap, SourceState::Degraded) => "lost",
            (SourceState::Gap, SourceState::Exact) => "healed",
            _ => return,
        };
        self.gaps.get_or_create(&GapLabels { outcome }).inc();
    }

    /// Counts finished rounds of replay.
    pub(super) fn count_replays(&self, outcome: ReplayOutcome, rounds: u64) {
        let outcome = match outcome {
            ReplayOutcome::Completed => "completed",
            ReplayOutcome::Failed => "failed",
            ReplayOutcome::Cancelled => "cancelled",
        };
        self.replays.get_or_create(&ReplayLabels { outcome }).inc_by(rounds);
    }

    /// Counts connections to engines that were closed for exceeding a limit.
    pub(super) fn count_excess(&self, excess: Excess, connections: u64) {
        let reason = excess.as_str();
        self.excesses.get_or_create(&ExcessLabels { reason }).inc_by(connections);
    }

    /// Counts expired blocks. `early`: blocks that made room before their time.
    pub(super) fn count_expired(&self, blocks: u64, early: u64) {
        let count = |reason| self.expired_blocks.get_or_create_owned(&ExpiryLabels { reason });
        count("ttl").inc_by(blocks - early);
        count("limit").inc_by(early);
    }

    /// Counts dropped blocks of unknown age.
    pub(super) fn count_aged(&self, blocks: u64) {
        let reason = "restart";
        self.expired_blocks.get_or_create(&ExpiryLabels { reason }).inc_by(blocks);
    }

    /// Counts a finished request.
    pub(super) fn count_ask(&self, ask: Ask, outcome: &'static str) {
        let what = match ask {
            Ask::Range { .. } => "range",
            Ask::Dump { .. } => "dump",
        };
        self.asks.get_or_create(&AskLabels { what, outcome }).inc();
    }

    pub(super) fn count_audit(&self, outcome: &'static str) {
        self.audits.get_or_create(&AuditLabels { outcome }).inc();
    }

    pub(super) fn count_refusal(&self, reason: &'static str) {
        self.refusals.get_or_create(&RefusalLabels { reason }).inc();
    }
}
