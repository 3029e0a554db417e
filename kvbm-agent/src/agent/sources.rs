use super::AgentError;
use super::pool::Pools;
use crate::blocks::Blocks;
use crate::ingest::{EventIngestService, IngestConfig, Refusals};
use crate::relay::{EnginePool, Relay, RelayConfig, common};
use kvasir_feed::disk::PersistedSources;
use kvasir_feed::feed::Feed;
use kvasir_feed::hub::{Hub, HubConfig};
use kvasir_tasks::group::TaskGroup;
use std::sync::Arc;
use std::time::Duration;

/// Sources of an agent's events, besides an engine that embeds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourcesConfig {
    /// Limits and options of the hub.
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
    pub(super) refusals: Option<Arc<Refusals>>,
}

/// Opens the sources of an agent: relays, block manager and `EventIngest`. Starts the relays, and waits for persisted
/// sources if the incarnation is not settled yet.
pub(super) fn start(
    feed: &Arc<Feed>,
    persisted: PersistedSources,
    config: SourcesConfig,
    blocks: Option<&Arc<Blocks>>,
    pools: &Pools,
    tasks: &mut TaskGroup,
) -> Result<Sources, AgentError> {
    let hub = Arc::new(Hub::resume(Arc::clone(feed), config.hub, persisted)?);
    let patience = patience(&config);
    let pool = pools.engine.clone().map(|pool| EnginePool { feed: pool, worker: Arc::clone(feed) });
    let relays = config.relays.into_iter().map(|relay| Relay::open(&hub, relay, pool.clone()));
    let relays = relays.collect::<Result<Vec<_>, _>>()?;
    let of_blocks = blocks.map(|blocks| blocks.open_source(&hub, pools.volume.as_ref()));
    let of_blocks = of_blocks.transpose()?;
    let ingest = config
        .ingest
        .map(|config| Arc::new(EventIngestService::new(Arc::clone(&hub), config, tasks.token())));
    hub.begin();
    if !feed.is_settled() {
        tracing::info!(
            sources = ?hub.pending(), at_most = ?patience,
            "publishes nothing until a source has shown whether its engine survived"
        );
    }
    if !config.hub.batching.is_off() {
        let hub = Arc::clone(&hub);
        let stop = tasks.token();
        tasks.spawn("batching", async move { hub.run(stop).await });
    }
    let common = common();
    if let (Some(blocks), Some(source)) = (blocks, of_blocks) {
        let publishing = Arc::clone(blocks).publish(source, tasks.token());
        tasks.spawn("blocks", async { Ok(publishing.await?) });
        tasks.spawn("volume search", Arc::clone(blocks).search_volume(tasks.token()));
    }
    for relay in relays {
        tasks.spawn("relay", relay.run(common.clone(), tasks.token()));
    }
    if let Some(service) = ingest.clone() {
        tasks.spawn("EventIngest", async move { service.run().await });
    }
    let refusals = ingest.as_ref().map(|ingest| Arc::clone(ingest.refusals()));
    Ok(Sources { hub, ingest, refusals })
}

/// How long to wait for a source on disk to prove that its engine survived.
fn patience(config: &SourcesConfig) -> Duration {
    let relays = config.relays.iter().map(|relay| relay.worker_timeout);
    relays.chain(config.ingest.map(|ingest| ingest.source_timeout)).max().unwrap_or_default()
}
