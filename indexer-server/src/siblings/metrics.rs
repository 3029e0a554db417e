use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// Outcome of copies from siblings.
#[derive(Debug, Clone, Default)]
pub struct SiblingMetrics {
    /// Workers copied.
    pub(super) workers: Counter,
    /// Blocks that they hold.
    pub(super) blocks: Counter,
    /// Workers that no sibling could give, though one listed them.
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
            "Workers copied from a sibling at start",
            metrics.workers.clone(),
        );
        registry.register(
            "sibling_blocks_copied",
            "Blocks of workers copied from a sibling at start",
            metrics.blocks.clone(),
        );
        registry.register(
            "sibling_copy_failures",
            "Workers that start empty although a sibling listed them",
            metrics.failures.clone(),
        );
        registry.register(
            "sibling_list_failures",
            "Siblings that did not list their workers at start",
            metrics.lists_failed.clone(),
        );
        metrics
    }
}
