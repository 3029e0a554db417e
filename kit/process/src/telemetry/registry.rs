use super::{build_info, process};
use prometheus_client::encoding::text::{encode, encode_registry};
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// Media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Creates an empty registry. Every module registers its own metrics, with names beginning with `kvasir_`. [`Metrics`]
/// adds the metrics of the process (`process_`).
#[must_use]
pub fn new_registry() -> Registry {
    let mut registry = Registry::with_prefix("kvasir");
    build_info::register(&mut registry);
    registry
}

/// All metrics of the process, complete and readable.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Registry>,
    process: Arc<Registry>,
}

impl Metrics {
    /// Closes the registry.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        Self { registry: Arc::new(registry), process: Arc::new(process::registry()) }
    }

    /// All metrics in OpenMetrics text format, [`CONTENT_TYPE`].
    ///
    /// # Errors
    /// If a metric cannot be written as text: a bug in that metric.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.process)?;
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
