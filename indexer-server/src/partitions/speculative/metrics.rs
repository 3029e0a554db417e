use crate::partitions::Partitions;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;
use std::sync::Arc;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: &'static str,
}

/// Outcome of speculative blocks. Recorded blocks stay until they are expired, pruned or removed.
pub const SPECULATIVE_OUTCOMES: [&str; 5] =
    ["recorded", "refreshed", "expired", "pruned", "removed"];

/// Metrics of the speculative blocks.
#[derive(Debug, Clone)]
pub struct SpeculationMetrics {
    operations: Family<Labels, Counter>,
}

impl SpeculationMetrics {
    /// Registers these metrics and the sizes by partition.
    #[must_use]
    pub fn register(registry: &mut Registry, partitions: Arc<Partitions>) -> Self {
        let metrics = Self { operations: Family::default() };
        for outcome in SPECULATIVE_OUTCOMES {
            drop(metrics.operations.get_or_create(&Labels { outcome }));
        }
        registry.register(
            "speculative_operations",
            "Speculative blocks by outcome: recorded or refreshed by a placement, expired, \
             pruned to make room, or removed with the worker",
            metrics.operations.clone(),
        );
        registry.register_collector(Box::new(Sizes { partitions }));
        metrics
    }

    pub(super) fn add(&self, outcome: &'static str, blocks: usize) {
        if blocks > 0 {
            self.operations.get_or_create(&Labels { outcome }).inc_by(blocks as u64);
        }
    }

    /// Number of blocks with one outcome so far.
    #[must_use]
    pub fn get(&self, outcome: &'static str) -> u64 {
        self.operations.get(&Labels { outcome }).map_or(0, |counter| counter.get())
    }
}

/// Sizes by partition, read at each scrape.
#[derive(Debug)]
struct Sizes {
    partitions: Arc<Partitions>,
}

impl Collector for Sizes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let partitions = self.partitions.list();
        let sizes: Vec<_> = partitions.iter().map(|at| at.speculative_size()).collect();
        let help = "Speculative blocks recorded by placements: pairs of rank and block";
        let kind = MetricType::Gauge;
        let mut family = encoder.encode_descriptor("speculative_blocks", help, None, kind)?;
        for (partition, size) in partitions.iter().zip(&sizes) {
            let labels = [("model", partition.key().model()), ("tenant", partition.key().tenant())];
            ConstGauge::new(size.blocks as u64).encode(family.encode_family(&labels)?)?;
        }
        let help = "Memory used by speculative blocks";
        let unit = Some(&Unit::Bytes);
        let mut family = encoder.encode_descriptor("speculative_memory", help, unit, kind)?;
        for (partition, size) in partitions.iter().zip(&sizes) {
            let labels = [("model", partition.key().model()), ("tenant", partition.key().tenant())];
            ConstGauge::new(size.bytes as u64).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
