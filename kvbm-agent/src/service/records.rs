use super::config::STEP_RECORDS;
use super::outlet::{Outlet, Sent, failed};
use kvasir_feed::feed::{Feed, FeedDump, FeedError};
use kvasir_feed::journal::{DumpCut, DumpError, DumpStep};
use kvasir_proto::convert::{LocalDumpEnd, LocalDumpPart, LocalDumpQuery, RankBuckets};
use kvasir_proto::digest::{block_digest, digest_bucket};
use kvasir_proto::pb;
use kvasir_proto::types::{BlockName, DpRank, HeldBlock, Tier};
use rustc_hash::FxHashSet;
use std::mem;
use std::sync::Arc;
use tokio::task::yield_now;

/// Sends the records of a dump, then its end. Sends the current incarnation instead if the query names another one.
pub(super) async fn send_dump(
    feed: &Arc<Feed>,
    query: LocalDumpQuery,
    outlet: &Outlet<pb::LocalDumpResponse>,
) -> Sent {
    let dump = match FeedDump::begin(feed, query.incarnation).await {
        Ok(dump) => dump,
        Err(FeedError::Dump(DumpError::WrongIncarnation { present })) => {
            return outlet.send(Ok(LocalDumpPart::WrongIncarnation { present }.into())).await;
        }
        Err(error) => return outlet.send(Err(failed(error.code(), error))).await,
    };
    let chunk_records = query.chunk_records;
    let wanted = query.buckets.map(|buckets| Wanted { buckets, sent: FxHashSet::default() });
    let mut chunks =
        Chunks { outlet, chunk_records, wanted, rank: 0, records: Vec::new(), sent: 0 };
    let cut = loop {
        match dump.step(STEP_RECORDS) {
            Ok(DumpStep::Records { rank, mut records }) => {
                if let Some(wanted) = &mut chunks.wanted {
                    records.retain(|record| wanted.takes(rank, record));
                }
                chunks.add(rank, records).await?;
            }
            Ok(DumpStep::Cut(cut)) => break cut,
            Err(error) => return outlet.send(Err(failed(error.code(), error))).await,
        }
        // Lets other tasks run between steps.
        yield_now().await;
    };
    // Lets the next dump begin: this one is read completely.
    drop(dump);
    chunks.finish_dump(cut).await
}

/// Requested buckets, and their names sent so far. If a sent name changes later, the change must be sent, too.
struct Wanted {
    buckets: RankBuckets,
    sent: FxHashSet<(DpRank, BlockName)>,
}

impl Wanted {
    /// Returns whether to send a record: its block is cached and in a requested bucket, or an earlier version of it was
    /// sent.
    fn takes(&mut self, rank: DpRank, record: &HeldBlock) -> bool {
        let bucket = digest_bucket(block_digest(record.name, record.local));
        let buckets = self.buckets.get(&rank);
        let is_held = record.copies != [0; Tier::COUNT];
        if is_held && buckets.is_some_and(|buckets| buckets.binary_search(&bucket).is_ok()) {
            self.sent.insert((rank, record.name));
            return true;
        }
        self.sent.contains(&(rank, record.name))
    }
}

/// Collects records into chunks of one rank, and sends them.
struct Chunks<'a> {
    outlet: &'a Outlet<pb::LocalDumpResponse>,
    chunk_records: usize,
    /// `None` sends all records.
    wanted: Option<Wanted>,
    rank: DpRank,
    /// Records not sent yet: at most a chunk, and one step.
    records: Vec<HeldBlock>,
    sent: u64,
}

impl Chunks<'_> {
    /// Adds records, and sends complete chunks. A chunk has records of one rank.
    async fn add(&mut self, rank: DpRank, records: Vec<HeldBlock>) -> Sent {
        if rank != self.rank {
            self.flush(1).await?;
            self.rank = rank;
        }
        self.records.extend(records);
        self.flush(self.chunk_records).await
    }

    /// Sends full chunks of records until fewer than `records_min` are left.
    async fn flush(&mut self, records_min: usize) -> Sent {
        while self.records.len() >= records_min {
            let rest = self.records.split_off(self.chunk_records.min(self.records.len()));
            let records = mem::replace(&mut self.records, rest);
            self.sent += records.len() as u64;
            let chunk = LocalDumpPart::Chunk { rank: self.rank, records };
            self.outlet.send(Ok(chunk.into())).await?;
        }
        Ok(())
    }

    /// Sends the records that changed during the dump, and the end of the dump.
    async fn finish_dump(mut self, cut: DumpCut) -> Sent {
        for (rank, mut records) in cut.records {
            if let Some(wanted) = &mut self.wanted {
                records.retain(|record| wanted.takes(rank, record));
            }
            self.add(rank, records).await?;
        }
        self.flush(1).await?;
        let end = LocalDumpEnd {
            incarnation: cut.incarnation,
            watermark: cut.watermark,
            records: self.sent,
            incomplete: !cut.incomplete.is_empty(),
        };
        self.outlet.send(Ok(LocalDumpPart::End(end).into())).await
    }
}
