//! Common setup of this module's tests.

use super::{Ingest, IngestConfig, IngestMetrics};
use crate::partitions::{
    IndexConfig, IndexMetrics, Origin, Partitions, Speculation, SpeculationConfig,
    SpeculationMetrics, start_writers,
};
use kvasir_proto::types::LossPolicy;
use prometheus_client::registry::Registry;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// A registry with one shard and no workers.
pub(super) fn ingest() -> Ingest {
    let config = IndexConfig::new(NonZeroUsize::MIN);
    let partitions = Arc::new(Partitions::new(config, kvasir_index::Limits::default()));
    let mut registry = Registry::default();
    let metrics = IndexMetrics::register(&mut registry, Arc::clone(&partitions));
    let (writer, _threads) = start_writers(&partitions, &metrics).expect("a thread");
    let placed = SpeculationMetrics::register(&mut registry, Arc::clone(&partitions));
    let few = SpeculationConfig { blocks_max: 1, blocks_kept: 1 };
    let speculation = Speculation::new(Arc::clone(&partitions), few, placed);
    let config = IngestConfig {
        loss_policy: LossPolicy::Keep,
        degraded_ttl: Duration::from_secs(1),
        worker_timeout: Duration::from_secs(1),
        pool_source_timeout: Duration::from_secs(2),
        probe_interval: Duration::from_secs(1),
        replay_concurrency: 1,
        dump_concurrency: 2,
        shard: None,
    };
    let metrics = IngestMetrics::register(&mut registry, metrics);
    let speculation = Arc::new(speculation);
    Ingest::new(config, partitions, writer, speculation, Origin::now(), metrics)
}
