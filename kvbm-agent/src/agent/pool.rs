//! The pools that an agent feeds: its volume, and the store that its engines share with others. Each is a stream of its
//! own, to the indexers of all shards.

use super::{AgentError, disk};
use crate::blocks::BlocksConfig;
use kvasir_feed::disk::{DiskConfig, POOL_FOLDER, Verdict, leave};
use kvasir_feed::feed::{Feed, SourceConfig, new_incarnation};
use kvasir_feed::journal::JournalConfig;
use kvasir_feed::uplink::{Overrun, UplinkConfig, UplinkStatus};
use kvasir_proto::convert::{ConvertError, Registration, WorkerAddress};
use kvasir_proto::pb;
use kvasir_proto::types::{CopyMode, WorkerId};
use kvasir_tls::Dialer;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::spawn_blocking;

/// A pool and an indexer, and how far the uplink between them has come.
pub type PoolUplink = ((WorkerId, String), watch::Receiver<UplinkStatus>);

/// The streams of the pools of one agent. Their source has the name of the agent's worker: other agents see the same
/// stores, and are other sources.
#[derive(Debug)]
pub(super) struct Pools {
    /// Of what the block manager has in its volume, if it has one.
    pub(super) volume: Option<Arc<Feed>>,
    /// Of what engines announce of a store that workers share, if they have one.
    pub(super) engine: Option<Arc<Feed>>,
}

impl Pools {
    /// Opens them. The block manager publishes what its volume has after a start. Engines do not repeat what they announced:
    /// with a folder for the agent's journal, that pool's is on disk in it.
    pub(super) async fn open(
        (volume, engine): (Option<WorkerId>, Option<WorkerId>),
        of: &SourceConfig,
        (journal_dir, lora_names): (Option<&Path>, BTreeMap<u64, String>),
    ) -> Result<Self, AgentError> {
        let volume = volume.map(|pool| Feed::new(source(pool, of)).map(Arc::new)).transpose()?;
        let folder = journal_dir.map(|folder| folder.join(POOL_FOLDER));
        let engine = match engine {
            Some(pool) => Some(open_engine_pool(source(pool, of), folder, lora_names).await?),
            None => {
                end_journal(folder, of)?;
                None
            }
        };
        Ok(Self { volume, engine })
    }

    /// Starts the uplinks of all of them to some indexers: they register a pool where it is missing.
    pub(super) fn start_uplinks(
        &self,
        (dialer, heartbeat_interval): (&Dialer, Duration),
        indexers: &[&String],
        mut start: impl FnMut(&Arc<Feed>, UplinkConfig) -> watch::Receiver<UplinkStatus>,
    ) -> Result<Vec<PoolUplink>, AgentError> {
        let mut started = Vec::new();
        for pool in self.volume.iter().chain(&self.engine) {
            let id = &pool.address().worker;
            let registration = registration(pool)?;
            started.extend(indexers.iter().map(|&indexer| {
                let uplink = UplinkConfig {
                    endpoint: indexer.clone(),
                    dialer: dialer.clone(),
                    heartbeat_interval,
                    registration: Some(registration.clone()),
                    // A pool outlives its sources.
                    deregister: false,
                    // Nobody serves a dump of it.
                    overrun: Overrun::Republish,
                };
                ((id.clone(), indexer.clone()), start(pool, uplink))
            }));
        }
        Ok(started)
    }
}

/// A new incarnation publishes what is on disk. Whether that is all that indexes have is not certain after a crash of the
/// machine, and no engine proves it.
async fn open_engine_pool(
    source: SourceConfig,
    folder: Option<PathBuf>,
    lora_names: BTreeMap<u64, String>,
) -> Result<Arc<Feed>, AgentError> {
    let (feed, _sources) = disk::open_feed(source, folder, (lora_names, false)).await?;
    let feed = Arc::new(feed);
    if !feed.is_settled() {
        let restored = Arc::clone(&feed);
        let publish = move || restored.republish(restored.status().incarnation, new_incarnation());
        // It writes all that is held. A panic is in the log.
        spawn_blocking(publish).await.map_err(|_panic| AgentError::DiskPanic)?;
        feed.settle(Verdict::Continued);
    }
    Ok(feed)
}

/// Without the pool, removals in the store are not recorded: a later start with the pool must not continue from what is there.
fn end_journal(folder: Option<PathBuf>, of: &SourceConfig) -> Result<(), AgentError> {
    let Some(folder) = folder.filter(|folder| folder.exists()) else { return Ok(()) };
    Ok(leave(&DiskConfig {
        folder,
        address: of.address.clone(),
        block_size: of.block_size,
        lora_names: BTreeMap::new(),
        is_consolidated: false,
    })?)
}

fn source(pool: WorkerId, of: &SourceConfig) -> SourceConfig {
    SourceConfig {
        address: WorkerAddress { partition: of.address.partition.clone(), worker: pool },
        name: of.address.worker.as_str().to_owned(),
        block_size: of.block_size,
        incarnation: new_incarnation(),
        first_sequence: 0,
        journal: JournalConfig { copy_mode: CopyMode::Set, ..of.journal },
    }
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

#[cfg(test)]
#[cfg(feature = "disk")]
#[path = "pool_test.rs"]
mod tests;
