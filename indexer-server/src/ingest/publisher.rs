//! Sources that push: sessions of `PublishEvents`, fenced by incarnation and sequence.

use super::{Ingest, IngestError, worker::Worker};
use crate::index::IndexedSource;
use kvasir_engine::normalise::Drops;
use kvasir_index::{IndexError, SourceStatus};
use kvasir_proto::{
    convert::{Hello, PublishedBatch},
    limits::WORKER_SOURCES_MAX,
    types::{BatchOutcome, BlockCounts, CopyMode, Cursor, DpRank, Incarnation, SourceState},
};
use std::{mem, sync::Arc};
use tokio::{sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

/// A number further ahead of the cursor than this says nothing about what the publisher has.
const ANNOUNCED_AHEAD_MAX: u64 = 1 << 32;

/// One source that pushes, across its streams.
#[derive(Debug)]
pub(super) struct Publisher {
    name: String,
    /// Held while a batch is applied, so that a stream that takes over waits for it.
    state: Mutex<PublisherState>,
}

#[derive(Debug)]
struct PublisherState {
    /// The latest stream; those before are fenced.
    session: u64,
    fence: CancellationToken,
    life: Option<Life>,
    /// Since when no stream is open.
    disconnected_at: Option<Instant>,
}

/// One incarnation of a publisher.
#[derive(Debug, Clone)]
struct Life {
    incarnation: Incarnation,
    copy_mode: CopyMode,
    /// Its source in the index, once there was a batch.
    source: Option<IndexedSource>,
    status: SourceStatus,
}

impl Life {
    const fn new(hello: &Hello) -> Self {
        let status = SourceStatus {
            state: SourceState::Cold,
            applied: None,
            last_live: None,
            buffered_batches: 0,
            connected: true,
            verified_at: None,
        };
        let (incarnation, copy_mode) = (hello.incarnation, hello.copy_mode);
        Self { incarnation, copy_mode, source: None, status }
    }

    fn applied(&self) -> Option<u64> {
        self.status.applied.map(|cursor| cursor.sequence)
    }
}

/// What a batch met with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// It is in the index already.
    Duplicate,
    /// Batches before it are missing.
    Gap {
        expected: u64,
    },
    Next,
}

fn verdict(applied: Option<u64>, sequence: u64) -> Verdict {
    match applied {
        None => Verdict::Next,
        Some(applied) if sequence <= applied => Verdict::Duplicate,
        // Some sequence is greater, so there is a next one.
        Some(applied) => match applied.saturating_add(1) {
            expected if expected == sequence => Verdict::Next,
            expected => Verdict::Gap { expected },
        },
    }
}

/// Why a batch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another stream took over, or the worker was removed.
    Fenced,
    /// Batches before this one are missing.
    Gap {
        /// The one wanted.
        expected: u64,
    },
}

/// What became of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchAnswer {
    /// It is in the index.
    Acked {
        /// It was there before.
        duplicate: bool,
        /// What became of its operations.
        counts: BlockCounts,
    },
    /// It is not.
    Refused(Refusal),
}

/// One open stream of a publisher. Close it when the stream ends.
#[derive(Debug)]
pub struct Session {
    ingest: Arc<Ingest>,
    worker: Arc<Worker>,
    publisher: Arc<Publisher>,
    number: u64,
    fence: CancellationToken,
}

/// A stream is open.
#[derive(Debug)]
pub struct Accepted {
    /// The stream.
    pub session: Session,
    /// Where the index stands for this incarnation.
    pub applied: Option<Cursor>,
}

impl Worker {
    /// Fences all publishers and lets no new one in. Returns their sources.
    pub(super) async fn close_publishers(&self) -> Vec<IndexedSource> {
        let mut publishers = self.publishers.lock().await;
        publishers.closed = true;
        let mut sources = Vec::new();
        for publisher in mem::take(&mut publishers.by_name).into_values() {
            let mut state = publisher.state.lock().await;
            state.session += 1;
            state.fence.cancel();
            sources.extend(state.life.take().and_then(|life| life.source));
        }
        sources
    }
}

impl Ingest {
    /// Opens a stream for a source; an earlier stream of the same source is fenced. A new
    /// incarnation clears what the one before stored.
    ///
    /// # Errors
    /// If the worker belongs to another shard, is not registered, the hello contradicts it, or it has
    /// too many sources.
    pub async fn open(self: &Arc<Self>, hello: &Hello) -> Result<Accepted, IngestError> {
        self.check_shard(&hello.address.worker)?;
        let found = self.workers.get(&hello.address).map(|entry| Arc::clone(&entry));
        let Some(worker) = found else {
            return Err(IngestError::UnknownWorker { address: hello.address.clone() });
        };
        if worker.partition.block_size() != hello.block_size {
            return Err(IngestError::block_size(&worker.partition, hello.block_size));
        }
        let mut publishers = worker.publishers.lock().await;
        if publishers.closed {
            return Err(worker.unknown());
        }
        let sources = publishers.by_name.len() + worker.registration.endpoints.len();
        let publisher = match publishers.by_name.get(&hello.source) {
            Some(publisher) => Arc::clone(publisher),
            None if sources >= WORKER_SOURCES_MAX => {
                let (worker, limit) = (worker.id().clone(), WORKER_SOURCES_MAX);
                return Err(IndexError::TooMany { worker, what: "sources", limit }.into());
            }
            None => {
                let publisher = Arc::new(Publisher::new(hello.source.clone()));
                publishers.by_name.insert(hello.source.clone(), Arc::clone(&publisher));
                publisher
            }
        };
        let mut state = publisher.state.lock().await;
        let applied = self.begin_stream(&mut state, hello).await?;
        let (number, fence) = (state.session, state.fence.clone());
        drop(state);
        drop(publishers);
        self.metrics.publishers.inc();
        let session = Session { ingest: Arc::clone(self), worker, publisher, number, fence };
        Ok(Accepted { session, applied })
    }

    async fn begin_stream(
        &self,
        state: &mut PublisherState,
        hello: &Hello,
    ) -> Result<Option<Cursor>, IngestError> {
        let same = state.life.as_ref().filter(|life| life.incarnation == hello.incarnation);
        if same.is_some_and(|life| life.copy_mode != hello.copy_mode) {
            return Err(IngestError::CopyMode { source_name: hello.source.clone() });
        }
        let known = same.is_some();
        state.fence.cancel();
        state.fence = CancellationToken::new();
        state.session += 1;
        state.disconnected_at = None;
        if !known && let Some(old) = state.life.replace(Life::new(hello)) {
            self.drop_life(old).await?;
        }
        let Some(life) = &mut state.life else { return Ok(None) };
        life.status.connected = true;
        // What an earlier stream announced and did not send may never come.
        life.status.last_live = life.applied();
        self.publish_status(life).await?;
        Ok(life.status.applied)
    }

    async fn drop_life(&self, life: Life) -> Result<(), IngestError> {
        if let Some(source) = life.source {
            self.writer.remove_source(source).await?;
        }
        Ok(())
    }

    /// Shows a life's status, before anybody is answered about it.
    async fn publish_status(&self, life: &Life) -> Result<(), IngestError> {
        if let Some(source) = &life.source {
            self.writer.show_status(source, life.status.clone()).await?;
        }
        Ok(())
    }

    /// Drops what publishers stored that have had no stream for longer than the worker timeout.
    ///
    /// # Errors
    /// If the server is stopping.
    pub async fn expire_publishers(&self) -> Result<(), IngestError> {
        let workers: Vec<_> = self.workers.iter().map(|entry| Arc::clone(&entry)).collect();
        for worker in workers {
            let mut publishers = worker.publishers.lock().await;
            let mut expired = Vec::new();
            for (name, publisher) in &publishers.by_name {
                let mut state = publisher.state.lock().await;
                let gone = state.disconnected_at.map(|at| at.elapsed());
                if gone.is_some_and(|gone| gone >= self.config.worker_timeout) {
                    expired.push((name.clone(), state.life.take()));
                }
            }
            for (name, life) in expired {
                publishers.by_name.remove(&name);
                tracing::info!(worker = %worker.address(), source = name, "publisher expired");
                if let Some(life) = life {
                    self.drop_life(life).await?;
                }
            }
        }
        Ok(())
    }
}

impl Publisher {
    fn new(name: String) -> Self {
        let state = PublisherState {
            session: 0,
            fence: CancellationToken::new(),
            life: None,
            disconnected_at: Some(Instant::now()),
        };
        Self { name, state: Mutex::new(state) }
    }
}

impl Session {
    /// Cancelled once another stream took over or the worker was removed.
    #[must_use]
    pub const fn fenced(&self) -> &CancellationToken {
        &self.fence
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.worker.partition.block_size()
    }

    /// The sequence number wanted next; any (0) before the first batch.
    pub async fn expected(&self) -> u64 {
        let state = self.publisher.state.lock().await;
        let applied = state.life.as_ref().and_then(Life::applied);
        applied.map_or(0, |applied| applied.saturating_add(1))
    }

    /// Counts a batch that could not be read; it is not in the index and will be sent again.
    pub fn count_invalid(&self) {
        self.ingest.metrics.count_refusal("invalid");
    }

    /// Applies a batch. Run it to its end: a batch that is handed to the index and not noted here
    /// would be applied twice.
    ///
    /// # Errors
    /// If the index refuses the source, or the server is stopping.
    pub async fn apply(&self, batch: PublishedBatch) -> Result<BatchAnswer, IngestError> {
        let metrics = &self.ingest.metrics;
        let mut state = self.publisher.state.lock().await;
        let current = state.session == self.number;
        let Some(life) = state.life.as_mut().filter(|_| current) else {
            metrics.count_refusal("fenced");
            return Ok(BatchAnswer::Refused(Refusal::Fenced));
        };
        let verdict = verdict(life.applied(), batch.sequence);
        let ahead = batch.sequence.saturating_sub(life.applied().unwrap_or(batch.sequence));
        if ahead <= ANNOUNCED_AHEAD_MAX {
            life.status.last_live = life.status.last_live.max(Some(batch.sequence));
        }
        match verdict {
            Verdict::Duplicate => {
                metrics.count_batches(BatchOutcome::Duplicate, 1);
                Ok(BatchAnswer::Acked { duplicate: true, counts: BlockCounts::default() })
            }
            Verdict::Gap { expected } => {
                metrics.count_refusal("gap");
                metrics.count_state(life.status.state, SourceState::Gap);
                life.status.state = SourceState::Gap;
                self.ingest.publish_status(life).await?;
                Ok(BatchAnswer::Refused(Refusal::Gap { expected }))
            }
            Verdict::Next => self.apply_next(life, batch).await,
        }
    }

    async fn apply_next(
        &self,
        life: &mut Life,
        batch: PublishedBatch,
    ) -> Result<BatchAnswer, IngestError> {
        let ingest = &self.ingest;
        let source = self.source(life, batch.rank).await?;
        let mut status = life.status.clone();
        let (incarnation, sequence) = (life.incarnation, batch.sequence);
        status.applied = Some(Cursor { incarnation, sequence, fingerprint: None });
        if status.lag_batches() == 0 {
            status.state = SourceState::Exact;
            status.verified_at = Some(ingest.origin.elapsed());
        }
        let operations = batch.events.iter().map(kvasir_proto::types::KvEvent::operations).sum();
        ingest.metrics.count_received(operations, &Drops::default());
        ingest.metrics.count_batches(BatchOutcome::Applied, 1);
        ingest.metrics.count_state(life.status.state, status.state);
        life.status = status.clone();
        let applied = ingest.writer.apply(&source, batch.rank, batch.events, status).await?;
        let mut counts = applied.counts;
        counts.rejected += applied.refused.map_or(0, |(_, operations)| operations);
        Ok(BatchAnswer::Acked { duplicate: false, counts })
    }

    /// The source in the index; its first batch brings it in, for only then a rank is known.
    async fn source(&self, life: &mut Life, rank: DpRank) -> Result<IndexedSource, IngestError> {
        if let Some(source) = &life.source {
            return Ok(source.clone());
        }
        let (worker, named) = (&self.worker, (self.publisher.name.as_str(), life.copy_mode));
        let writer = &self.ingest.writer;
        let added = writer.add_source(&worker.partition, worker.id(), named, rank).await??;
        life.source = Some(added.clone());
        Ok(added)
    }

    /// The stream has ended.
    pub async fn close(self) {
        self.ingest.metrics.publishers.dec();
        let mut state = self.publisher.state.lock().await;
        if state.session != self.number {
            return;
        }
        state.disconnected_at = Some(Instant::now());
        if let Some(life) = &mut state.life {
            life.status.connected = false;
            if let Err(error) = self.ingest.publish_status(life).await {
                tracing::debug!(%error, "the end of a publisher's stream is not noted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts() {
        let check = |applied, sequence, expected| {
            assert_eq!(verdict(applied, sequence), expected, "{applied:?} then {sequence}");
        };
        check(None, 0, Verdict::Next);
        check(None, 77, Verdict::Next);
        check(Some(5), 5, Verdict::Duplicate);
        check(Some(5), 0, Verdict::Duplicate);
        check(Some(5), 6, Verdict::Next);
        check(Some(5), 7, Verdict::Gap { expected: 6 });
        check(Some(u64::MAX), u64::MAX, Verdict::Duplicate);
        check(Some(u64::MAX - 1), u64::MAX, Verdict::Next);
    }
}
