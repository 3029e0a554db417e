//! The pool of an agent's volume: a stream of its own, to the indexers of all shards.

use super::AgentError;
use crate::blocks::BlocksConfig;
use kvasir_feed::feed::{Feed, SourceConfig, new_incarnation};
use kvasir_feed::journal::JournalConfig;
use kvasir_feed::uplink::{Overrun, UplinkConfig};
use kvasir_proto::convert::{ConvertError, Registration, WorkerAddress};
use kvasir_proto::pb;
use kvasir_proto::types::{CopyMode, WorkerId};
use kvasir_tls::Dialer;
use std::sync::Arc;
use std::time::Duration;

/// The stream of what an agent sees in its volume. Its source has the name of the agent's worker: other agents see the same
/// volume, and are other sources.
pub(super) fn open_pool(
    pool: Option<WorkerId>,
    of: &SourceConfig,
) -> Result<Option<Arc<Feed>>, AgentError> {
    let Some(worker) = pool else { return Ok(None) };
    let config = SourceConfig {
        address: WorkerAddress { partition: of.address.partition.clone(), worker },
        name: of.address.worker.as_str().to_owned(),
        block_size: of.block_size,
        // The block manager publishes an image after a start.
        incarnation: new_incarnation(),
        first_sequence: 0,
        journal: JournalConfig { copy_mode: CopyMode::Set, ..of.journal },
    };
    Ok(Some(Arc::new(Feed::new(config)?)))
}

/// The uplinks of the pool, if there is one: they register it where it is missing.
pub(super) fn uplinks<'a>(
    (pool, dialer, heartbeat_interval): (Option<&'a Arc<Feed>>, &Dialer, Duration),
    endpoints: impl Iterator<Item = &'a String>,
) -> Result<Vec<(&'a Arc<Feed>, UplinkConfig)>, AgentError> {
    let Some(pool) = pool else { return Ok(Vec::new()) };
    let registration = Some(registration(pool)?);
    let uplink = |endpoint: &String| UplinkConfig {
        endpoint: endpoint.clone(),
        dialer: dialer.clone(),
        heartbeat_interval,
        registration: registration.clone(),
        // A pool outlives its sources.
        deregister: false,
        // Nobody serves a dump of it.
        overrun: Overrun::Republish,
    };
    Ok(endpoints.map(|endpoint| (pool, uplink(endpoint))).collect())
}

fn registration(pool: &Feed) -> Result<Registration, AgentError> {
    let WorkerAddress { partition, worker } = pool.address();
    let request = pb::RegisterWorkerRequest {
        worker_id: worker.as_str().to_owned(),
        model: partition.model().to_owned(),
        tenant: partition.tenant().to_owned(),
        block_size: pool.block_size(),
        kind: pb::HolderKind::Pool.into(),
        ..Default::default()
    };
    Ok(Registration::try_from(request)?)
}

/// The pool of a block manager's volume.
pub(super) fn pool_of(blocks: Option<&BlocksConfig>) -> Result<Option<WorkerId>, AgentError> {
    let pool = blocks.map_or(Ok(None), BlocksConfig::pool);
    pool.map_err(|error| AgentError::Pool(ConvertError::from(error)))
}
