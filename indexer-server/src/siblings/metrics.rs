use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;

/// Metrics of copies from siblings.
#[derive(Debug, Clone, Default)]
pub struct SiblingMetrics {
    /// Number of copied workers.
    pub(super) workers: Counter,
    /// Number of blocks of the copied workers.
    pub(super) blocks: Counter,
    /// Workers that a sibling listed, but that could not be copied from any sibling.
    pub(super) failures: Counter,
    /// Siblings that did not list their workers.
    pub(super) lists_failed: Counter,
}

impl SiblingMetrics {
    /// Registers the metrics.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "sibling_workers_copied",
            "Workers copied from sibling servers at start",
            metrics.workers.clone(),
        );
        registry.register(
            "sibling_blocks_copied",
            "Blocks of the workers copied from sibling servers at start",
            metrics.blocks.clone(),
        );
        registry.register(
            "sibling_copy_failures",
            "Workers that a sibling server listed but that could not be copied: they start empty",
            metrics.failures.clone(),
        );
        registry.register(
            "sibling_list_failures",
            "Sibling servers that failed to list workers at start",
            metrics.lists_failed.clone(),
        );
        metrics
    }
}
