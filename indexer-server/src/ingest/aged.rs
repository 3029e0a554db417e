//! After a restart, drops the restored blocks on media with a time to live. Checkpoints and siblings do not
//! store when blocks were announced, so the blocks' age is unknown.

use super::worker::Worker;
use super::{Ingest, IngestError};
use crate::partitions::{Dump, DumpError, DumpPart, IndexBatch, ResumedSource};
use kvasir_engine::normalise::tier_of_medium;
use kvasir_proto::convert::DumpQuery;
use kvasir_proto::limits::DUMP_CHUNK_RECORDS_DEFAULT;
use kvasir_proto::types::{BlockName, DpRank, KvEvent, Tier, TierSet};
use std::collections::BTreeMap;

/// Names of one source, by rank and tier.
type Aged = BTreeMap<(usize, DpRank, Tier), Vec<BlockName>>;

impl Ingest {
    /// Drops all blocks of restored `sources` in tiers with a time to live. Call before the sources receive events.
    /// Returns immediately if the worker has no such tier or `sources` is empty.
    ///
    /// # Errors
    /// If the worker cannot be dumped, or the server is stopping.
    pub(super) async fn drop_aged(
        &self,
        worker: &Worker,
        sources: &[&ResumedSource],
    ) -> Result<(), IngestError> {
        let media = worker.registration.medium_ttls.keys();
        let tiers: TierSet = media.filter_map(|medium| tier_of_medium(medium)).collect();
        if tiers.is_empty() || sources.is_empty() {
            return Ok(());
        }
        let found = self.find_aged(worker, sources, tiers).await;
        let found = found.map_err(|error| match error {
            DumpError::Index(error) => IngestError::Index(error),
            DumpError::Stopping(gone) => IngestError::Stopping(gone),
        })?;
        let blocks = found.values().map(|names| names.len() as u64).sum();
        for ((at, rank, tier), names) in found {
            let Some(ResumedSource { source, status, .. }) = sources.get(at) else { continue };
            let events = vec![KvEvent::Gone { tier, names }];
            let batch = IndexBatch { rank, events, names: Vec::new() };
            self.writer.submit(source, batch, status.clone()).await?;
        }
        if blocks > 0 {
            self.metrics.count_aged(blocks);
            let worker = worker.address();
            tracing::info!(%worker, blocks, "dropped blocks whose remaining time to live is unknown");
        }
        Ok(())
    }

    /// Reads the names of the blocks that `sources` hold in `tiers`. Reads all names before any block is dropped,
    /// because a dump records only a limited number of concurrent changes.
    async fn find_aged(
        &self,
        worker: &Worker,
        sources: &[&ResumedSource],
        tiers: TierSet,
    ) -> Result<Aged, DumpError> {
        let query = DumpQuery {
            partition: worker.partition.key().clone(),
            worker: worker.id().clone(),
            rank: None,
            chunk_records: DUMP_CHUNK_RECORDS_DEFAULT,
        };
        let mut found = Aged::new();
        let mut dump = Dump::begin(&worker.partition, self.writer.clone(), &query).await?;
        while let Some(part) = dump.next().await? {
            let DumpPart::Records(records) = part else { continue };
            for record in records {
                let of = |source: &&ResumedSource| source.source.id() == record.source;
                let Some(at) = sources.iter().position(of) else { continue };
                let by_tier = Tier::ALL.into_iter().zip(record.copies);
                for (tier, _) in
                    by_tier.filter(|&(tier, copies)| tiers.contains(tier) && copies > 0)
                {
                    found.entry((at, record.rank, tier)).or_default().push(record.name);
                }
            }
        }
        Ok(found)
    }
}
