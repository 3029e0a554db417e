//! Copies workers: fetches each from a sibling, then writes it into the index.

use super::fetch::fetch;
use super::{CopyError, Fetched, Sibling, SiblingMetrics};
use crate::partitions::{
    IndexedSource, Partition, ResumedSource, ResumedWorker, Writer, WriterGone,
};
use kvasir_index::{Index, IndexError, WorkerView};
use kvasir_proto::convert::{DumpQuery, DumpedSource, WorkerAddress};
use kvasir_proto::limits::DUMP_CHUNK_RECORDS_MAX;
use kvasir_proto::types::{DpRank, HeldBlock, NameChange, SourceState, SourceStatus};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Number of names written to the index in one critical section of its lock.
const NAMES_TOGETHER: usize = 64;

/// Attempts to dump a worker at one sibling when concurrent changes abort the dump.
const TRIES_MAX: usize = 3;

/// Copies workers into the index.
#[derive(Debug)]
pub struct Copier {
    writer: Writer,
    metrics: SiblingMetrics,
    /// Siblings that did not answer: they are not asked again.
    unreachable: Mutex<BTreeSet<String>>,
}

impl Copier {
    /// Creates a copier for the indexes that `writer` changes.
    #[must_use]
    pub const fn new(writer: Writer, metrics: SiblingMetrics) -> Self {
        Self { writer, metrics, unreachable: Mutex::new(BTreeSet::new()) }
    }

    /// Metrics of the copies so far.
    #[must_use]
    pub const fn metrics(&self) -> &SiblingMetrics {
        &self.metrics
    }

    /// Number of writer threads: this many workers can be placed concurrently.
    #[must_use]
    pub fn writer_threads(&self) -> usize {
        self.writer.threads()
    }

    fn unreachable(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.unreachable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches a worker from the first sibling that answers completely. Cancel-safe.
    ///
    /// # Errors
    /// If every sibling fails: `Unknown` if all siblings have removed the worker, else the last error.
    pub async fn fetch(
        &self,
        worker: &WorkerAddress,
        from: &[Arc<dyn Sibling>],
    ) -> Result<Fetched, CopyError> {
        let mut last = None;
        for sibling in from {
            for _ in 0..TRIES_MAX {
                if self.unreachable().contains(sibling.url()) {
                    break;
                }
                let query = DumpQuery {
                    partition: worker.partition.clone(),
                    worker: worker.worker.clone(),
                    rank: None,
                    chunk_records: DUMP_CHUNK_RECORDS_MAX,
                };
                let error = match fetch(sibling.dump(query)).await {
                    Ok(fetched) => return Ok(fetched),
                    Err(error) => error,
                };
                tracing::warn!(%worker, sibling = sibling.url(), %error, "a copy failed");
                if error.is_of_sibling() {
                    self.unreachable().insert(sibling.url().to_owned());
                }
                let again = matches!(error, CopyError::CutOff(_));
                if last.is_none() || error != CopyError::Unknown {
                    last = Some(error);
                }
                if !again {
                    break;
                }
            }
        }
        self.metrics.failures.inc();
        let nobody = || CopyError::Unreachable("no sibling that has it answers".to_owned());
        Err(last.unwrap_or_else(nobody))
    }

    /// Writes a worker that the index lacks into it: the sources that have a cursor, and their blocks. Sets the cursors
    /// last.
    ///
    /// # Errors
    /// If the index refuses a source. The index then has no data of the worker.
    pub async fn place(
        &self,
        partition: &Partition,
        worker: &WorkerAddress,
        fetched: Fetched,
    ) -> Result<ResumedWorker, CopyError> {
        let mut placed = BTreeMap::new();
        match self.fill(partition, worker, fetched, &mut placed).await {
            Ok(()) => {}
            Err(error) => {
                for ResumedSource { source, .. } in placed.into_values() {
                    self.writer.remove_source(source).await?;
                }
                self.metrics.failures.inc();
                return Err(error);
            }
        }
        let blocks = {
            let index = partition.shard_of(&worker.worker).read();
            let ranks = index.worker(&worker.worker);
            let ranks = ranks.iter().flat_map(WorkerView::holders);
            ranks.map(|rank| rank.placed_blocks() + rank.parked_blocks()).sum()
        };
        self.metrics.workers.inc();
        self.metrics.blocks.inc_by(blocks);
        Ok(ResumedWorker { sources: placed.into_values().collect(), blocks })
    }

    /// Implements [`place`](Self::place). Adds the sources that are already in the index to `placed`, by number, so
    /// that the caller can remove them after a failure.
    async fn fill(
        &self,
        partition: &Partition,
        worker: &WorkerAddress,
        fetched: Fetched,
        placed: &mut BTreeMap<u32, ResumedSource>,
    ) -> Result<(), CopyError> {
        let Fetched { chunks, sources, mut names } = fetched;
        let mut incomplete = Vec::new();
        for (number, dumped) in sources.into_iter().filter(|(_, at)| at.applied.is_some()) {
            if dumped.incomplete {
                incomplete.push(number);
            }
            let added = self.add(partition, worker, dumped).await?;
            if let Some(mut added) = added {
                added.names = names.remove(&number).unwrap_or_default();
                self.set_meanings(&added).await?;
                placed.insert(number, added);
            }
        }
        for (rank, records) in chunks {
            for run in records.chunk_by(|(a, _), (b, _)| a == b) {
                let source = run.first().and_then(|(number, _)| placed.get(number));
                let Some(ResumedSource { source, .. }) = source else { continue };
                for part in run.chunks(NAMES_TOGETHER) {
                    let names = part.iter().map(|(_, held)| *held).collect();
                    self.set_names(source, rank, names).await?;
                }
            }
        }
        for (number, ResumedSource { source, status, .. }) in placed.iter() {
            if incomplete.contains(number) {
                self.writer.mark_incomplete(source).await?;
            }
            if status.state == SourceState::Degraded {
                // A dump does not mark the blocks from before a loss, so all blocks may be suspect.
                self.writer.mark_suspect(source, status.clone()).await?;
            }
            self.writer.show_status(source, status.clone()).await?;
        }
        Ok(())
    }

    /// Adds a source with all its ranks to the index, but without its cursor. Returns `None` if its list of ranks is
    /// empty.
    async fn add(
        &self,
        partition: &Partition,
        worker: &WorkerAddress,
        dumped: DumpedSource,
    ) -> Result<Option<ResumedSource>, CopyError> {
        let DumpedSource { name, copy_mode, applied, past, learned, state, reasons, ranks, .. } =
            dumped;
        let Some(&first) = ranks.first() else { return Ok(None) };
        let named = (name.as_str(), copy_mode);
        let source = self.writer.add_source(partition, &worker.worker, named, first).await??;
        let below = SourceStatus { state: SourceState::CatchingUp, ..SourceStatus::default() };
        self.writer.set_status(&source, below).await?;
        for rank in ranks {
            // The index lacks ranks beyond the limit and their blocks: the source is partial.
            self.set_names(&source, rank, Vec::new()).await?;
        }
        let status = SourceStatus {
            state: state.max(SourceState::CatchingUp),
            applied,
            past: past.into(),
            learned,
            reasons: reasons.into(),
            ..SourceStatus::default()
        };
        Ok(Some(ResumedSource { name, copy_mode, source, status, names: Vec::new() }))
    }

    /// Writes the meanings of a source's block names to the index, for later copies of the index.
    async fn set_meanings(
        &self,
        ResumedSource { source, names, .. }: &ResumedSource,
    ) -> Result<(), WriterGone> {
        for part in names.chunks(NAMES_TOGETHER) {
            let known = |&(rank, name, meaning)| NameChange { rank, name, meaning: Some(meaning) };
            let changes: Vec<NameChange> = part.iter().map(known).collect();
            let id = source.id();
            let change = move |index: &mut Index| index.change_meanings(id, &changes);
            self.writer.change(source.shard(), change).await?;
        }
        Ok(())
    }

    /// Applies the names of a copy. Marks the source as incomplete if the index refuses some names.
    async fn set_names(
        &self,
        source: &IndexedSource,
        rank: DpRank,
        names: Vec<HeldBlock>,
    ) -> Result<(), WriterGone> {
        let id = source.id();
        let set = move |index: &mut Index| -> Result<(), IndexError> {
            let set = index.set_names(id, rank, &names).map(drop);
            if set.is_err() {
                index.mark_incomplete(id);
            }
            set
        };
        if let Err(error) = self.writer.change(source.shard(), set).await? {
            tracing::debug!(%error, rank, "the index refused names of a copy");
        }
        Ok(())
    }
}
