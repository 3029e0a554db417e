//! Streams of the pools that an agent feeds: its volume, and the store that its engines share with other workers. Each
//! pool has its own stream to the indexers of all shards.

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

/// A pool, an indexer, and the status of the uplink between both.
pub type PoolUplink = ((WorkerId, String), watch::Receiver<UplinkStatus>);

/// Streams of an agent's pools. Each source is named after the agent's worker, because other agents publish the same
/// stores as other sources.
#[derive(Debug)]
pub(super) struct Pools {
    /// Stream of the block manager's volume, if it has one.
    pub(super) volume: Option<Arc<Feed>>,
    /// Stream of the store that workers share, as engines announce it.
    pub(super) engine: Option<Arc<Feed>>,
}

impl Pools {
    /// Opens the streams of the volume's and the engines' pool, if configured. The block manager publishes the volume's
    /// blocks after every start. Engines do not repeat their announcements, so their pool has a journal on disk, in a
    /// folder inside the agent's `journal_dir` if there is one. Without an engines' pool, ends a journal that an
    /// earlier start left there.
    pub(super) async fn open(
        volume: Option<WorkerId>,
        engine: Option<WorkerId>,
        of: &SourceConfig,
        journal_dir: Option<&Path>,
        lora_names: BTreeMap<u64, String>,
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

    /// Starts an uplink for each pool and each of `indexers`. An uplink registers its pool at an index that lacks the
    /// pool.
    pub(super) fn start_uplinks(
        &self,
        dialer: &Dialer,
        heartbeat_interval: Duration,
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
                    // No service serves a dump of the pool.
                    overrun: Overrun::Republish,
                };
                ((id.clone(), indexer.clone()), start(pool, uplink))
            }));
        }
        Ok(started)
    }
}

/// Opens the stream of the engines' pool. If its journal was restored from disk, republishes the blocks in a new
/// incarnation: after a machine crash, indexes may have other blocks than the disk, and no engine proves the contrary.
async fn open_engine_pool(
    source: SourceConfig,
    folder: Option<PathBuf>,
    lora_names: BTreeMap<u64, String>,
) -> Result<Arc<Feed>, AgentError> {
    let (feed, _sources) = disk::open_feed(source, folder, lora_names, false).await?;
    let feed = Arc::new(feed);
    if !feed.is_settled() {
        let restored = Arc::clone(&feed);
        let publish = move || restored.republish(restored.status().incarnation, new_incarnation());
        // Writes all held blocks. A panic is in the log.
        spawn_blocking(publish).await.map_err(|_panic| AgentError::DiskPanic)?;
        feed.settle(Verdict::Continued);
    }
    Ok(feed)
}

/// Ends the journal of the engines' pool in `folder`. Does nothing if the folder is missing. Without the pool, removals
/// are not recorded, so a later start with the pool must not resume this journal.
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

/// The registration of a pool.
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
