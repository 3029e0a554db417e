//! How busy the engines say they are: the last report of each rank, marked when it is old (`KvMetricsAggregator` of
//! document 003).

use kvasir_proto::convert::WorkerLoad;
use kvasir_proto::types::{PartitionKey, WorkerKey, WorkerMetrics};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Most ranks whose reports are remembered; of more, reports are dropped.
pub const RANKS_MAX: usize = 65_536;

/// The last report of each rank.
#[derive(Debug)]
pub struct KvMetricsAggregator {
    stale_after: Duration,
    reports: Mutex<BTreeMap<(PartitionKey, WorkerKey), Report>>,
}

#[derive(Debug, Clone, Copy)]
struct Report {
    metrics: WorkerMetrics,
    /// When its values were measured.
    measured: Instant,
}

/// The last report of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankMetrics {
    /// The values.
    pub metrics: WorkerMetrics,
    /// How long ago they were measured.
    pub age: Duration,
    /// Whether that is too long.
    pub is_stale: bool,
}

/// The reports of all ranks (`AggregatedMetrics` of document 003).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AggregatedMetrics {
    /// By partition, worker and rank.
    pub ranks: BTreeMap<(PartitionKey, WorkerKey), RankMetrics>,
}

impl KvMetricsAggregator {
    /// Nothing was reported. A report is stale after a time.
    #[must_use]
    pub fn new(stale_after: Duration) -> Self {
        Self { stale_after, reports: Mutex::default() }
    }

    /// Takes a report, unless a newer one is there. False if it is dropped because of the limit.
    pub fn report(&self, load: WorkerLoad) -> bool {
        let WorkerLoad { address, rank, metrics, age } = load;
        let now = Instant::now();
        let measured = now.checked_sub(age).unwrap_or(now);
        let key = (address.partition, WorkerKey { worker: address.worker, rank });
        let mut reports = self.reports.lock();
        if reports.len() >= RANKS_MAX && !reports.contains_key(&key) {
            return false;
        }
        let report = Report { metrics, measured };
        let known = reports.entry(key).or_insert(report);
        if known.measured <= measured {
            *known = report;
        }
        true
    }

    /// Forgets ranks that are gone.
    pub fn retain(&self, mut is_there: impl FnMut(&PartitionKey, &WorkerKey) -> bool) {
        self.reports.lock().retain(|(partition, rank), _| is_there(partition, rank));
    }

    /// The reports of all ranks.
    #[must_use]
    pub fn get_metrics(&self) -> AggregatedMetrics {
        let now = Instant::now();
        let reports = self.reports.lock();
        let view = |(key, report): (&(PartitionKey, WorkerKey), &Report)| {
            let age = now.saturating_duration_since(report.measured);
            let is_stale = age > self.stale_after;
            (key.clone(), RankMetrics { metrics: report.metrics, age, is_stale })
        };
        AggregatedMetrics { ranks: reports.iter().map(view).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::convert::WorkerAddress;
    use kvasir_proto::types::WorkerId;
    use tokio::time::advance;

    fn load(worker: &str, waiting: u64, age: u64) -> WorkerLoad {
        let partition = PartitionKey::new("m", "").expect("a name");
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
        let ranks = reports.get_metrics().ranks.into_iter();
        let view = |((_, rank), at): ((PartitionKey, WorkerKey), RankMetrics)| {
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
}
