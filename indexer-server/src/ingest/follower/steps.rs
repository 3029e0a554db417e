//! Applies the steps of a recovery to the index.

use super::{Chunk, Follower, HeldBatch, recovery};
use crate::ingest::IngestError;
use crate::ingest::answer::{BatchAnswer, Refusal};
use crate::ingest::local::Round;
use crate::ingest::push_source::Opened;
use crate::partitions::IndexedSource;
use kvasir_engine::normalise::Drops;
use kvasir_engine::recover::{Input, OutcomeCounts, Step};
use kvasir_proto::convert::{Hello, PublishedBatch};
use kvasir_proto::types::{
    BatchOutcome, BlockCounts, DpRank, HeldBlock, KvEvent, SourceState, SourceStatus, StateReason,
};
use std::mem;
use std::sync::Arc;

/// Number of names of a dump that are set in one critical section of the lock.
const NAMES_TOGETHER: usize = 64;

impl Follower {
    /// Executes one step of the recovery.
    pub(super) async fn carry_out(
        &mut self,
        step: Step<HeldBatch, Chunk>,
    ) -> Result<(), IngestError> {
        match step {
            Step::Apply { cursor, item } => {
                let counts = self.apply(item.0).await?;
                let acked = BatchAnswer::Acked { duplicate: false, counts };
                self.answer(cursor.sequence, acked);
            }
            Step::Refuse { sequence, expected } => {
                self.ingest.metrics.count_refusal("gap");
                self.publish_status().await?;
                self.answer(sequence, BatchAnswer::Refused(Refusal::Gap { expected }));
            }
            Step::NewIncarnation { incarnation } => {
                let worker = self.worker.address();
                tracing::info!(%incarnation, source = self.name, %worker, "the source began a new incarnation");
                self.drop_source().await?;
            }
            Step::Expired => {
                let worker = self.worker.address();
                tracing::info!(source = self.name, %worker, "publisher expired");
                self.drop_source().await?;
                self.shared.set_idle(true);
            }
            Step::BeginDump => self.begin_dump().await?,
            Step::Chunk { chunk: (rank, records) } => self.set_names(rank, records).await?,
            Step::FinishDump { cursor } => {
                tracing::info!(
                    source = self.name,
                    worker = %self.worker.address(),
                    through = cursor.map(|cursor| cursor.sequence),
                    incomplete = self.dump_is_incomplete,
                    "dump complete"
                );
                self.finish_dump().await?;
            }
            Step::MarkSuspect | Step::ClearLost | Step::DropSuspects => {
                self.change_lost(&step).await?;
            }
            Step::Ask { round, ask } => {
                let start =
                    |target| Round::start(round, ask, target, Arc::clone(&self.ingest.turns));
                self.round = self.ask_target.as_ref().map(start);
            }
            Step::Cancel { .. } => {
                if let Some(Round { ask, .. }) = self.round.take() {
                    self.ingest.metrics.count_ask(ask, "cancelled");
                }
            }
        }
        Ok(())
    }

    /// Applies a batch to the index, and returns the outcome of its operations. A clear of all blocks also clears the
    /// recorded contradictions.
    async fn apply(&mut self, batch: PublishedBatch) -> Result<BlockCounts, IngestError> {
        let PublishedBatch { rank, events, .. } = batch;
        let source = self.source(rank).await?;
        let has_clear = events.iter().any(|event| matches!(event, KvEvent::Cleared));
        let status = self.status();
        let operations = events.iter().map(KvEvent::operations).sum();
        self.ingest.metrics.count_received(operations, &Drops::default());
        self.note_shown(&status);
        let applied = self.ingest.writer.apply(&source, rank, events, status).await?;
        let mut counts = applied.counts;
        counts.rejected += applied.refused.map_or(0, |(_, operations)| operations);
        if has_clear && !self.contradictions.is_empty() {
            let writer = &self.ingest.writer;
            let id = source.id();
            let is_all = move |index: &mut kvasir_index::Index| {
                index.feeds_only(id, rank) || index.holds_nothing(id)
            };
            if writer.change(source.shard(), is_all).await? {
                self.contradictions = Arc::default();
                self.publish_status().await?;
            }
        }
        Ok(counts)
    }

    /// Answers the waiting batch with this number, if there is one.
    pub(super) fn answer(&mut self, sequence: u64, answer: BatchAnswer) {
        let found = self.waiting.iter().position(|waiting| waiting.sequence == sequence);
        if let Some(waiting) = found.and_then(|at| self.waiting.remove(at)) {
            waiting.answer(Ok(answer));
        }
    }

    // === dumps ===

    /// Prepares the index for a dump. Clears the source if the index lacks some of its blocks; otherwise marks its
    /// blocks as suspect, so that queries still find them.
    async fn begin_dump(&mut self) -> Result<(), IngestError> {
        self.is_torn = true;
        let worker = self.worker.address();
        tracing::info!(source = self.name, %worker, "dump begins");
        let Some(source) = self.shared.source() else { return Ok(()) };
        // Refused or evicted blocks are certain to be present only after a complete dump into an empty index.
        let lacks = self.index_lacks(&source).await?;
        if lacks {
            self.contradictions = Arc::default();
        }
        let status = self.status();
        self.note_shown(&status);
        let writer = &self.ingest.writer;
        if lacks {
            writer.clear(&source, status).await?
        } else {
            writer.mark_suspect(&source, status).await?
        }
        Ok(())
    }

    /// Whether the index rejected or evicted blocks of the source.
    pub(super) async fn index_lacks(
        &mut self,
        source: &IndexedSource,
    ) -> Result<bool, IngestError> {
        let writer = &self.ingest.writer;
        let id = source.id();
        Ok(writer.change(source.shard(), move |index| index.lacks_blocks(id)).await?)
    }

    /// Applies the records of a dump to a rank. Logs records that the index refuses.
    pub(super) async fn set_names(
        &mut self,
        rank: DpRank,
        records: Vec<HeldBlock>,
    ) -> Result<(), IngestError> {
        let source = self.source(rank).await?;
        for part in records.chunks(NAMES_TOGETHER) {
            let id = source.id();
            let part = part.to_vec();
            let set = move |index: &mut kvasir_index::Index| index.set_names(id, rank, &part);
            if let Err(error) = self.ingest.writer.change(source.shard(), set).await? {
                tracing::debug!(%error, source = self.name, "the index refused names of a dump");
            }
        }
        Ok(())
    }

    /// Drops the blocks that the dump did not contain, and clears the recorded contradictions. Marks the source as
    /// incomplete if the agent's dump was.
    async fn finish_dump(&mut self) -> Result<(), IngestError> {
        self.is_torn = false;
        self.audit.set_differs(false);
        let Some(source) = self.shared.source() else { return Ok(()) };
        let writer = &self.ingest.writer;
        writer.drop_suspects(&source).await?;
        self.contradictions = Arc::default();
        if mem::take(&mut self.dump_is_incomplete) {
            writer.mark_incomplete(&source).await?;
        }
        Ok(())
    }

    // === the source in the index ===

    /// Applies lost batches to the index: drops suspects, clears the source, or marks its blocks as suspect, as the
    /// step says.
    async fn change_lost(&mut self, step: &Step<HeldBatch, Chunk>) -> Result<(), IngestError> {
        let source = self.shared.source();
        if matches!(step, Step::DropSuspects) {
            let Some(source) = source else { return Ok(()) };
            return Ok(self.ingest.writer.drop_suspects(&source).await?);
        }
        // From here on, the state shows that the blocks are unreliable.
        self.is_torn = false;
        let Some(source) = source else { return Ok(()) };
        tracing::warn!(source = self.name, worker = %self.worker.address(), "batches were lost");
        if matches!(step, Step::ClearLost) {
            self.contradictions = Arc::default();
        }
        let status = self.status();
        self.note_shown(&status);
        let writer = &self.ingest.writer;
        if matches!(step, Step::ClearLost) {
            writer.clear(&source, status).await?;
        } else {
            writer.mark_suspect(&source, status).await?;
        }
        Ok(())
    }

    /// Returns the source in the index. Adds it with its first rank.
    pub(super) async fn source(&mut self, rank: DpRank) -> Result<IndexedSource, IngestError> {
        if let Some(source) = self.shared.source() {
            return Ok(source);
        }
        let worker = &self.worker;
        let named = (self.name.as_str(), self.copy_mode);
        let writer = &self.ingest.writer;
        let added = writer.add_source(&worker.partition, worker.id(), named, rank).await??;
        if self.audit.is_wanted() {
            // An empty source needs no scan to start digests.
            let id = added.id();
            writer.change(added.shard(), move |index| index.keep_digests(id)).await??;
        }
        self.shared.set_source(Some(added.clone()));
        // The batch that adds the source is not applied yet: neither readers nor a checkpoint may see it as applied.
        let status = self.status();
        let state = status.state.max(SourceState::CatchingUp);
        let status = SourceStatus { state, applied: None, ..status };
        self.shown = SourceStatus::default();
        self.note_shown(&status);
        self.ingest.writer.show_status(&added, status).await?;
        Ok(added)
    }

    /// Removes the source and its blocks from the index. A source that the index lacks only loses its recorded
    /// contradictions.
    pub(super) async fn drop_source(&mut self) -> Result<(), IngestError> {
        self.is_torn = false;
        self.audit.set_differs(false);
        self.contradictions = Arc::default();
        if let Some(source) = self.shared.source() {
            self.ingest.writer.remove_source(source).await?;
            self.shared.set_source(None);
        }
        Ok(())
    }

    /// Removes a disconnected source of a pool. Returns immediately if the source is connected again.
    pub(super) async fn give_up(&mut self) -> Result<(), IngestError> {
        if self.stream_incarnation.is_some() {
            return Ok(());
        }
        let worker = self.worker.address();
        tracing::info!(source = self.name, %worker, "dropped a source of the pool");
        self.drop_source().await?;
        self.recovery = recovery(&self.ingest, &self.worker, &self.name, None);
        (self.counted, self.shown) = (OutcomeCounts::default(), SourceStatus::default());
        self.shared.set_idle(true);
        Ok(())
    }

    /// Requests blocks that the index lacks.
    pub(super) async fn heal(&mut self) -> Result<(), IngestError> {
        match self.shared.source() {
            Some(source) if self.index_lacks(&source).await? => {
                self.input(Input::LacksBlocks).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the status of the source. Its state is the worst of the recovery's state, the source's own state, an
    /// incomplete dump, and a difference found by an audit.
    fn status(&self) -> SourceStatus {
        let status = self.recovery.status();
        let stated = self.stated.now();
        let torn = if self.is_torn { SourceState::CatchingUp } else { SourceState::Exact };
        let differs = if self.audit.differs() { SourceState::Gap } else { SourceState::Exact };
        SourceStatus {
            state: status.state.max(stated.state).max(torn).max(differs),
            applied: status.applied.filter(|_| !self.is_torn),
            connected: status.connected && !stated.engine_away,
            verified_at: status.verified_at.map(|at| at.min(stated.verified_at.unwrap_or(at))),
            reasons: self.reasons(),
            ..status
        }
    }

    /// Returns the reasons why the source is worse than exact: reported reasons, and contradictions from an earlier
    /// process.
    fn reasons(&self) -> Arc<[StateReason]> {
        let stated = &self.stated.now().reasons;
        if stated.is_empty() {
            return Arc::clone(&self.contradictions);
        }
        let mut reasons = stated.clone();
        for seen in &*self.contradictions {
            StateReason::note(&mut reasons, seen.clone());
        }
        reasons.into()
    }

    /// Adds to each reason of a heartbeat the time since which it is known. Counts new occurrences in the metrics.
    pub(super) fn add_times(&self, mut reasons: Vec<StateReason>) -> Vec<StateReason> {
        let now = self.ingest.origin.elapsed();
        for at in &mut reasons {
            let known = self.stated.now().reasons.iter().find(|known| known.reason == at.reason);
            at.since = known.map_or(now, |known| known.since);
            let counted = known.map_or(0, |known| known.count);
            self.ingest.metrics.count_reason(at.reason, at.count.saturating_sub(counted));
        }
        reasons
    }

    fn note_shown(&mut self, status: &SourceStatus) {
        self.ingest.metrics.count_state(self.shown.state, status.state);
        self.shared.set_catching_up(status.state == SourceState::CatchingUp);
        self.shown = status.clone();
    }

    /// Reports the source's status to the index if it has changed. Answers follow only afterwards.
    pub(super) async fn publish_status(&mut self) -> Result<(), IngestError> {
        let status = self.status();
        if status == self.shown {
            return Ok(());
        }
        self.note_shown(&status);
        if let Some(source) = self.shared.source() {
            self.ingest.writer.show_status(&source, status).await?;
        }
        Ok(())
    }

    /// Adds the batches since the last call to the metrics, by outcome: applied, duplicate, stale or lost.
    pub(super) fn count(&mut self) {
        let now = self.recovery.counts();
        let before = mem::replace(&mut self.counted, now);
        for (outcome, batches) in [
            (BatchOutcome::Applied, now.applied - before.applied),
            (BatchOutcome::Duplicate, now.duplicate - before.duplicate),
            (BatchOutcome::Stale, now.stale - before.stale),
            (BatchOutcome::Lost, now.lost - before.lost),
        ] {
            if batches > 0 {
                self.ingest.metrics.count_batches(outcome, batches);
            }
        }
    }

    /// Logs an opened stream. Refusals have a low level: publishers retry, and log them, too.
    pub(super) fn log_opened(&self, hello: &Hello, opened: &Result<Opened, IngestError>) {
        let source = &self.name;
        let worker = self.worker.address();
        let incarnation = hello.incarnation;
        match opened {
            Ok(opened) => {
                let applied = opened.applied.map(|cursor| cursor.sequence);
                let head = hello.head_sequence;
                tracing::info!(source, %worker, %incarnation, applied, head, "stream open");
            }
            Err(error) => tracing::debug!(source, %worker, %incarnation, %error, "stream refused"),
        }
    }

    pub(super) fn log_closed(&self) {
        let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
        let worker = self.worker.address();
        tracing::info!(source = self.name, %worker, applied, "stream closed");
    }
}
