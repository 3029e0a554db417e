use crate::broker::{Broker, Position, Snapshots};
use crate::ingest::Ingest;
use crate::partitions::{Partitions, RegisteredBy, Writer};
use crate::snapshot::{
    CheckpointConfig, CheckpointMetrics, Checkpointer, Checkpoints, Restorer, Roster, SharedStore,
    SnapshotConfig, StoreError, StoredWorker, StreamPosition,
};
use kvasir_process::telemetry::NotReady;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::watch;

/// Components that write checkpoints and restore the latest one.
#[derive(Debug)]
pub(super) struct CheckpointParts {
    shared_store: SharedStore,
    pub(super) restorer: Restorer,
    pub(super) checkpointer: Checkpointer,
    /// Snapshots in the broker and the position on disk, if the broker's stream is read.
    pub(super) snapshots: Option<(Snapshots, watch::Receiver<Option<StreamPosition>>)>,
    /// Position of the broker's stream in the index.
    position: Option<Position>,
    resets: bool,
}

impl CheckpointParts {
    /// Opens the store of the checkpoints.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(super) async fn open(
        config: &CheckpointConfig,
        (partitions, writer): (Arc<Partitions>, Writer),
        ingest: &Arc<Ingest>,
        registry: &mut Registry,
        broker: Option<&Broker>,
    ) -> Result<(Self, Checkpoints), StoreError> {
        let place = ingest.shard().map(|shard| shard.place);
        let store = SnapshotConfig {
            shard: place,
            compacts: false,
            ..SnapshotConfig::new(config.folder.clone())
        };
        let shared_store = SharedStore::open(store).await?;
        let restorer = Restorer::new(shared_store.clone(), writer.clone());
        let ingest = Arc::clone(ingest);
        let metrics = CheckpointMetrics::register(registry);
        let roster = Arc::new(move || {
            let (present, expected) = ingest.restored();
            Roster { present, expected }
        });
        let (mut checkpointer, checkpoints) = Checkpointer::new(
            shared_store.clone(),
            partitions,
            writer,
            roster,
            config.interval,
            metrics,
        );
        let position = broker.and_then(Broker::position);
        let mut snapshots = None;
        if let Some((broker, position)) = broker.zip(position.clone()) {
            let (on_disk, position_on_disk) = watch::channel(None);
            checkpointer = checkpointer.following(Arc::new(move || position.reached()), on_disk);
            snapshots = Some((broker.snapshots(shared_store.clone(), place), position_on_disk));
        }
        let resets = broker.is_some_and(Broker::resets);
        Ok((
            Self { shared_store, restorer, checkpointer, snapshots, position, resets },
            checkpoints,
        ))
    }

    /// Returns the workers on disk. First fills an empty store from the broker's object store, or with `reset-states`
    /// purges stream, snapshots and store.
    ///
    /// # Errors
    /// If purging fails.
    pub(super) async fn stored(
        &mut self,
        not_ready: &NotReady,
    ) -> anyhow::Result<Vec<StoredWorker>> {
        let mut is_others = false;
        if let Some((snapshots, _)) = &self.snapshots {
            not_ready.set_reason("waiting for the broker, for a snapshot of the index");
            if self.resets {
                snapshots.reset().await.map_err(anyhow::Error::from_boxed)?;
            } else {
                is_others = snapshots.fetch().await.is_some();
            }
        }
        if let Some(position) = &self.position {
            match self.shared_store.call(|store| store.stream_position()).await {
                Ok(stored) => stored.into_iter().for_each(|stored| position.begin(stored)),
                Err(error) => {
                    tracing::error!(%error, "the stream position cannot be read: reading the stream from its beginning")
                }
            }
        }
        let mut stored = self.restorer.workers().await.unwrap_or_else(|error| {
            tracing::error!(%error, "the checkpoint cannot be read: restoring no workers from it");
            Vec::new()
        });
        if is_others {
            // The configuration of another replica does not imply this server's configuration.
            stored.iter_mut().for_each(|worker| worker.registered_by = RegisteredBy::Request);
        }
        self.checkpointer.knows(stored.iter().map(|worker| worker.address.clone()));
        Ok(stored)
    }
}
