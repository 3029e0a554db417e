use super::AgentError;
use crate::disk::KeptSource;
use crate::feed::Feed;
use crate::hub::{Hub, HubConfig};
use crate::ingest::{EventIngestService, IngestConfig};
use crate::relay::{Relay, RelayConfig, common};
use kvasir_process::tasks::Tasks;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What feeds an agent, besides who embeds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourcesConfig {
    /// How many sources there may be in all.
    pub hub: HubConfig,
    /// Engines to relay.
    pub relays: Vec<RelayConfig>,
    /// Whether engines may publish over `EventIngest`, on the port of `LocalIndexer`.
    pub ingest: Option<IngestConfig>,
}

/// The sources of a running agent.
pub(super) struct Sources {
    pub(super) hub: Arc<Hub>,
    pub(super) ingest: Option<Arc<EventIngestService>>,
}

/// Opens the sources of an agent, and starts its relays.
pub(super) fn start(
    (feed, kept): (&Arc<Feed>, Vec<KeptSource>),
    config: SourcesConfig,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> Result<Sources, AgentError> {
    let hub = Arc::new(Hub::resume(Arc::clone(feed), config.hub, kept)?);
    let relays = config.relays.into_iter().map(|relay| Relay::open(&hub, relay));
    let relays = relays.collect::<Result<Vec<_>, _>>()?;
    let ingest = config
        .ingest
        .map(|config| Arc::new(EventIngestService::new(Arc::clone(&hub), config, stop.clone())));
    hub.begin();
    if !config.hub.batching.is_off() {
        let (hub, stop) = (Arc::clone(&hub), stop.clone());
        tasks.spawn("batching", async move { hub.keep(stop).await });
    }
    let common = common();
    for relay in relays {
        tasks.spawn("relay", relay.run(common.clone(), stop.clone()));
    }
    if let Some(service) = ingest.clone() {
        tasks.spawn("EventIngest", async move { service.keep().await });
    }
    Ok(Sources { hub, ingest })
}
