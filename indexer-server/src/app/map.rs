//! Watches the map of shards and adopts each change.

use super::restore::named;
use crate::broker::ShardMaps;
use crate::config::{ConfigError, ReadMap, parse_shard_map, read_shard_map};
use crate::ingest::{Ingest, IngestError};
use anyhow::Context;
use kvasir_process::telemetry::NotReady;
use kvasir_proto::convert::Registration;
use kvasir_proto::hash::bucket;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Longest wait for the broker's map of shards at start.
const FIRST_MAP_TIMEOUT: Duration = Duration::from_secs(30);

/// Watches the map of shards.
#[derive(Debug)]
pub(super) enum MapFollower {
    /// In a file, read again at each SIGHUP.
    File(PathBuf, Signal),
    /// In NATS' key-value store. The server is not ready until the first map was read.
    Broker(Box<ShardMaps>, Option<NotReady>),
}

impl MapFollower {
    /// Watches a file. From now on SIGHUP does not end the process.
    ///
    /// # Errors
    /// If the signal handler cannot be installed.
    pub(super) fn of_file(path: PathBuf) -> io::Result<Self> {
        Ok(Self::File(path, signal(SignalKind::hangup())?))
    }

    /// Adopts the broker's first map, before a checkpoint is read. Waits up to [`FIRST_MAP_TIMEOUT`], then goes on with
    /// equal ranges of buckets. Returns immediately for a map in a file.
    pub(super) async fn adopt_first_map(&mut self, ingest: &Arc<Ingest>, workers: &[Registration]) {
        let Self::Broker(maps, not_ready) = self else { return };
        match timeout(FIRST_MAP_TIMEOUT, maps.next()).await.map(|text| parse_shard_map(&text)) {
            Ok(Ok(map)) => adopt(ingest, workers, map).await,
            Ok(Err(error)) => refused(&error.to_string()),
            Err(_late) => tracing::warn!("no map of shards came for {FIRST_MAP_TIMEOUT:?}"),
        }
        *not_ready = None;
    }

    /// Adopts each new map and registers the `workers` that move to this shard. Logs and ignores an invalid map.
    pub(super) async fn run(
        mut self,
        ingest: Arc<Ingest>,
        workers: Vec<Registration>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        loop {
            let map = select! {
                () = stop.cancelled() => return Ok(()),
                map = self.next() => map?,
            };
            match map {
                Ok(map) => adopt(&ingest, &workers, map).await,
                Err(error) => refused(&error.to_string()),
            }
        }
    }

    /// Waits for the next map and parses it. A file is read after each SIGHUP; the broker sends each new map.
    async fn next(&mut self) -> anyhow::Result<Result<ReadMap, ConfigError>> {
        match self {
            Self::File(path, hangup) => {
                hangup.recv().await.context("listen for SIGHUP")?;
                let path = path.clone();
                Ok(spawn_blocking(move || read_shard_map(&path)).await?)
            }
            Self::Broker(maps, _) => Ok(parse_shard_map(&maps.next().await)),
        }
    }
}

fn refused(error: &str) {
    tracing::error!(error, "the new map of shards is rejected");
}

/// Adopts a newer map, and registers the configured workers whose buckets moved to this shard. Logs a rejected map and
/// keeps the previous map.
async fn adopt(ingest: &Arc<Ingest>, workers: &[Registration], read: ReadMap) {
    let ReadMap { map, warning } = read;
    if let Some(warning) = warning {
        tracing::warn!("{warning}");
    }
    let version = map.version();
    let before = match ingest.adopt(map).await {
        Ok(before) => before,
        Err(error) => return refused(&error.to_string()),
    };
    tracing::info!(version, "the map of shards changed");
    let Some((shard, before)) = ingest.shard().zip(before) else { return };
    let place = shard.place.shard();
    for registration in workers {
        let bucket = bucket(&registration.worker);
        let comes = shard.map.accepts(place, bucket) && !before.accepts(place, bucket);
        if comes && let Err(error) = ingest.configure(registration.clone()).await {
            tracing::error!(
                worker = %registration.worker, %error,
                "a configured worker of a gained bucket is not registered"
            );
        }
    }
}

/// Registers the configured workers of this shard. Several shards may have the same configuration. A worker that
/// contradicts the checkpoint or siblings is logged and left out, and the server starts without it.
///
/// # Errors
/// The first worker that is refused for another reason.
pub(super) async fn register_configured(
    ingest: &Arc<Ingest>,
    workers: &[Registration],
) -> Result<(), (String, IngestError)> {
    for registration in workers {
        match ingest.configure(registration.clone()).await {
            Ok(_) => {}
            Err(IngestError::WrongShard(wrong)) => {
                tracing::info!(worker = %wrong.worker, owner = wrong.owner, "worker belongs to another shard");
            }
            Err(
                error @ (IngestError::Partition(_)
                | IngestError::Exhausted(_)
                | IngestError::SocketInUse { .. }),
            ) => {
                leave_out(ingest, registration, &error);
            }
            Err(error) => return Err((registration.worker.to_string(), error)),
        }
    }
    Ok(())
}

/// Logs why a configured worker is skipped: it contradicts workers of its partition that came from a checkpoint or a
/// sibling.
fn leave_out(ingest: &Ingest, registration: &Registration, error: &IngestError) {
    let there = ingest.workers_of(&registration.partition).into_iter();
    let there: Vec<_> = there.map(|worker| worker.to_string()).collect();
    tracing::error!(
        worker = %registration.address(), %error, others = named(&there),
        "the configured worker is not registered: it contradicts the others, which a checkpoint or a sibling \
         has brought back: remove these with RemoveWorker and start the server again, or change --worker"
    );
}
