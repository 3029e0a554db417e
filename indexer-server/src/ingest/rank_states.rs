//! The state of every rank of every worker, for `/metrics`.

use super::Ingest;
use super::worker::Worker;
use kvasir_proto::types::{SourceState, SourceStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of ranks with their own series, which keeps a scrape below ten thousand series. Shows the first ranks
/// by model, tenant, worker and rank, the same at each scrape. The other ranks are counted.
pub const RANKS_SHOWN_MAX: usize = 1_024;

/// Reads the states of ranks at each scrape. The writer waits for at most one worker's ranks at a time.
#[derive(Debug)]
pub struct RankStates {
    ingest: Arc<Ingest>,
}

/// The state of one rank.
struct RankState {
    worker: Arc<Worker>,
    /// Empty for a worker without a known rank.
    rank: String,
    status: SourceStatus,
}

type Labels<'a> = [(&'static str, &'a str); 4];

impl RankState {
    /// Returns the labels of the rank's metrics.
    fn labels(&self) -> Labels<'_> {
        let partition = self.worker.partition.key();
        [
            ("model", partition.model()),
            ("tenant", partition.tenant()),
            ("worker", self.worker.id().as_str()),
            ("rank", &self.rank),
        ]
    }
}

impl RankStates {
    /// The rank states of all workers of `ingest`.
    #[must_use]
    pub const fn new(ingest: Arc<Ingest>) -> Self {
        Self { ingest }
    }

    /// Returns the shown ranks, and the number of ranks that are not shown.
    fn list_ranks(&self) -> (Vec<RankState>, usize) {
        let entries = self.ingest.workers.iter();
        let mut workers: Vec<_> = entries.map(|entry| Arc::clone(&entry)).collect();
        workers
            .sort_unstable_by(|a, b| (a.partition.key(), a.id()).cmp(&(b.partition.key(), b.id())));
        let mut shown = Vec::new();
        let mut left_out = 0_usize;
        for worker in workers {
            let room = RANKS_SHOWN_MAX.saturating_sub(shown.len());
            let (some, ranks) = rank_states(&worker, room);
            left_out = left_out.saturating_add(ranks.saturating_sub(some.len()));
            shown.extend(some);
        }
        (shown, left_out)
    }
}

/// Returns the states of a worker's first ranks, at most `room`, and its number of ranks. A worker whose ranks are
/// still unknown counts as one rank: `Cold`, or `CatchingUp` during a restore.
fn rank_states(worker: &Arc<Worker>, room: usize) -> (Vec<RankState>, usize) {
    let rank_state = |rank, status| RankState { worker: Arc::clone(worker), rank, status };
    let index = worker.partition.shard_of(worker.id()).read();
    let holders = || index.worker(worker.id()).into_iter().flat_map(|view| view.holders());
    let ranks = holders().count();
    if ranks > 0 {
        let shown = holders().take(room);
        return (shown.map(|at| rank_state(at.rank().to_string(), at.status())).collect(), ranks);
    }
    drop(index);
    let state = if worker.is_open() { SourceState::Cold } else { SourceState::CatchingUp };
    let status = SourceStatus { state, ..SourceStatus::default() };
    let shown = (room > 0).then(|| rank_state(String::new(), status));
    (shown.into_iter().collect(), 1)
}

impl Collector for RankStates {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let (shown, left_out) = self.list_ranks();
        let now = self.ingest.origin.elapsed();
        let help = "State of a rank's sources: 1 for the current state, 0 for the others";
        let mut family =
            encoder.encode_descriptor("worker_state", help, None, MetricType::Gauge)?;
        for at in &shown {
            let [model, tenant, worker, rank] = at.labels();
            for state in SourceState::ALL {
                let is_in = u64::from(state == at.status.state);
                let state = state.to_string();
                let labels = [model, tenant, worker, rank, ("state", &*state)];
                ConstGauge::new(is_in).encode(family.encode_family(&labels)?)?;
            }
        }
        let name = "worker_connected";
        let help = "1 while all sources that feed a rank are connected";
        let connected = |at: &RankState| Some(u64::from(at.status.connected));
        gauges(&mut encoder, name, help, None, &shown, connected)?;
        let help = "Batches announced but not yet applied, for the slowest source of a rank";
        let lag = |at: &RankState| Some(at.status.lag_batches());
        gauges(&mut encoder, "worker_lag_batches", help, None, &shown, lag)?;
        let help = "Time since a rank was last verified as up to date; absent if never verified";
        let age = |at: &RankState| {
            at.status
                .verified_at
                .map(|at| now.saturating_sub(at))
                .map(|age: Duration| age.as_secs_f64())
        };
        gauges(&mut encoder, "worker_verified_age", help, Some(&Unit::Seconds), &shown, age)?;
        let help =
            "Ranks left out of the metrics by worker because of a limit on the number of ranks";
        let name = "worker_ranks_left_out";
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(left_out as u64).encode(gauge)?;
        let held = [
            (
                "ingest_held_back",
                "Memory used by live batches that wait for missing batches",
                &self.ingest.links.held,
            ),
            (
                "ingest_deadlines",
                "Memory used by expiry deadlines of blocks on media with a time to live",
                &self.ingest.links.deadlines,
            ),
        ];
        for (name, help, held) in held {
            let unit = Some(&Unit::Bytes);
            let gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(held.bytes() as u64).encode(gauge)?;
        }
        Ok(())
    }
}

/// Encodes one family of gauges. Skips ranks for which `value` returns `None`.
fn gauges<V: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    unit: Option<&Unit>,
    shown: &[RankState],
    value: impl Fn(&RankState) -> Option<V>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for at in shown {
        if let Some(value) = value(at) {
            ConstGauge::new(value).encode(family.encode_family(&at.labels())?)?;
        }
    }
    Ok(())
}
