use super::{Partition, Shard, Writer, WriterGone};
use kvasir_index::{DumpRecord, DumpScan, DumpSourceEnd, DumpTail, Index, IndexError};
use kvasir_proto::convert::DumpQuery;
use std::{mem, sync::Arc};

/// Why a dump ended before its end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// The index refuses it, or a change cut it off.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

/// A dump under way, in chunks of bounded size: but for a bit a block and the parked names, memory
/// does not grow with the worker. Drive it with [`next`](Self::next) to its end, or give it up with
/// [`cancel`](Self::cancel): it must not be dropped, for the index notes what changes as long as it
/// is open.
#[derive(Debug)]
pub struct Dump {
    /// The worker's.
    shard: Arc<Shard>,
    writer: Writer,
    chunk_records: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Scanning(DumpScan),
    /// What changed meanwhile, then the ends.
    Tail(std::vec::IntoIter<DumpRecord>, Vec<DumpSourceEnd>),
    Done,
}

/// A part of a dump.
#[derive(Debug)]
pub enum DumpPart {
    /// Some records, at least one.
    Records(Vec<DumpRecord>),
    /// The last part: one end per source.
    Ends(Vec<DumpSourceEnd>),
}

/// Records read under one hold of the shard's lock. While the writer waits for it, so do lookups.
const STEP_RECORDS: usize = 128;

fn read_chunk(
    shard: &Shard,
    scan: &mut DumpScan,
    chunk_records: usize,
    records: &mut Vec<DumpRecord>,
) -> Result<(), IndexError> {
    while records.len() < chunk_records {
        let step = STEP_RECORDS.min(chunk_records - records.len());
        if !shard.read().dump_chunk(scan, step, records)? {
            break;
        }
    }
    Ok(())
}

impl Dump {
    /// Begins a dump.
    ///
    /// # Errors
    /// If the worker or rank is not known, or too many dumps of it are under way.
    pub async fn begin(
        partition: &Partition,
        writer: Writer,
        query: &DumpQuery,
    ) -> Result<Self, DumpError> {
        let shard = Arc::clone(partition.shard_of(&query.worker));
        let worker = query.worker.clone();
        let rank = query.rank;
        let begin = move |index: &mut Index| index.begin_dump(&worker, rank);
        let scan = writer.change(&shard, begin).await??;
        let chunk_records = query.chunk_records;
        Ok(Self { shard, writer, chunk_records, stage: Stage::Scanning(scan) })
    }

    /// The next part; none after the ends.
    ///
    /// # Errors
    /// If a concurrent change cut the dump off, or the server is stopping; then it is over.
    pub async fn next(&mut self) -> Result<Option<DumpPart>, DumpError> {
        if let Stage::Scanning(scan) = &mut self.stage {
            let mut records = Vec::with_capacity(self.chunk_records);
            if let Err(error) = read_chunk(&self.shard, scan, self.chunk_records, &mut records) {
                self.give_up().await?;
                return Err(error.into());
            }
            if !records.is_empty() {
                return Ok(Some(DumpPart::Records(records)));
            }
            self.finish().await?;
        }
        let Stage::Tail(records, ends) = &mut self.stage else { return Ok(None) };
        let chunk: Vec<_> = records.take(self.chunk_records).collect();
        if !chunk.is_empty() {
            return Ok(Some(DumpPart::Records(chunk)));
        }
        let ends = mem::take(ends);
        self.stage = Stage::Done;
        Ok(Some(DumpPart::Ends(ends)))
    }

    async fn finish(&mut self) -> Result<(), DumpError> {
        let Stage::Scanning(scan) = mem::replace(&mut self.stage, Stage::Done) else {
            return Ok(());
        };
        let finish = move |index: &mut Index| index.finish_dump(scan);
        let tail: Result<DumpTail, IndexError> = self.writer.change(&self.shard, finish).await?;
        let DumpTail { records, ends } = tail?;
        self.stage = Stage::Tail(records.into_iter(), ends);
        Ok(())
    }

    async fn give_up(&mut self) -> Result<(), DumpError> {
        let Stage::Scanning(scan) = mem::replace(&mut self.stage, Stage::Done) else {
            return Ok(());
        };
        self.writer.change(&self.shard, move |index| index.cancel_dump(scan)).await?;
        Ok(())
    }

    /// Ends the dump at any point.
    pub async fn cancel(mut self) {
        if let Err(error) = self.give_up().await {
            tracing::debug!(%error, "a dump ends with the server");
        }
    }
}
