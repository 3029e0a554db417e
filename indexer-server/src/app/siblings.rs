use super::{BuildError, restore::Plan};
use crate::{
    grpc::SiblingClient,
    ingest::Ingest,
    partitions::Writer,
    siblings::{Copier, Sibling, SiblingMetrics, offers},
};
use kvasir_process::telemetry::NotReady;
use kvasir_proto::convert::Registration;
use kvasir_tls::Dialer;
use prometheus_client::registry::Registry;
use std::sync::Arc;

/// The siblings of this server, and what is needed to copy from them.
#[derive(Debug)]
pub(super) struct Siblings {
    clients: Vec<Arc<dyn Sibling>>,
    metrics: SiblingMetrics,
    pub(super) copier: Copier,
}

impl Siblings {
    /// Asks no one yet.
    ///
    /// # Errors
    /// If a URL cannot be used.
    pub(super) fn new(
        (urls, dialer): (&[String], &Dialer),
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

    /// Asks them which workers they have, and registers those that this server lacks.
    pub(super) async fn add_to(
        &self,
        plan: &mut Plan,
        ingest: &Ingest,
        configured: &[Registration],
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
