use super::{Partition, Shard, Writer, WriterGone};
use kvasir_index::{DumpRecord, DumpScan, DumpSourceEnd, DumpTail, Index, IndexError};
use kvasir_proto::convert::DumpQuery;
use std::mem;
use std::sync::Arc;

/// Why a dump ended early.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// The index refuses the dump, or a concurrent change aborted it.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

/// A running dump, in chunks of bounded size. Memory does not grow with the worker, except for one bit per block and
/// the parked names.
///
/// Call [`next`](Self::next) to the end, or call [`cancel`](Self::cancel). Never drop an open dump: the index records
/// changes until the dump is closed.
#[derive(Debug)]
pub struct Dump {
    /// The worker's shard.
    shard: Arc<Shard>,
    writer: Writer,
    chunk_records: usize,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Scanning(DumpScan),
    /// Changes made during the scan, then the end of each source.
    Tail(std::vec::IntoIter<DumpRecord>, Vec<DumpSourceEnd>),
    Done,
}

/// A part of a dump.
#[derive(Debug)]
pub enum DumpPart {
    /// At least one record.
    Records(Vec<DumpRecord>),
    /// The last part: one end per source.
    Ends(Vec<DumpSourceEnd>),
}

/// Records read in one critical section of the shard's lock. While the writer waits for the lock, lookups wait, too.
const STEP_RECORDS: usize = 128;

/// Appends records to `records` in short critical sections, until the chunk is full or the scan ends.
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
    /// Starts a dump of a worker, or of one rank.
    ///
    /// # Errors
    /// If the worker or rank is unknown, or too many dumps of it are running.
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

    /// Returns the next part, or `None` after the ends.
    ///
    /// # Errors
    /// If a concurrent change aborted the dump, or the server is stopping. The dump is then closed.
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

    /// Ends the scan, and reads the names that changed meanwhile. Does nothing if the scan has already ended.
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

    /// Cancels the dump, at any point.
    pub async fn cancel(mut self) {
        if let Err(error) = self.give_up().await {
            tracing::debug!(%error, "a dump ends with the server");
        }
    }
}
