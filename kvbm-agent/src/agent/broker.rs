use super::AgentError;
use crate::blocks::Blocks;
#[cfg(feature = "blocks")]
use crate::broker::StoragePublisher;
use crate::broker::{BrokerConfig, BrokerStatus, LoadPublisher, NatsPublisher, answer_questions};
use crate::load::LoadBoard;
use crate::service::LocalIndexerService;
use kvasir_feed::feed::Feed;
use kvasir_process::nats::NatsServers;
use kvasir_tasks::group::TaskGroup;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Parts of an agent that are published over NATS.
pub(super) struct Context<'a> {
    pub(super) feed: &'a Arc<Feed>,
    pub(super) board: &'a Arc<LoadBoard>,
    pub(super) service: &'a Arc<LocalIndexerService>,
    pub(super) blocks: Option<&'a Arc<Blocks>>,
    pub(super) heartbeat_interval: Duration,
    pub(super) loads_interval: Duration,
}

/// Starts to publish batches and loads, and to answer requests until the service ends.
pub(super) fn start(
    context: &Context<'_>,
    config: BrokerConfig,
    publishing: &mut TaskGroup,
    answering: &mut TaskGroup,
) -> Result<watch::Receiver<BrokerStatus>, AgentError> {
    let incarnation = context.feed.status().incarnation;
    let status = Arc::new(watch::Sender::new(BrokerStatus::new(incarnation)));
    let seen = status.subscribe();
    let servers = config.servers.clone();
    let refresh_interval = context.heartbeat_interval;
    let feed = Arc::clone(context.feed);
    let publisher = NatsPublisher::new(feed, config, refresh_interval, Arc::clone(&status));
    let publisher = publisher.map_err(AgentError::Broker)?;
    publishing.spawn("publisher", publisher.run(publishing.token()));
    let loads = LoadPublisher {
        address: context.feed.address().clone(),
        board: Arc::clone(context.board),
        servers: servers.clone(),
        min_interval: context.loads_interval,
        refresh_interval,
        status: Arc::clone(&status),
    };
    publishing.spawn("loads over NATS", loads.run(publishing.token()));
    start_storage(context, &servers, publishing);
    let answers = answer_questions(Arc::clone(context.service), servers, status);
    answering.spawn("LocalIndexer over NATS", answers);
    Ok(seen)
}

/// Starts to publish storage events, if there is a block manager that records them.
#[cfg(feature = "blocks")]
fn start_storage(context: &Context<'_>, servers: &NatsServers, publishing: &mut TaskGroup) {
    let Some(blocks) = context.blocks else { return };
    let address = context.feed.address().clone();
    let publisher = StoragePublisher::new(address, Arc::clone(blocks), servers.clone());
    if let Some(publisher) = publisher {
        publishing.spawn("storage events", publisher.run(publishing.token()));
    }
}

/// Does nothing: this build has no block manager.
#[cfg(not(feature = "blocks"))]
const fn start_storage(context: &Context<'_>, _servers: &NatsServers, _publishing: &mut TaskGroup) {
    let None = context.blocks else { return };
}
