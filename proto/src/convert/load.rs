use super::local::read_address;
use super::shared::{age_ms, check_range};
use super::{ConvertError, Problem, WorkerAddress};
use crate::limits::{
    LOADS_INTERVAL_MS_DEFAULT, LOADS_INTERVAL_MS_MAX, LOADS_INTERVAL_MS_MIN, WORKER_RANKS_MAX,
};
use crate::pb;
use crate::types::{DpRank, WorkerMetrics};
use std::time::Duration;

/// A checked `WorkerLoad`.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerLoad {
    /// The worker.
    pub address: WorkerAddress,
    /// The worker's rank, below [`WORKER_RANKS_MAX`].
    pub rank: DpRank,
    /// Load of the rank.
    pub metrics: WorkerMetrics,
    /// Age of the metrics.
    pub age: Duration,
}

/// A checked `WatchLoadsRequest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadsQuery {
    /// The worker.
    pub address: WorkerAddress,
    /// Minimum time between two answers.
    pub min_interval: Duration,
}

/// Checks the load metrics of a rank.
///
/// # Errors
/// If a share is not within 0 to 1, or an active count exceeds its total. The error names the field.
pub fn check_metrics(metrics: &WorkerMetrics) -> Result<(), ConvertError> {
    check_share("gpu_cache_usage_perc", metrics.gpu_cache_usage_perc)?;
    check_share("gpu_prefix_cache_hit_rate", metrics.gpu_prefix_cache_hit_rate)?;
    let active = metrics.request_active_slots;
    let total = metrics.request_total_slots;
    check_used("request_active_slots", active, total)?;
    check_used("kv_active_blocks", metrics.kv_active_blocks, metrics.kv_total_blocks)
}

fn check_share(field: &str, share: Option<f64>) -> Result<(), ConvertError> {
    match share {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            let actual = format!("is {share}");
            let expected = "0 to 1".to_owned();
            Err(ConvertError::new(field, Problem::Mismatch { actual, expected }))
        }
        _ => Ok(()),
    }
}

fn check_used(field: &str, used: Option<u64>, total: Option<u64>) -> Result<(), ConvertError> {
    match (used, total) {
        (Some(used), Some(total)) => check_range(field, used, 0, total),
        _ => Ok(()),
    }
}

// === impl WorkerLoad ===

impl TryFrom<pb::WorkerLoad> for WorkerLoad {
    type Error = ConvertError;

    fn try_from(load: pb::WorkerLoad) -> Result<Self, ConvertError> {
        let metrics = WorkerMetrics {
            num_requests_waiting: load.num_requests_waiting,
            gpu_cache_usage_perc: load.gpu_cache_usage_perc,
            gpu_prefix_cache_hit_rate: load.gpu_prefix_cache_hit_rate,
            request_active_slots: load.request_active_slots,
            request_total_slots: load.request_total_slots,
            kv_active_blocks: load.kv_active_blocks,
            kv_total_blocks: load.kv_total_blocks,
        };
        let address = read_address(&load.model, &load.tenant, &load.worker_id)?;
        check_range("dp_rank", load.dp_rank.into(), 0, WORKER_RANKS_MAX as u64 - 1)?;
        check_metrics(&metrics)?;
        let age = Duration::from_millis(load.age_ms);
        Ok(Self { address, rank: load.dp_rank, metrics, age })
    }
}

impl TryFrom<pb::ReportLoadRequest> for WorkerLoad {
    type Error = ConvertError;

    fn try_from(request: pb::ReportLoadRequest) -> Result<Self, ConvertError> {
        let load = request.load.ok_or_else(|| ConvertError::new("load", Problem::Required))?;
        Self::try_from(load).map_err(|error| error.within("load"))
    }
}

impl From<&WorkerLoad> for pb::WorkerLoad {
    fn from(load: &WorkerLoad) -> Self {
        let metrics = &load.metrics;
        Self {
            model: load.address.partition.model().to_owned(),
            tenant: load.address.partition.tenant().to_owned(),
            worker_id: load.address.worker.as_str().to_owned(),
            dp_rank: load.rank,
            num_requests_waiting: metrics.num_requests_waiting,
            gpu_cache_usage_perc: metrics.gpu_cache_usage_perc,
            gpu_prefix_cache_hit_rate: metrics.gpu_prefix_cache_hit_rate,
            request_active_slots: metrics.request_active_slots,
            request_total_slots: metrics.request_total_slots,
            kv_active_blocks: metrics.kv_active_blocks,
            kv_total_blocks: metrics.kv_total_blocks,
            age_ms: age_ms(load.age),
        }
    }
}

// === impl LoadsQuery ===

impl TryFrom<pb::WatchLoadsRequest> for LoadsQuery {
    type Error = ConvertError;

    fn try_from(request: pb::WatchLoadsRequest) -> Result<Self, ConvertError> {
        let interval = request.min_interval_ms.unwrap_or(LOADS_INTERVAL_MS_DEFAULT);
        let min = LOADS_INTERVAL_MS_MIN.into();
        let max = LOADS_INTERVAL_MS_MAX.into();
        check_range("min_interval_ms", interval.into(), min, max)?;
        Ok(Self {
            address: read_address(&request.model, &request.tenant, &request.worker_id)?,
            min_interval: Duration::from_millis(interval.into()),
        })
    }
}

#[cfg(test)]
#[path = "load_test.rs"]
mod tests;
