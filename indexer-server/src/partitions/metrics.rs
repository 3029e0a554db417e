use super::Partitions;
use kvasir_proto::types::BlockCounts;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        MetricType,
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::ConstGauge,
        histogram::Histogram,
    },
    registry::{Registry, Unit},
};
use std::{fmt, sync::Arc};

/// Outcome of a block operation.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
pub struct OperationLabels {
    /// applied, noop, ignored, rejected, conflict or shed; received for all of them.
    pub outcome: &'static str,
    /// Why it was ignored or rejected; else "".
    pub reason: &'static str,
}

/// Metrics of the writer, and the count of block operations that ingest shares.
#[derive(Debug, Clone)]
pub struct IndexMetrics {
    /// Outcomes of every block operation.
    operations: Family<OperationLabels, Counter>,
    /// Those that every batch counts, at hand: a look-up in the family costs more than the count.
    received: Counter,
    applied: Counter,
    /// Time a command waits for the writer.
    pub(super) mailbox_wait: Histogram,
    /// Time the lock is held for writing.
    pub(super) hold: Histogram,
}

/// Reason of what reached a limit of the index.
const LIMIT: &str = "limit";
/// Reason of events for ranks that the byte budget has no room for.
pub(super) const NO_ROOM_FOR_RANKS: &str = "no_room_for_ranks";
/// Reason of events for more ranks than a worker may have.
pub(super) const TOO_MANY_RANKS: &str = "too_many_ranks";
/// Reason of events whose source was removed meanwhile.
pub(super) const UNKNOWN_SOURCE: &str = "unknown_source";

/// Outcomes and reasons that the index itself counts, and what was received.
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
    /// Registers the metrics, and the sizes of all partitions.
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
            "Block operations by outcome; outcome received counts all of them",
            metrics.operations.clone(),
        );
        registry.register_with_unit(
            "index_mailbox_wait",
            "Time a write waits for its writer thread",
            Unit::Seconds,
            metrics.mailbox_wait.clone(),
        );
        registry.register_with_unit(
            "index_hold",
            "Time a writer thread holds a shard's lock, which is what a lookup waits for",
            Unit::Seconds,
            metrics.hold.clone(),
        );
        registry.register_collector(Box::new(BudgetSizes { partitions: Arc::clone(&partitions) }));
        registry.register_collector(Box::new(Sizes { partitions }));
        metrics
    }

    /// Counts what the index did.
    pub(super) fn count(&self, counts: BlockCounts) {
        self.applied.inc_by(counts.applied);
        self.add("noop", "", counts.noop);
        self.add("rejected", LIMIT, counts.rejected);
        self.add("conflict", "", counts.conflict);
        self.add("shed", "", counts.shed);
    }

    /// Counts operations that came in, whatever becomes of them.
    pub fn count_received(&self, operations: u64) {
        self.received.inc_by(operations);
    }

    /// Operations of one outcome so far.
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

/// Sizes of all partitions, read at each scrape: removed partitions leave the metrics, and their limit bounds
/// the number of series.
#[derive(Debug)]
struct Sizes {
    partitions: Arc<Partitions>,
}

type PartitionLabels = [(&'static str, String); 2];

/// One family: name, help, unit and value by partition.
type SizeFamily = (&'static str, &'static str, Option<Unit>, Vec<(PartitionLabels, u64)>);

impl Sizes {
    fn read(&self) -> [SizeFamily; 6] {
        let mut families: [SizeFamily; 6] = [
            (
                "index_blocks",
                "Distinct blocks in the index; a block of several shards counts in each",
                None,
                vec![],
            ),
            ("index_holdings", "Pairs of rank and placed block", None, vec![]),
            (
                "index_parked_blocks",
                "Parked blocks: held, but their parent is unknown",
                None,
                vec![],
            ),
            ("index_holders", "Ranks that may hold blocks", None, vec![]),
            ("index_sources", "Event streams", None, vec![]),
            ("index_memory", "Memory of the index", Some(Unit::Bytes), vec![]),
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
        for (name, help, unit, rows) in self.read() {
            let mut family =
                encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?;
            for (labels, value) in rows {
                ConstGauge::new(value).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The byte budget of all partitions together, and what was shed for it.
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
                "Memory of the index, all models and tenants",
                Some(bytes.allocated),
            ),
            (
                "index_in_use",
                "The same, without free slots that new blocks can use",
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
        let pairs = "Pairs of rank and placed block dropped for --max-index-bytes";
        let parked = "Parked blocks dropped for --max-index-bytes";
        for (name, help, count) in
            [("index_shed_pairs", pairs, shed.pairs), ("index_shed_parked", parked, shed.parked)]
        {
            let counter = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(count).encode(counter)?;
        }
        Ok(())
    }
}
