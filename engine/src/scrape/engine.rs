//! Metric names of each engine, and their translation to worker metrics.

use super::exposition::{Sample, samples};
use super::{ReadError, ScrapedEngine};
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::{DpRank, WorkerMetrics};
use std::collections::{BTreeMap, BTreeSet};

/// A metric that an engine reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Metric {
    Waiting,
    Running,
    /// Fraction of the blocks in use by running requests.
    Usage,
    HitRate,
    /// Tokens looked up in the prefix cache since the start.
    Queries,
    /// Tokens found in the prefix cache since the start.
    Hits,
    /// Number of blocks, as a label.
    Blocks,
    /// Capacity in tokens.
    Tokens,
    /// Tokens of running requests.
    UsedTokens,
}

/// vLLM from 0.6. Renamed metrics appear under one of their names or both.
const VLLM: [(&str, Metric); 9] = [
    ("vllm:num_requests_waiting", Metric::Waiting),
    ("vllm:num_requests_running", Metric::Running),
    ("vllm:kv_cache_usage_perc", Metric::Usage),
    ("vllm:gpu_cache_usage_perc", Metric::Usage),
    ("vllm:prefix_cache_queries_total", Metric::Queries),
    ("vllm:gpu_prefix_cache_queries_total", Metric::Queries),
    ("vllm:prefix_cache_hits_total", Metric::Hits),
    ("vllm:gpu_prefix_cache_hits_total", Metric::Hits),
    ("vllm:cache_config_info", Metric::Blocks),
];

/// SGLang.
const SGLANG: [(&str, Metric); 6] = [
    ("sglang:num_queue_reqs", Metric::Waiting),
    ("sglang:num_running_reqs", Metric::Running),
    ("sglang:token_usage", Metric::Usage),
    ("sglang:cache_hit_rate", Metric::HitRate),
    ("sglang:max_total_num_tokens", Metric::Tokens),
    ("sglang:num_used_tokens", Metric::UsedTokens),
];

impl ScrapedEngine {
    const fn names(self) -> &'static [(&'static str, Metric)] {
        match self {
            Self::Vllm => &VLLM,
            Self::Sglang => &SGLANG,
        }
    }

    /// The label that contains the rank. Without the label, the rank is 0.
    const fn rank_label(self) -> &'static str {
        match self {
            Self::Vllm => "engine",
            Self::Sglang => "dp_rank",
        }
    }
}

/// Reported values by rank and metric. If parts of a rank (tensor or pipeline parallel) each report a value,
/// or a metric has two names, the largest value counts.
type Readings = BTreeMap<(DpRank, Metric), f64>;

/// Reads the load of an engine's ranks from its metrics. `block_size` is in tokens.
///
/// The prefix cache's hit rate covers the time since vLLM's start, but only SGLang's last batches. Values
/// that vLLM reports as a fraction of its blocks, and SGLang in tokens, are also converted to blocks.
///
/// # Errors
/// If `body` is not this engine's metrics.
pub fn read_metrics(
    engine: ScrapedEngine,
    body: &[u8],
    block_size: u32,
) -> Result<BTreeMap<DpRank, WorkerMetrics>, ReadError> {
    let text = std::str::from_utf8(body).map_err(|_not_text| ReadError::NotText)?;
    let readings = readings(engine, text)?;
    let ranks: BTreeSet<DpRank> = readings.keys().map(|(rank, _)| *rank).collect();
    let metrics = ranks.into_iter().map(|rank| {
        let metrics = Rank { readings: &readings, rank }.metrics(block_size)?;
        Ok((rank, metrics))
    });
    let metrics = metrics.collect::<Result<BTreeMap<_, _>, ReadError>>()?;
    if metrics.is_empty() {
        return Err(ReadError::Nothing(engine));
    }
    Ok(metrics)
}

/// Reads the known gauges of an engine from a Prometheus page, by rank.
fn readings(engine: ScrapedEngine, text: &str) -> Result<Readings, ReadError> {
    let names = engine.names();
    let wanted = |name: &str| names.iter().find(|(at, _)| *at == name).map(|(_, metric)| *metric);
    let mut readings = Readings::new();
    for sample in samples(text, wanted) {
        let (metric, sample) = sample?;
        // With priorities, SGLang's sums have an empty priority.
        if sample.label("priority").is_some_and(|priority| !priority.is_empty()) {
            continue;
        }
        let rank = rank(engine.rank_label(), &sample)?;
        // The label is "None" until the number is known.
        let blocks = || sample.label("num_gpu_blocks").and_then(|blocks| blocks.parse().ok());
        let value = if metric == Metric::Blocks { blocks() } else { Some(sample.value) };
        // NaN means unknown.
        if let Some(value) = value.filter(|value: &f64| !value.is_nan()) {
            let known = readings.entry((rank, metric)).or_insert(value);
            *known = known.max(value);
        }
    }
    // Each of vLLM's ranks states the sum of all.
    let is_sum = |metric: Metric| metric == Metric::Blocks;
    let stating = readings.keys().filter(|(_, metric)| is_sum(*metric)).count();
    for (_, sum) in readings.iter_mut().filter(|((_, metric), _)| is_sum(*metric)) {
        *sum /= stating as f64;
    }
    Ok(readings)
}

fn rank(label: &'static str, sample: &Sample<'_>) -> Result<DpRank, ReadError> {
    let Some(value) = sample.label(label) else { return Ok(0) };
    let rank = value.parse().ok().filter(|rank: &DpRank| (*rank as usize) < WORKER_RANKS_MAX);
    let line = sample.line;
    let value = value.to_owned();
    rank.ok_or(ReadError::Rank { line, label, value })
}

/// Reported values of one rank.
struct Rank<'a> {
    readings: &'a Readings,
    rank: DpRank,
}

impl Rank<'_> {
    fn metrics(&self, block_size: u32) -> Result<WorkerMetrics, ReadError> {
        let usage = self.get(Metric::Usage);
        let tokens = self.count("the KV cache's tokens", Metric::Tokens)?;
        let used_tokens = self.count("the used tokens", Metric::UsedTokens)?;
        let block_size = u64::from(block_size.max(1));
        let blocks = self.count("num_gpu_blocks", Metric::Blocks)?;
        let total = blocks.or(tokens.map(|tokens| tokens / block_size));
        let active = match (used_tokens, usage, total) {
            // The last block may be incomplete.
            (Some(used), _, Some(total)) => Some(used.div_ceil(block_size).min(total)),
            (Some(used), _, None) => Some(used.div_ceil(block_size)),
            (None, Some(usage), Some(total)) => {
                self.to_count("the used blocks", usage * total as f64).map(Some)?
            }
            _ => None,
        };
        Ok(WorkerMetrics {
            num_requests_waiting: self.count("the waiting requests", Metric::Waiting)?,
            gpu_cache_usage_perc: usage,
            gpu_prefix_cache_hit_rate: self.get(Metric::HitRate).or_else(|| self.hit_rate()),
            request_active_slots: self.count("the running requests", Metric::Running)?,
            request_total_slots: None,
            kv_active_blocks: active,
            kv_total_blocks: total,
        })
    }

    fn get(&self, metric: Metric) -> Option<f64> {
        self.readings.get(&(self.rank, metric)).copied()
    }

    /// Hit rate since the start; `None` before the first lookup.
    fn hit_rate(&self) -> Option<f64> {
        let queries = self.get(Metric::Queries).filter(|queries| *queries > 0.0)?;
        Some(self.get(Metric::Hits)? / queries)
    }

    fn count(&self, name: &'static str, metric: Metric) -> Result<Option<u64>, ReadError> {
        self.get(metric).map(|value| self.to_count(name, value)).transpose()
    }

    /// Rounds a value to a count.
    fn to_count(&self, metric: &'static str, value: f64) -> Result<u64, ReadError> {
        /// Maximum value up to which f64 represents every integer.
        const COUNT_MAX: f64 = 9_007_199_254_740_992.0;
        if !(0.0..=COUNT_MAX).contains(&value) {
            return Err(ReadError::Count { metric, rank: self.rank, value });
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it was checked to be in range"
        )]
        Ok(value.round() as u64)
    }
}

#[cfg(test)]
#[path = "engine_test.rs"]
mod tests;
