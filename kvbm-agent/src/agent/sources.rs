use super::AgentError;
use super::tasks::Tasks;
use crate::feed::Feed;
use crate::hub::{Hub, HubConfig};
use crate::relay::{Relay, RelayConfig, common};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What feeds an agent, besides who embeds it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourcesConfig {
    /// How many sources there may be in all.
    pub hub: HubConfig,
    /// Engines to relay.
    pub relays: Vec<RelayConfig>,
}

/// Opens the sources of an agent, and starts its relays.
pub(super) fn start(
    feed: &Arc<Feed>,
    config: SourcesConfig,
    tasks: &mut Tasks,
    stop: &CancellationToken,
) -> Result<Arc<Hub>, AgentError> {
    let hub = Arc::new(Hub::new(Arc::clone(feed), config.hub)?);
    let relays = config.relays.into_iter().map(|relay| Relay::open(&hub, relay));
    let relays = relays.collect::<Result<Vec<_>, _>>()?;
    let common = common();
    for relay in relays {
        tasks.spawn("relay", relay.run(common.clone(), stop.clone()));
    }
    Ok(hub)
}
