use crate::{
    broker::Position,
    index::{Partitions, Writer},
    ingest::Ingest,
    snapshot::{
        CheckpointConfig, CheckpointMetrics, Checkpointer, Checkpoints, Keeper, Restorer, Roster,
        SnapshotConfig, StoreError,
    },
};
use kvasir_proto::convert::WorkerAddress;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use tokio::sync::watch;

/// What is needed to write checkpoints, and to restore the one that is there.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) restorer: Restorer,
    /// Workers on disk, with their registrations.
    pub(super) stored: Vec<(WorkerAddress, Vec<u8>)>,
    pub(super) checkpointer: Checkpointer,
}

impl Kept {
    /// Opens the store of the checkpoints. With a `position` in the broker's stream, that goes on where the
    /// checkpoint has it.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub(super) async fn open(
        config: &CheckpointConfig,
        (partitions, writer): (Arc<Partitions>, Writer),
        ingest: &Arc<Ingest>,
        registry: &mut Registry,
        position: Option<Position>,
    ) -> Result<(Self, Checkpoints), StoreError> {
        let keeper = Keeper::open(SnapshotConfig::new(config.folder.clone())).await?;
        let restorer = Restorer::new(keeper.clone(), writer.clone());
        let stored = restorer.registrations().await.unwrap_or_else(|error| {
            tracing::error!(%error, "nothing is restored");
            Vec::new()
        });
        let (ingest, metrics) = (Arc::clone(ingest), CheckpointMetrics::register(registry));
        let roster = Arc::new(move || {
            let (present, expected) = ingest.restored();
            Roster { present, expected }
        });
        let (mut checkpointer, checkpoints) = Checkpointer::new(
            keeper,
            (partitions, writer),
            roster,
            config.interval,
            metrics,
            stored.iter().map(|(address, _)| address.clone()),
        );
        if let Some(position) = position {
            match restorer.stream_position().await {
                Ok(stored) => stored.into_iter().for_each(|stored| position.begin(stored)),
                Err(error) => tracing::error!(%error, "the stream is read from its beginning"),
            }
            let (on_disk, _) = watch::channel(None);
            checkpointer = checkpointer.following(Arc::new(move || position.reached()), on_disk);
        }
        Ok((Self { restorer, stored, checkpointer }, checkpoints))
    }
}
