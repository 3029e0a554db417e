use super::{build_info, process};
use prometheus_client::{
    encoding::text::{encode, encode_registry},
    registry::Registry,
};
use std::{fmt, sync::Arc};

/// Media type of [`Metrics::encode`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// An empty registry. Every module registers its own metrics; all names begin with `kvasir_`. The
/// metrics of the process itself (`process_`) come with [`Metrics`].
#[must_use]
pub fn new_registry() -> Registry {
    let mut registry = Registry::with_prefix("kvasir");
    build_info::register(&mut registry);
    registry
}

/// All metrics of the process, complete and ready to be read.
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
    /// If a metric cannot be written as text, which is a fault of that metric.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode_registry(&mut text, &self.process)?;
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
