//! The task of one source that pushes. It executes the steps of `kvasir-engine`'s recovery.

mod audit;
#[cfg(test)]
mod audited_test;
mod repair;
mod stated;
#[cfg(test)]
mod status_test;
mod steps;

use super::answer::{BatchAnswer, Refusal, Waiting};
use super::local::{AskError, AskTarget, Part, Round};
use super::push_source::{Arrival, Command, Opened, TaskState};
use super::worker::Worker;
use super::{Ingest, IngestError};
use crate::partitions::ResumedSource;
use audit::Audit;
use kvasir_engine::recover::{
    Admission, Ask, HeldBytes, HeldShare, Input, Item, Numbered, OutcomeCounts, Recourse, Recovery,
    RecoveryConfig,
};
use kvasir_proto::convert::{
    EventsPart, Heartbeat, Hello, LocalDumpPart, LocalSource, PublishedBatch,
};
use kvasir_proto::types::{
    BlockCounts, CopyMode, DpRank, HeldBlock, Incarnation, KvEvent, SourceStatus, StateReason,
};
use stated::{LatestStated, Stated};
use std::collections::VecDeque;
use std::future::pending;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::mem;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// A batch that the recovery holds back.
#[derive(Debug)]
struct HeldBatch(PublishedBatch);

impl Item for HeldBatch {
    fn bytes(&self) -> usize {
        let operations = self.0.events.iter().map(KvEvent::operations).sum::<usize>();
        size_of::<PublishedBatch>() + operations * size_of::<HeldBlock>() / 2
    }
}

/// A part of a dump: names of one rank.
type Chunk = (DpRank, Vec<HeldBlock>);

/// The state of the task.
pub(super) struct Follower {
    ingest: Arc<Ingest>,
    worker: Arc<Worker>,
    name: String,
    shared: Arc<TaskState>,
    recovery: Recovery<HeldBatch, Chunk>,
    copy_mode: CopyMode,
    /// The agent that provides missing batches and blocks, if there is one.
    ask_target: Option<AskTarget>,
    held: HeldShare,
    /// Number of the newest stream. Earlier streams are fenced.
    stream: u64,
    fence: CancellationToken,
    /// Incarnation of the open stream. `None` if no stream is open.
    stream_incarnation: Option<Incarnation>,
    /// Unanswered batches of the open stream.
    waiting: VecDeque<Waiting>,
    /// Next expected number when `waiting` was last checked.
    expected: Option<u64>,
    round: Option<Round>,
    /// Whether the index has an incomplete dump, which matches no batch number. Then there is no cursor to resume from,
    /// and checkpoints must not store one.
    is_torn: bool,
    /// Whether the dump that has just ended lacks blocks.
    dump_is_incomplete: bool,
    /// Comparison of the index with the source.
    audit: Audit,
    /// State from the heartbeats of the stream.
    stated: LatestStated,
    /// Contradictions that an earlier process detected. They last until all names are announced again, or the source
    /// has no blocks.
    contradictions: Arc<[StateReason]>,
    /// Status as last reported to the index.
    shown: SourceStatus,
    /// As last counted in the metrics.
    counted: OutcomeCounts,
}

/// The next event of the task.
enum Event {
    Command(Command),
    Part(Result<Part, AskError>),
    Audited(Result<Part, AskError>),
    Tick,
}

impl Follower {
    /// Creates the follower of a worker's source: a new source, or a resumed source from a checkpoint or a sibling.
    pub(super) fn new(
        ingest: &Arc<Ingest>,
        worker: &Arc<Worker>,
        name: &str,
        shared: Arc<TaskState>,
        resumed: Option<&ResumedSource>,
    ) -> Self {
        let recovery = recovery(ingest, worker, name, resumed.map(|resumed| &resumed.status));
        let target = ingest.local_indexers.clone().zip(worker.registration.local_indexer.clone());
        let source = LocalSource { address: worker.address(), name: name.to_owned() };
        let block_size = worker.partition.block_size();
        Self {
            ingest: Arc::clone(ingest),
            worker: Arc::clone(worker),
            name: name.to_owned(),
            shared,
            recovery,
            copy_mode: resumed.map_or(CopyMode::Set, |resumed| resumed.copy_mode),
            ask_target: target
                .map(|(indexers, url)| AskTarget::new(indexers, url, source, block_size)),
            held: HeldBytes::share(Arc::clone(&ingest.links.held)),
            stream: 0,
            fence: CancellationToken::new(),
            stream_incarnation: None,
            waiting: VecDeque::new(),
            expected: None,
            round: None,
            is_torn: false,
            dump_is_incomplete: false,
            audit: Audit::default(),
            stated: resumed.map(LatestStated::from_resumed).unwrap_or_default(),
            contradictions: resumed.map(stated::contradictions).unwrap_or_default(),
            shown: SourceStatus::default(),
            counted: OutcomeCounts::default(),
        }
    }

    /// Follows the source until cancelled, or until all senders of commands are gone.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        cancel: CancellationToken,
    ) {
        // A resumed recovery may already have steps.
        let mut done = self.execute_steps().await;
        loop {
            if let Err(error) = done
                && self.reset(&error).await.is_err()
            {
                break;
            }
            let wait = self.wait();
            let event = select! {
                () = cancel.cancelled() => break,
                command = commands.recv() => match command {
                    Some(command) => Event::Command(command),
                    None => break,
                },
                part = next_part(&mut self.round) => Event::Part(part),
                part = self.audit.next_part() => Event::Audited(part),
                () = sleep(wait) => Event::Tick,
            };
            done = match event {
                Event::Command(command) => self.handle_command(command).await,
                Event::Part(part) => self.take_part(part).await,
                Event::Audited(part) => self.take_audited(part).await,
                Event::Tick => self.input(Input::Tick).await,
            };
        }
        if self.stream_incarnation.is_some() {
            self.log_closed();
        }
        self.fence.cancel();
    }

    /// Time until the next deadline of the recovery.
    fn wait(&self) -> Duration {
        /// Maximum wait, for a recovery without a deadline.
        const FAR: Duration = Duration::from_secs(3_600);
        let deadline = self.recovery.deadline().unwrap_or(Duration::MAX);
        deadline.saturating_sub(self.ingest.origin.elapsed()).min(FAR)
    }

    /// Handles a command. Any command except a batch or heartbeat abandons a running audit. Commands of an earlier
    /// stream have no effect.
    async fn handle_command(&mut self, command: Command) -> Result<(), IngestError> {
        if !matches!(command, Command::Batch { .. } | Command::Heartbeat { .. }) {
            self.end_audit("abandoned").await?;
        }
        match command {
            Command::Open { hello, arrival, reply } => {
                let opened = self.open_stream(&hello, arrival).await;
                self.log_opened(&hello, &opened);
                let broken = opened.as_ref().err().filter(|error| !error.is_of_hello()).cloned();
                let _gone = reply.send(opened);
                broken.map_or(Ok(()), Err)
            }
            Command::Batch { stream, batch, reply } => {
                let sequence = batch.sequence;
                let waiting = reply.map(|reply| Waiting { sequence, reply });
                self.take_batch(stream, batch, waiting).await
            }
            Command::Heartbeat { stream, heartbeat } => {
                self.apply_heartbeat(stream, heartbeat).await
            }
            Command::Behind { stream } if stream == self.stream => self.input(Input::Behind).await,
            Command::CaughtUp { stream } if stream == self.stream => {
                self.input(Input::CaughtUp).await
            }
            Command::Behind { .. } | Command::CaughtUp { .. } => Ok(()),
            // An open stream sends `Behind` and `CaughtUp` itself.
            Command::InputPaused(_) if self.stream_incarnation.is_some() => Ok(()),
            Command::InputPaused(paused) => {
                self.shared.set_input_paused(paused);
                self.input(if paused { Input::Behind } else { Input::Disconnected }).await
            }
            Command::GiveUp => self.give_up().await,
            Command::Heal => self.heal().await,
            Command::Expected { reply } => {
                let _gone = reply.send(self.recovery.expected().unwrap_or(0));
                Ok(())
            }
            Command::Close { stream } => {
                if stream != self.stream {
                    return Ok(());
                }
                self.stream_incarnation = None;
                self.shared.set_link(false, self.ingest.origin.elapsed());
                self.waiting.clear();
                self.log_closed();
                self.input(Input::Disconnected).await
            }
        }
    }

    /// Applies a heartbeat of the open stream: its state and reasons, and its newest batch. Its digest may start an
    /// audit.
    async fn apply_heartbeat(
        &mut self,
        stream: u64,
        heartbeat: Heartbeat,
    ) -> Result<(), IngestError> {
        let Some(incarnation) = self.incarnation_of(stream) else { return Ok(()) };
        self.worker.mark_alive(self.ingest.origin);
        let Heartbeat { head_sequence: head, digest, state, verified_age, engine_away, reasons } =
            heartbeat;
        let verified_at = self.ingest.origin.elapsed().saturating_sub(verified_age);
        let verified_at = Some(verified_at).filter(|_| verified_age > Duration::ZERO);
        let reasons = self.add_times(reasons);
        let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
        self.stated.record_heartbeat(
            Stated { state, reasons, verified_at, engine_away },
            head,
            applied,
        );
        // During an audit, batches up to the head may be held back: they are not missing.
        let known = head.filter(|_| !self.audit.holds());
        self.input(Input::Announced { incarnation, head: known }).await?;
        // Without an agent, a difference could not be repaired.
        self.audit.announce(head, digest.filter(|_| self.ask_target.is_some()));
        self.run_audit().await
    }

    /// The incarnation of a stream, if it is the open stream.
    fn incarnation_of(&self, stream: u64) -> Option<Incarnation> {
        debug_assert!(
            self.stream_incarnation.is_none() || !self.fence.is_cancelled(),
            "the open stream is not fenced"
        );
        self.stream_incarnation.filter(|_| stream == self.stream)
    }

    /// Opens a stream, unless its incarnation is past or it changes the copy mode. Fences the previous stream.
    async fn open_stream(
        &mut self,
        hello: &Hello,
        arrival: Arrival,
    ) -> Result<Opened, IngestError> {
        let (awaits_heartbeat, in_order, is_behind) = match arrival {
            Arrival::Direct => (false, false, false),
            Arrival::Broker { in_order, is_behind } => (true, in_order, is_behind),
        };
        let incarnation = hello.incarnation;
        let now = self.ingest.origin.elapsed();
        let source_name = || self.name.clone();
        let refusal = match self.recovery.admission(incarnation, in_order, now) {
            Admission::Admitted => None,
            Admission::Past => Some(IngestError::PastIncarnation { source_name: source_name() }),
            Admission::TooMany => {
                Some(IngestError::TooManyIncarnations { source_name: source_name() })
            }
        };
        if let Some(refusal) = refusal {
            // The agent decides whether it is the current one.
            self.input(Input::Announced { incarnation, head: None }).await?;
            return Err(refusal);
        }
        let is_present = self.recovery.is_present(incarnation);
        if is_present && self.copy_mode != hello.copy_mode {
            return Err(IngestError::CopyMode { source_name: self.name.clone() });
        }
        self.worker.mark_alive(self.ingest.origin);
        if let Some(target) = &self.ask_target {
            self.ingest.turns.mark_reachable(&target.agent);
        }
        // This stream may arrive before the command that ends a pause.
        self.shared.set_input_paused(false);
        // Must come first: otherwise a connected source that is behind would be exact for a moment. An earlier stream
        // may have been behind, too.
        self.input(if is_behind { Input::Behind } else { Input::Disconnected }).await?;
        self.copy_mode = hello.copy_mode;
        if !is_present {
            self.stated = LatestStated::default();
        }
        self.stated.await_heartbeat(awaits_heartbeat);
        self.fence.cancel();
        self.fence = CancellationToken::new();
        self.stream += 1;
        self.stream_incarnation = Some(incarnation);
        self.audit.forget_announced();
        self.waiting.clear();
        let first = hello.first_sequence;
        let head = hello.head_sequence;
        self.input(Input::Connected { incarnation, first, head, in_order }).await?;
        self.shared.set_idle(false);
        self.shared.set_link(true, now);
        let applied = self.recovery.status().applied;
        Ok(Opened { stream: self.stream, fence: self.fence.clone(), applied })
    }

    /// Handles a batch, or holds it back while an audit compares blocks. Then continues the audit.
    async fn take_batch(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
        waiting: Option<Waiting>,
    ) -> Result<(), IngestError> {
        if self.audit.holds() {
            self.audit.hold_back(stream, batch, waiting);
        } else {
            self.handle_batch(stream, batch, waiting).await?;
        }
        self.run_audit().await
    }

    /// Passes a batch to the recovery. A batch of a fenced stream is refused.
    async fn handle_batch(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
        waiting: Option<Waiting>,
    ) -> Result<(), IngestError> {
        let Some(incarnation) = self.incarnation_of(stream) else {
            self.ingest.metrics.count_refusal("fenced");
            if let Some(waiting) = waiting {
                waiting.answer(Ok(BatchAnswer::Refused(Refusal::Fenced)));
            }
            return Ok(());
        };
        self.worker.mark_alive(self.ingest.origin);
        self.waiting.extend(waiting);
        let batch = Numbered { sequence: batch.sequence, item: HeldBatch(batch) };
        self.input(Input::Live { incarnation, batch }).await
    }

    /// Handles a part of the agent's answer to the current round. The last part, or an error, ends the round. Does
    /// nothing between rounds.
    async fn take_part(&mut self, part: Result<Part, AskError>) -> Result<(), IngestError> {
        let Some(Round { number: round, ask, .. }) = self.round else { return Ok(()) };
        self.worker.mark_alive(self.ingest.origin);
        let (input, outcome) = match part {
            Ok(Part::Events(EventsPart::Batch(batch))) => {
                let batch = Numbered { sequence: batch.sequence, item: HeldBatch(batch) };
                (Input::RangeBatch { round, batch }, None)
            }
            Ok(Part::Dump(LocalDumpPart::Chunk { rank, records })) => {
                self.ingest.metrics.dump_records.inc_by(records.len() as u64);
                (Input::DumpChunk { round, chunk: (rank, records) }, None)
            }
            Ok(Part::Events(EventsPart::End { head })) => {
                (Input::RangeEnd { round, head }, Some("completed"))
            }
            Ok(Part::Dump(LocalDumpPart::End(end))) => {
                self.dump_is_incomplete = end.incomplete;
                let incarnation = end.incarnation;
                let watermark = end.watermark;
                (Input::DumpEnd { round, incarnation, watermark }, Some("completed"))
            }
            Ok(Part::Events(EventsPart::TooOld { .. } | EventsPart::Ahead { .. })) => {
                (Input::RangeGone { round }, Some("gone"))
            }
            Ok(Part::Digests(_)) => return Ok(()),
            Ok(
                Part::Events(EventsPart::WrongIncarnation { present })
                | Part::Dump(LocalDumpPart::WrongIncarnation { present }),
            ) => (Input::OtherIncarnation { round, present }, Some("other_life")),
            Err(error) => {
                tracing::debug!(%error, ?ask, source = self.name, "the answer ended early");
                let gone = matches!((&error, ask), (AskError::Malformed(_), Ask::Range { .. }));
                let input =
                    if gone { Input::RangeGone { round } } else { Input::RoundFailed { round } };
                (input, Some("failed"))
            }
        };
        if let Some(outcome) = outcome {
            self.round = None;
            self.ingest.metrics.count_ask(ask, outcome);
        }
        self.input(input).await
    }

    /// Passes an input to the recovery.
    async fn input(&mut self, input: Input<HeldBatch, Chunk>) -> Result<(), IngestError> {
        self.recovery.share(&mut self.held);
        self.recovery.handle(input, self.ingest.origin.elapsed());
        self.execute_steps().await
    }

    /// Executes all due steps of the recovery, publishes the source's status, and answers waiting batches that the
    /// index already contains.
    async fn execute_steps(&mut self) -> Result<(), IngestError> {
        while let Some(step) = self.recovery.next_step() {
            self.carry_out(step).await?;
        }
        self.count();
        if self.stream_incarnation.is_some_and(|incarnation| !self.recovery.is_present(incarnation))
        {
            self.stream_incarnation = None;
            self.waiting.clear();
            self.fence.cancel();
        }
        self.stated.apply_later(self.recovery.status().applied.map(|cursor| cursor.sequence));
        self.publish_status().await?;
        let before = mem::replace(&mut self.expected, self.recovery.expected());
        let newest = self.waiting.pop_back();
        let unanswered =
            if before == self.expected { VecDeque::new() } else { mem::take(&mut self.waiting) };
        for waiting in unanswered.into_iter().chain(newest) {
            if self.recovery.covers(waiting.sequence) {
                let counts = BlockCounts::default();
                waiting.answer(Ok(BatchAnswer::Acked { duplicate: true, counts }));
            } else {
                self.waiting.push_back(waiting);
            }
        }
        Ok(())
    }

    /// Restarts the source from nothing after the index refused it: drops its blocks and fences its stream. Fails if
    /// the server is stopping.
    async fn reset(&mut self, error: &IngestError) -> Result<(), IngestError> {
        if matches!(error, IngestError::Stopping(_)) {
            return Err(error.clone());
        }
        tracing::warn!(%error, source = self.name, worker = %self.worker.address(), "source reset");
        self.round = None;
        for held in self.audit.give_up() {
            self.waiting.extend(held.waiting);
        }
        self.count();
        self.drop_source().await?;
        for waiting in mem::take(&mut self.waiting) {
            waiting.answer(Err(error.clone()));
        }
        self.fence.cancel();
        self.stream_incarnation = None;
        self.recovery = recovery(&self.ingest, &self.worker, &self.name, None);
        self.counted = OutcomeCounts::default();
        self.shown = SourceStatus::default();
        Ok(())
    }
}

/// Creates the recovery of a worker's source, which starts from nothing or from the status `resume`.
fn recovery(
    ingest: &Ingest,
    worker: &Worker,
    name: &str,
    resume: Option<&SourceStatus>,
) -> Recovery<HeldBatch, Chunk> {
    let registration = &worker.registration;
    let config = &ingest.config;
    let mut hasher = DefaultHasher::new();
    (&registration.partition, &registration.worker, name).hash(&mut hasher);
    let is_asked = ingest.local_indexers.is_some() && registration.local_indexer.is_some();
    let config = RecoveryConfig {
        recourse: if is_asked { Recourse::Ask } else { Recourse::Rewind },
        loss_policy: registration.loss_policy.unwrap_or(config.loss_policy),
        degraded_ttl: config.degraded_ttl,
        worker_timeout: ingest.source_timeout(registration),
        expires_silent: registration.lease.is_some(),
        jitter_seed: hasher.finish(),
        ..RecoveryConfig::default()
    };
    Recovery::new(config, resume, ingest.origin.elapsed())
}

/// Waits for the next part of the current round. Without a round, waits forever.
async fn next_part(round: &mut Option<Round>) -> Result<Part, AskError> {
    match round {
        Some(round) => round.next().await,
        None => pending().await,
    }
}
