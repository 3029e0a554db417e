use super::LoadError;
use kvasir_proto::convert::{ConvertError, Problem, WorkerAddress, WorkerLoad, check_metrics};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::pb;
use kvasir_proto::types::{DpRank, WorkerMetrics};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Totals of ranks that do not report them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Maximum number of concurrent requests.
    pub request_slots: Option<u64>,
    /// Number of blocks on the device.
    pub kv_blocks: Option<u64>,
}

/// Loads of a worker's ranks.
#[derive(Debug)]
pub struct Loads {
    totals: Totals,
    stale_after: Duration,
    ranks: BTreeMap<DpRank, Entry>,
    /// Number of changes so far.
    version: u64,
}

#[derive(Debug)]
struct Entry {
    metrics: WorkerMetrics,
    /// When the load was reported.
    reported_at: Instant,
    /// Age of the load when it was reported.
    age: Duration,
    /// Number of the last change of this entry.
    version: u64,
}

/// Load of one rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// The rank.
    pub rank: DpRank,
    /// Metrics of the rank; [`WorkerMetrics::UNKNOWN`] once they were not reported for too long.
    pub metrics: WorkerMetrics,
    /// Age of the metrics.
    pub age: Duration,
}

impl Known {
    /// Message for routers.
    pub(crate) fn load(&self, address: &WorkerAddress) -> pb::WorkerLoad {
        let &Self { rank, metrics, age } = self;
        (&WorkerLoad { address: address.clone(), rank, metrics, age }).into()
    }
}

impl Entry {
    fn age(&self, now: Instant) -> Duration {
        self.age.saturating_add(now.saturating_duration_since(self.reported_at))
    }
}

impl Loads {
    /// Creates an empty set. A load that is not reported again within `stale_after` is dropped.
    #[must_use]
    pub const fn new(totals: Totals, stale_after: Duration) -> Self {
        Self { totals, stale_after, ranks: BTreeMap::new(), version: 0 }
    }

    /// Stores the load of a rank, measured `age` before `now`, in place of the earlier report. Returns whether the load
    /// has changed.
    ///
    /// # Errors
    /// If the rank or a value is out of range. Then the loads are unchanged.
    pub fn publish(
        &mut self,
        rank: DpRank,
        metrics: WorkerMetrics,
        age: Duration,
        now: Instant,
    ) -> Result<bool, LoadError> {
        let value = u64::from(rank);
        let max = WORKER_RANKS_MAX as u64 - 1;
        if value > max {
            let problem = Problem::OutOfRange { value, min: 0, max };
            return Err(ConvertError::new("dp_rank", problem).into());
        }
        let metrics = WorkerMetrics {
            request_total_slots: metrics.request_total_slots.or(self.totals.request_slots),
            kv_total_blocks: metrics.kv_total_blocks.or(self.totals.kv_blocks),
            ..metrics
        };
        check_metrics(&metrics)?;
        let before = self.ranks.get(&rank);
        let changed = before.is_none_or(|before| before.metrics != metrics);
        self.version += u64::from(changed);
        let version = before.filter(|_| !changed).map_or(self.version, |before| before.version);
        self.ranks.insert(rank, Entry { metrics, reported_at: now, age, version });
        debug_assert!(self.ranks.len() <= WORKER_RANKS_MAX, "ranks are in range");
        debug_assert!(version <= self.version, "readers have seen no later change");
        Ok(changed)
    }

    /// Resets loads that were not reported for `stale_after` to unknown. Returns whether any load was reset.
    pub fn expire(&mut self, now: Instant) -> bool {
        let before = self.version;
        for entry in self.ranks.values_mut() {
            if entry.metrics != WorkerMetrics::UNKNOWN && entry.age(now) >= self.stale_after {
                self.version += 1;
                (entry.metrics, entry.version) = (WorkerMetrics::UNKNOWN, self.version);
            }
        }
        self.version > before
    }

    /// When the next load expires, unless it is reported again; `None` without loads.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Instant> {
        let known = self.ranks.values().filter(|entry| entry.metrics != WorkerMetrics::UNKNOWN);
        // A time beyond the clock's range never comes, so it is left out.
        let left = |entry: &Entry| self.stale_after.saturating_sub(entry.age);
        known.filter_map(|entry| entry.reported_at.checked_add(left(entry))).min()
    }

    /// Number of changes so far.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Returns the loads of ranks that changed after the first `version` changes; with 0, of all ranks.
    #[must_use]
    pub fn since(&self, version: u64, now: Instant) -> Vec<Known> {
        let changed = self.ranks.iter().filter(|(_, entry)| entry.version > version);
        let known = |(&rank, entry): (&DpRank, &Entry)| {
            let metrics = entry.metrics;
            let age = entry.age(now);
            Known { rank, metrics, age }
        };
        changed.map(known).collect()
    }
}

#[cfg(test)]
#[path = "loads_test.rs"]
mod tests;
