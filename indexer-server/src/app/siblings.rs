use super::BuildError;
use super::restore::{Configured, Plan};
use crate::grpc::SiblingClient;
use crate::ingest::Ingest;
use crate::partitions::Writer;
use crate::siblings::{Copier, Sibling, SiblingMetrics, offers};
use kvasir_process::telemetry::NotReady;
use kvasir_tls::Dialer;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// Clients of this server's siblings, and the copier.
#[derive(Debug)]
pub(super) struct Siblings {
    clients: Vec<Arc<dyn Sibling>>,
    metrics: SiblingMetrics,
    pub(super) copier: Copier,
}

impl Siblings {
    /// Creates a client for each sibling URL, without connecting.
    ///
    /// # Errors
    /// If a URL is invalid.
    pub(super) fn new(
        urls: &[String],
        dialer: &Dialer,
        writer: Writer,
        registry: &mut Registry,
    ) -> Result<Self, BuildError> {
        let metrics = SiblingMetrics::register(registry);
        let client = |url: &String| match SiblingClient::new(url.clone(), dialer) {
            Ok(client) => Ok(Arc::new(client) as Arc<dyn Sibling>),
            Err(error) => Err(BuildError::Sibling { url: url.clone(), error: error.to_string() }),
        };
        let clients = urls.iter().map(client).collect::<Result<_, _>>()?;
        let copier = Copier::new(writer, metrics.clone());
        Ok(Self { clients, metrics, copier })
    }

    /// Lists the siblings' workers, and adds to the plan the workers that this server lacks. Returns immediately if the
    /// configuration names zero siblings.
    pub(super) async fn add_to(
        &self,
        plan: &mut Plan,
        ingest: &Ingest,
        configured: Configured<'_>,
        not_ready: &NotReady,
    ) {
        if self.clients.is_empty() {
            return;
        }
        not_ready.set_reason("asking siblings which workers they have");
        let offers = offers(&self.clients, &self.metrics).await;
        plan.add_copies(ingest, offers, configured).await;
    }
}
