use super::{Ingest, IngestError};
use kvasir_proto::convert::ReuseReport;
use std::sync::Arc;

impl Ingest {
    /// Compares the actual reuse of prompts with the prediction. Returns the number of requests that differ.
    ///
    /// # Errors
    /// If the worker belongs to another shard or is not registered, or the server is stopping.
    pub async fn compare_reuse(&self, report: ReuseReport) -> Result<u32, IngestError> {
        let ReuseReport { address, rank, requests } = report;
        self.check_shard(&address.worker)?;
        let known = self.workers.get(&address).map(|entry| Arc::clone(&entry));
        let Some(known) = known else { return Err(IngestError::UnknownWorker { address }) };
        let partition = &known.partition;
        let block_size = partition.block_size();
        let mut differing = 0;
        for reused in &requests {
            let difference = reused.difference(block_size);
            differing += u32::from(difference != 0);
            #[expect(clippy::cast_precision_loss, reason = "prompts have fewer than 2^53 tokens")]
            self.metrics.reuse_difference.observe(difference as f64);
        }
        let worker = known.id().clone();
        let compare = move |index: &mut kvasir_index::Index| {
            index.compare_reuse(&worker, rank, &requests, block_size);
        };
        let shard = partition.shard_of(known.id());
        self.writer.change(shard, compare).await?;
        Ok(differing)
    }
}
