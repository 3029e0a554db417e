use super::{Ingest, IngestError};
use crate::partitions::{SpeculationError, Speculative};
use kvasir_index::Recorded;
use kvasir_proto::convert::Placement;
use kvasir_proto::types::{HolderKind, WorkerKey};
use std::sync::Arc;

impl Ingest {
    /// Records that a prompt was just sent to a worker. The worker needs no source: placements are the only data about
    /// an engine that does not publish.
    ///
    /// # Errors
    /// If the worker belongs to another shard, is not registered, its partition has another block size,
    /// or the prompt is too long for it.
    pub async fn place(&self, placement: Placement) -> Result<Recorded, IngestError> {
        let Placement { address, rank, block_size, input, ttl } = placement;
        self.check_shard(&address.worker)?;
        let known = self.workers.get(&address).map(|entry| Arc::clone(&entry));
        let Some(known) = known else { return Err(IngestError::UnknownWorker { address }) };
        if known.kind() == HolderKind::Pool {
            return Err(IngestError::PlacedInPool { address });
        }
        let partition = &known.partition;
        let present = partition.block_size();
        if let Some(requested) = block_size.filter(|requested| *requested != present) {
            return Err(IngestError::block_size(partition, requested));
        }
        let mut buffer = Vec::new();
        let locals = input.local_hashes(present, &mut buffer)?.unwrap_or_default();
        let worker = WorkerKey { worker: known.id().clone(), rank };
        let prompt = Speculative { worker, locals, now: self.origin.elapsed(), ttl };
        let recorded = self.speculation.record(partition, prompt, || !known.is_removed()).await;
        recorded.map_err(|error| match error {
            SpeculationError::Gone => IngestError::UnknownWorker { address },
            SpeculationError::Cut(error) => {
                tracing::error!(%error, worker = %address, "a placement was recorded only in part");
                IngestError::Failed
            }
        })
    }
}
