use super::Partitions;
use kvasir_proto::types::BlockCounts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

/// Outcome of a block operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct OperationLabels {
    /// applied, noop, ignored, rejected, conflict or shed; received for every operation.
    pub outcome: &'static str,
    /// Why the operation was ignored or rejected; else "".
    pub reason: &'static str,
}

/// Metrics of the writer, and the count of block operations that ingest shares.
#[derive(Debug, Clone)]
pub struct IndexMetrics {
    /// Outcomes of every block operation.
    operations: Family<OperationLabels, Counter>,
    /// Cached counters that every batch increments: a lookup in the family costs more than the increment.
    received: Counter,
    applied: Counter,
    /// Time a command waits in the writer's mailbox.
    pub(super) mailbox_wait: Histogram,
    /// Time that a writer holds the lock.
    pub(super) hold: Histogram,
}

/// Reason of operations that reached a limit of the index.
const LIMIT: &str = "limit";
/// Reason of events for ranks that do not fit into the byte budget.
pub(super) const NO_ROOM_FOR_RANKS: &str = "no_room_for_ranks";
/// Reason of events for more ranks than a worker may have.
pub(super) const TOO_MANY_RANKS: &str = "too_many_ranks";
/// Reason of events whose source was removed meanwhile.
pub(super) const UNKNOWN_SOURCE: &str = "unknown_source";

/// Outcomes and reasons that the index itself counts, and the received operations.
pub const INDEX_OUTCOMES: [(&str, &str); 9] = [
    ("received", ""),
    ("applied", ""),
    ("noop", ""),
    ("conflict", ""),
    ("shed", ""),
    ("rejected", LIMIT),
    ("rejected", TOO_MANY_RANKS),
    ("rejected", NO_ROOM_FOR_RANKS),
    ("rejected", UNKNOWN_SOURCE),
];

impl IndexMetrics {
    /// Registers these metrics and the sizes of all partitions.
    #[must_use]
    pub fn register(registry: &mut Registry, partitions: Arc<Partitions>) -> Self {
        // From below a free lock (1 us) to a writer that is hopelessly behind (4 s).
        let times = || (0..12).map(|step| 1e-6 * 4_f64.powi(step));
        let operations = Family::<OperationLabels, Counter>::default();
        for (outcome, reason) in INDEX_OUTCOMES {
            drop(operations.get_or_create(&OperationLabels { outcome, reason }));
        }
        let at_hand =
            |outcome| operations.get_or_create_owned(&OperationLabels { outcome, reason: "" });
        let metrics = Self {
            received: at_hand("received"),
            applied: at_hand("applied"),
            operations,
            mailbox_wait: Histogram::new(times()),
            hold: Histogram::new(times()),
        };
        registry.register(
            "block_operations",
            "Block operations by outcome; outcome received counts every operation",
            metrics.operations.clone(),
        );
        registry.register_with_unit(
            "index_mailbox_wait",
            "Time that a write waits for a writer thread of the index",
            Unit::Seconds,
            metrics.mailbox_wait.clone(),
        );
        registry.register_with_unit(
            "index_hold",
            "Time that a writer thread holds the lock of an index shard; lookups wait meanwhile",
            Unit::Seconds,
            metrics.hold.clone(),
        );
        registry.register_collector(Box::new(BudgetSizes { partitions: Arc::clone(&partitions) }));
        registry.register_collector(Box::new(Sizes { partitions }));
        metrics
    }

    /// Counts outcomes of the index.
    pub(super) fn count(&self, counts: BlockCounts) {
        self.applied.inc_by(counts.applied);
        self.add("noop", "", counts.noop);
        self.add("rejected", LIMIT, counts.rejected);
        self.add("conflict", "", counts.conflict);
        self.add("shed", "", counts.shed);
    }

    /// Counts received operations, before their outcome is known.
    pub fn count_received(&self, operations: u64) {
        self.received.inc_by(operations);
    }

    /// Number of operations with one outcome so far.
    #[must_use]
    pub fn get(&self, outcome: &'static str, reason: &'static str) -> u64 {
        let counter = self.operations.get(&OperationLabels { outcome, reason });
        counter.map_or(0, |counter| counter.get())
    }

    /// Counts operations of one outcome.
    pub fn add(&self, outcome: &'static str, reason: &'static str, count: u64) {
        if count > 0 {
            let labels = OperationLabels { outcome, reason };
            self.operations.get_or_create(&labels).inc_by(count);
        }
    }
}

/// Sizes of all partitions, read at each scrape. Removed partitions disappear from the metrics. The limit on partitions
/// bounds the number of series.
#[derive(Debug)]
struct Sizes {
    partitions: Arc<Partitions>,
}

type PartitionLabels = [(&'static str, String); 2];

/// One family: name, help, unit and value by partition.
type SizeFamily = (&'static str, &'static str, Option<Unit>, Vec<(PartitionLabels, u64)>);

impl Sizes {
    /// Reads the sizes of all partitions.
    fn collect_sizes(&self) -> [SizeFamily; 6] {
        let mut families: [SizeFamily; 6] = [
            (
                "index_blocks",
                "Distinct blocks in the index; a block in several shards counts once per shard",
                None,
                vec![],
            ),
            ("index_holdings", "Pairs of rank and placed block in the index", None, vec![]),
            (
                "index_parked_blocks",
                "Cached blocks that no query can match yet, because a block before them is unknown (parked)",
                None,
                vec![],
            ),
            ("index_holders", "Ranks in the index that may have cached blocks", None, vec![]),
            ("index_sources", "Event streams that feed the index", None, vec![]),
            (
                "index_memory",
                "Memory used by the index, by model and tenant",
                Some(Unit::Bytes),
                vec![],
            ),
        ];
        for partition in self.partitions.list() {
            let stats = partition.stats();
            let model = partition.key().model();
            let tenant = partition.key().tenant();
            let values =
                [stats.blocks, stats.pairs, stats.parked, stats.ranks, stats.sources, stats.bytes];
            for ((_, _, _, rows), value) in families.iter_mut().zip(values) {
                let labels = [("model", model.to_owned()), ("tenant", tenant.to_owned())];
                rows.push((labels, value));
            }
        }
        families
    }
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (name, help, unit, rows) in self.collect_sizes() {
            let mut family =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for (labels, value) in rows {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The byte budget of all partitions together, and the blocks evicted for it.
#[derive(Debug)]
struct BudgetSizes {
    partitions: Arc<Partitions>,
}

impl Collector for BudgetSizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let budget = self.partitions.budget();
        let bytes = budget.bytes();
        let gauges = [
            (
                "index_allocated",
                "Memory allocated by the index, over all models and tenants",
                Some(bytes.allocated),
            ),
            (
                "index_in_use",
                "Memory in use by the index: allocated memory less the free slots for new blocks",
                Some(bytes.in_use()),
            ),
            ("index_limit", "Memory limit of the index: --max-index-bytes", budget.limit()),
        ];
        for (name, help, bytes) in gauges {
            let Some(bytes) = bytes else { continue };
            let gauge = ConstGauge::new(u64::try_from(bytes).unwrap_or(u64::MAX));
            let kind = MetricType::Gauge;
            gauge.encode(encoder.encode_descriptor(name, help, Some(&Unit::Bytes), kind)?)?;
        }
        let shed = budget.shed();
        let pairs = "Pairs of rank and placed block evicted from the index for --max-index-bytes";
        let parked = "Parked blocks evicted from the index for --max-index-bytes";
        for (name, help, count) in
            [("index_shed_pairs", pairs, shed.pairs), ("index_shed_parked", parked, shed.parked)]
        {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(counter)?;
        }
        Ok(())
    }
}
