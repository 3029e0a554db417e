//! The last load report of each rank's engine, marked when stale (`KvMetricsAggregator` of document 003).

use kvasir_process::shares::{LargestShare, SharedLimit, TakenShare};
use kvasir_proto::convert::WorkerLoad;
use kvasir_proto::types::{PartitionKey, WorkerKey, WorkerMetrics};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum ranks with stored reports, at most half of them from one tenant. Further reports are dropped.
pub const RANKS_MAX: usize = 131_072;

/// The last report of each rank.
#[derive(Debug)]
pub struct KvMetricsAggregator {
    stale_after: Duration,
    remembered: SharedLimit,
    reports: Mutex<BTreeMap<PartitionKey, BTreeMap<WorkerKey, Report>>>,
}

#[derive(Debug)]
struct Report {
    metrics: WorkerMetrics,
    /// Total blocks of the device as last reported; constant during the life of an engine.
    total_blocks: Option<u64>,
    /// When the values were measured.
    measured: Instant,
    _counted: TakenShare,
}

/// The last report of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankMetrics {
    /// Reported values.
    pub metrics: WorkerMetrics,
    /// Age of the measurement.
    pub age: Duration,
    /// Whether the report is too old.
    pub is_stale: bool,
}

/// Block counts of a rank, as its engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReportedBlocks {
    /// Total blocks of the device, from the last report that contains it, however old.
    pub total: Option<u64>,
    /// Blocks in use; `None` if the last report is stale.
    pub active: Option<u64>,
}

/// The reports of the ranks of one partition (`AggregatedMetrics` of document 003).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AggregatedMetrics {
    /// Reports by worker and rank.
    pub ranks: BTreeMap<WorkerKey, RankMetrics>,
}

impl KvMetricsAggregator {
    /// An aggregator without reports. A report is stale after `stale_after`.
    #[must_use]
    pub fn new(stale_after: Duration) -> Self {
        let remembered = SharedLimit::new(RANKS_MAX, LargestShare::HALF);
        Self { stale_after, remembered, reports: Mutex::default() }
    }

    /// Stores a report, unless a newer one exists. Returns false if the report is dropped because of the limit.
    pub fn report(&self, load: WorkerLoad) -> bool {
        let WorkerLoad { address, rank, metrics, age } = load;
        let now = Instant::now();
        let measured = now.checked_sub(age).unwrap_or(now);
        let partition = address.partition;
        let rank = WorkerKey { worker: address.worker, rank };
        let mut reports = self.reports.lock();
        if let Some(known) = reports.get_mut(&partition).and_then(|at| at.get_mut(&rank)) {
            if known.measured <= measured {
                known.total_blocks = metrics.kv_total_blocks.or(known.total_blocks);
                (known.metrics, known.measured) = (metrics, measured);
            }
            return true;
        }
        let Ok(counted) = self.remembered.take(partition.tenant(), 1) else { return false };
        let total_blocks = metrics.kv_total_blocks;
        let report = Report { metrics, total_blocks, measured, _counted: counted };
        reports.entry(partition).or_default().insert(rank, report);
        true
    }

    /// Returns the block counts of a rank that decisions use. The number of active blocks is `None` if the report is
    /// stale.
    #[must_use]
    pub fn blocks_of(&self, partition: &PartitionKey, rank: &WorkerKey) -> ReportedBlocks {
        let reports = self.reports.lock();
        let report = reports.get(partition).and_then(|ranks| ranks.get(rank));
        report.map_or_else(ReportedBlocks::default, |report| {
            let is_fresh = report.measured.elapsed() <= self.stale_after;
            ReportedBlocks {
                total: report.total_blocks,
                active: report.metrics.kv_active_blocks.filter(|_| is_fresh),
            }
        })
    }

    /// Removes the reports of ranks that no longer exist.
    pub fn retain(&self, mut is_there: impl FnMut(&PartitionKey, &WorkerKey) -> bool) {
        self.reports.lock().retain(|partition, ranks| {
            ranks.retain(|rank, _| is_there(partition, rank));
            !ranks.is_empty()
        });
    }

    /// Returns the reports of all ranks of a partition.
    #[must_use]
    pub fn get_metrics(&self, partition: &PartitionKey) -> AggregatedMetrics {
        let now = Instant::now();
        let reports = self.reports.lock();
        let view = |(rank, report): (&WorkerKey, &Report)| {
            let age = now.saturating_duration_since(report.measured);
            let is_stale = age > self.stale_after;
            (rank.clone(), RankMetrics { metrics: report.metrics, age, is_stale })
        };
        AggregatedMetrics {
            ranks: reports.get(partition).into_iter().flatten().map(view).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::convert::WorkerAddress;
    use kvasir_proto::types::WorkerId;
    use tokio::time::advance;

    fn partition(tenant: &str) -> PartitionKey {
        PartitionKey::new("m", tenant).expect("a name")
    }

    fn load(worker: &str, waiting: u64, age: u64) -> WorkerLoad {
        let partition = partition("");
        let worker = WorkerId::new(worker).expect("a name");
        WorkerLoad {
            address: WorkerAddress { partition, worker },
            rank: 0,
            metrics: WorkerMetrics {
                num_requests_waiting: Some(waiting),
                ..WorkerMetrics::UNKNOWN
            },
            age: Duration::from_secs(age),
        }
    }

    fn waiting(reports: &KvMetricsAggregator) -> Vec<(String, Option<u64>, bool)> {
        let ranks = reports.get_metrics(&partition("")).ranks.into_iter();
        let view = |(rank, at): (WorkerKey, RankMetrics)| {
            (rank.worker.to_string(), at.metrics.num_requests_waiting, at.is_stale)
        };
        ranks.map(view).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_newest_report_counts_until_it_is_stale() {
        advance(Duration::from_secs(100)).await;
        let reports = KvMetricsAggregator::new(Duration::from_secs(10));
        assert!(reports.report(load("a", 1, 4)));
        assert!(reports.report(load("a", 2, 9)), "it is known, and older");
        assert!(reports.report(load("b", 3, 0)));
        assert_eq!(waiting(&reports), [("a".into(), Some(1), false), ("b".into(), Some(3), false)]);
        advance(Duration::from_secs(7)).await;
        assert_eq!(waiting(&reports), [("a".into(), Some(1), true), ("b".into(), Some(3), false)]);
        reports.retain(|_, rank| rank.worker.as_str() == "b");
        assert_eq!(waiting(&reports), [("b".into(), Some(3), false)]);
    }

    #[tokio::test(start_paused = true)]
    async fn totals_outlive_what_is_in_use() {
        let reports = KvMetricsAggregator::new(Duration::from_secs(10));
        let mut at = load("a", 1, 0);
        let rank = WorkerKey { worker: at.address.worker.clone(), rank: 0 };
        let blocks = || reports.blocks_of(&partition(""), &rank);
        assert_eq!(blocks(), ReportedBlocks::default());
        (at.metrics.kv_total_blocks, at.metrics.kv_active_blocks) = (Some(400), Some(30));
        assert!(reports.report(at.clone()));
        assert_eq!(blocks(), ReportedBlocks { total: Some(400), active: Some(30) });
        advance(Duration::from_secs(11)).await;
        assert_eq!(blocks(), ReportedBlocks { total: Some(400), active: None });
        at.metrics = WorkerMetrics::UNKNOWN;
        assert!(reports.report(at));
        assert_eq!(blocks(), ReportedBlocks { total: Some(400), active: None });
    }

    #[test]
    fn a_tenant_with_too_many_ranks_leaves_others_theirs() {
        let reports = KvMetricsAggregator::new(Duration::from_secs(10));
        let of = |tenant: &str, rank: u32| {
            let mut load = load("w", 0, 0);
            load.address.partition = partition(tenant);
            WorkerLoad { rank, ..load }
        };
        let share = u32::try_from(RANKS_MAX / 2).expect("a number");
        for rank in 0..share {
            assert!(reports.report(of("loud", rank)));
        }
        assert!(!reports.report(of("loud", share)), "its half is used");
        assert!(reports.report(of("loud", 0)), "a rank that is known");
        assert!(reports.report(of("quiet", 0)));
        reports.retain(|key, rank| key.tenant() == "quiet" || rank.rank == 7);
        assert!(reports.report(of("loud", share)), "the others are gone");
        assert_eq!(reports.get_metrics(&partition("loud")).ranks.len(), 2);
    }
}
