//! Audit: compares digests, and repairs the index.

use super::Follower;
use super::audit::{Answer, BUCKETS_MAX, Blocks, put_block};
use crate::ingest::IngestError;
use crate::ingest::local::Question;
use crate::partitions::{Dump, DumpError, DumpPart, IndexedSource};
use kvasir_engine::recover::Input;
use kvasir_index::{DumpRecord, Index};
use kvasir_proto::convert::{DumpQuery, RankBuckets};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::limits::DUMP_CHUNK_RECORDS_DEFAULT;
use kvasir_proto::types::{BlockName, CopyMode, DpRank, HeldBlock, Tier};
use std::collections::{BTreeMap, BTreeSet};
use tokio::task::yield_now;

/// Maximum number of ranks in a log line.
const PLACES_LOGGED_MAX: usize = 8;

/// Result of a comparison in the index.
enum Compared {
    Same,
    Differs,
    /// Not comparable: a limit excludes blocks, or other sources feed the same ranks.
    Unaudited,
    /// The index has no digests of the source yet.
    Unread,
}

impl Follower {
    /// Compares all blocks of the source with the agent's digest. If they differ, requests the digests by bucket.
    pub(super) async fn compare(&mut self, digest: u64) -> Result<(), IngestError> {
        let mut compared = self.compare_once(digest).await?;
        if matches!(compared, Compared::Unread) && self.read_digests().await? {
            compared = self.compare_once(digest).await?;
        }
        match compared {
            Compared::Same => {
                self.ingest.metrics.count_audit("same");
                self.note_difference(false).await?;
            }
            // The difference can no longer be repaired bucket by bucket.
            Compared::Unaudited if self.audit.differs() => self.input(Input::LacksBlocks).await?,
            Compared::Unaudited | Compared::Unread => {}
            Compared::Differs => {
                tracing::warn!(
                    source = self.name,
                    worker = %self.worker.address(),
                    "the index differs from the agent: repairing the index"
                );
                self.ingest.metrics.count_audit("differs");
                self.note_difference(true).await?;
                self.ask_audit(Question::Digests, Answer::Digests(BTreeMap::new())).await?;
            }
        }
        Ok(())
    }

    /// Records and reports whether the index differs. Until the repair, the source is not exact.
    async fn note_difference(&mut self, differs: bool) -> Result<(), IngestError> {
        self.audit.set_differs(differs);
        self.publish_status().await
    }

    /// Compares the digest of all blocks once. Returns `Unaudited` if the index lacks blocks or other sources feed the
    /// same ranks, and `Unread` if the index still has to compute its digests.
    async fn compare_once(&mut self, digest: u64) -> Result<Compared, IngestError> {
        let Some(source) = self.shared.source() else {
            return Ok(if digest == 0 { Compared::Same } else { Compared::Differs });
        };
        let id = source.id();
        let compare = move |index: &mut Index| {
            // For a name with several sources, only the last source's state is stored.
            if index.lacks_blocks(id) || index.shares_ranks(id) {
                return Compared::Unaudited;
            }
            match (index.keep_digests(id), index.digest(id)) {
                (Ok(true), Some(ours)) if ours == digest => Compared::Same,
                (Ok(true), Some(_)) => Compared::Differs,
                _ => Compared::Unread,
            }
        };
        Ok(self.ingest.writer.change(source.shard(), compare).await?)
    }

    /// Compares the digests of both sides by rank, tier and bucket. Then requests the blocks of differing buckets, or a
    /// dump if too many differ.
    pub(super) async fn compare_digests(
        &mut self,
        theirs: &BTreeMap<DpRank, RankDigest>,
    ) -> Result<(), IngestError> {
        let ours = match self.shared.source() {
            Some(source) => {
                let id = source.id();
                let digests = move |index: &mut Index| index.digests(id);
                self.ingest.writer.change(source.shard(), digests).await?
            }
            None => Vec::new(),
        };
        let ours: BTreeMap<_, _> = ours.into_iter().collect();
        let ranks: BTreeSet<_> = ours.keys().chain(theirs.keys()).copied().collect();
        let nothing = RankDigest::default();
        let mut buckets = RankBuckets::new();
        let mut places = Vec::new();
        for rank in ranks {
            let ours = ours.get(&rank);
            let theirs = theirs.get(&rank);
            let ours = ours.unwrap_or(&nothing);
            let theirs = theirs.unwrap_or(&nothing);
            let differing = ours.differing(theirs);
            if !differing.is_empty() {
                buckets.insert(rank, differing);
                places.push((rank, ours.differing_tiers(theirs)));
            }
        }
        let count: usize = buckets.values().map(Vec::len).sum();
        self.log_places(count, places);
        if count == 0 {
            // Only the sum differs: the digests are wrong, not the blocks.
            self.forget_digests().await?;
            self.note_difference(false).await?;
            return self.end_audit("abandoned").await;
        }
        if count > BUCKETS_MAX {
            tracing::warn!(
                source = self.name,
                worker = %self.worker.address(),
                buckets = count,
                "too many buckets differ: dumping the source"
            );
            self.forget_digests().await?;
            self.end_audit("dumped").await?;
            return self.input(Input::LacksBlocks).await;
        }
        let question = Question::Dump { buckets: Some(buckets.clone()) };
        self.ask_audit(question, Answer::Blocks { buckets, blocks: Blocks::new() }).await
    }

    /// Logs the first differing ranks, with their tiers.
    fn log_places(&self, buckets: usize, mut places: Vec<(DpRank, Vec<Tier>)>) {
        let ranks = places.len();
        places.truncate(PLACES_LOGGED_MAX);
        tracing::warn!(
            source = self.name,
            worker = %self.worker.address(),
            buckets,
            ranks,
            ?places,
            "the index differs, by rank and tier"
        );
    }

    /// Drops the index's digests, so that they are computed again.
    async fn forget_digests(&mut self) -> Result<(), IngestError> {
        let Some(source) = self.shared.source() else { return Ok(()) };
        let id = source.id();
        let forget = move |index: &mut Index| index.forget_digests(id);
        Ok(self.ingest.writer.change(source.shard(), forget).await?)
    }

    /// Makes the given buckets of the index equal to the agent's blocks. Abandons the audit if the index is unreadable
    /// now.
    pub(super) async fn repair(
        &mut self,
        buckets: &RankBuckets,
        theirs: Blocks,
    ) -> Result<(), IngestError> {
        let rank = theirs.keys().next().map_or(0, |(rank, _)| *rank);
        let source = self.source(rank).await?;
        let Some(ours) = self.read_blocks(&source, buckets).await? else {
            return self.end_audit("abandoned").await;
        };
        let gone = ours.iter().filter(|(key, _)| !theirs.contains_key(key)).map(|(key, block)| {
            (key.0, HeldBlock { copies: [0; Tier::COUNT], parent: None, local: None, ..*block })
        });
        let set_mode = self.copy_mode == CopyMode::Set;
        let is_same = |key: &(DpRank, BlockName), block: &HeldBlock| {
            let copies = |copies: [u32; Tier::COUNT]| {
                copies.map(|copies| if set_mode { copies.min(1) } else { copies })
            };
            ours.get(key).is_some_and(|at| {
                (at.local, at.parent) == (block.local, block.parent)
                    && copies(at.copies) == copies(block.copies)
            })
        };
        let changed = theirs.iter().filter(|(key, block)| !is_same(key, block));
        let mut changes: BTreeMap<DpRank, Vec<HeldBlock>> = BTreeMap::new();
        for (rank, block) in gone.chain(changed.map(|(key, block)| (key.0, *block))) {
            changes.entry(rank).or_default().push(block);
        }
        let count: usize = changes.values().map(Vec::len).sum();
        for (rank, blocks) in changes {
            self.set_names(rank, blocks).await?;
        }
        tracing::warn!(
            source = self.name,
            worker = %self.worker.address(),
            buckets = buckets.values().map(Vec::len).sum::<usize>(),
            blocks = count,
            "the index was repaired"
        );
        if count == 0 {
            // The digests are wrong, not the blocks.
            self.forget_digests().await?;
        }
        self.ingest.metrics.repaired_blocks.inc_by(count as u64);
        self.note_difference(false).await?;
        self.end_audit("repaired").await
    }
}

// === the index's blocks ===

impl Follower {
    /// Computes the digests of the blocks that are already in the index. Returns false if the index is unreadable now;
    /// then retry later.
    async fn read_digests(&mut self) -> Result<bool, IngestError> {
        let Some(source) = self.shared.source() else { return Ok(false) };
        let mut ranks: BTreeMap<DpRank, RankDigest> = BTreeMap::new();
        let read = |record: DumpRecord| {
            let digest = block_digest(record.name, record.local);
            let held = Tier::ALL.into_iter().zip(record.copies).filter(|(_, copies)| *copies > 0);
            held.for_each(|(tier, _)| ranks.entry(record.rank).or_default().add(tier, digest));
        };
        if !self.read_indexed(&source, read).await? {
            return Ok(false);
        }
        let id = source.id();
        let ranks = ranks.into_iter().collect::<Vec<_>>();
        let set = move |index: &mut Index| index.set_digests(id, &ranks).unwrap_or(false);
        Ok(self.ingest.writer.change(source.shard(), set).await?)
    }

    /// Reads the index's blocks in some buckets. Returns `None` if the index is unreadable now; then retry later.
    async fn read_blocks(
        &mut self,
        source: &IndexedSource,
        buckets: &RankBuckets,
    ) -> Result<Option<Blocks>, IngestError> {
        let mut blocks = Blocks::new();
        let read = |record: DumpRecord| {
            let DumpRecord { rank, name, parent, local, copies, .. } = record;
            put_block(&mut blocks, buckets, rank, HeldBlock { name, parent, local, copies });
        };
        Ok(self.read_indexed(source, read).await?.then_some(blocks))
    }

    /// Passes all blocks of a source in the index to `read`. Returns false if the agent is unknown, no permit is free,
    /// or the dump fails. Meanwhile only other sources of the worker change the blocks.
    async fn read_indexed(
        &mut self,
        source: &IndexedSource,
        mut read: impl FnMut(DumpRecord),
    ) -> Result<bool, IngestError> {
        let registration = &self.worker.registration;
        let query = DumpQuery {
            partition: registration.partition.clone(),
            worker: registration.worker.clone(),
            rank: None,
            chunk_records: DUMP_CHUNK_RECORDS_DEFAULT,
        };
        // The read takes as long as a dump, so it needs a permit.
        let Some(target) = &self.ask_target else { return Ok(false) };
        let Some(_turn) = self.ingest.turns.try_read(&target.agent) else { return Ok(false) };
        let writer = self.ingest.writer.clone();
        let read_all = async {
            let mut dump = Dump::begin(&self.worker.partition, writer, &query).await?;
            while let Some(part) = dump.next().await? {
                let DumpPart::Records(records) = part else { continue };
                records.into_iter().filter(|at| at.source == source.id()).for_each(&mut read);
                yield_now().await;
            }
            Ok(())
        };
        match read_all.await {
            Ok(()) => Ok(true),
            Err(DumpError::Stopping(error)) => Err(error.into()),
            Err(DumpError::Index(error)) => {
                tracing::info!(%error, source = self.name, "the audit cannot read the index");
                Ok(false)
            }
        }
    }
}
