//! The task of one source that pushes: `kvasir-engine`'s recovery decides, this carries out.

mod audit;
#[cfg(test)]
mod audited_test;
mod repair;
mod steps;

pub(super) use audit::Audit;

use super::{
    Ingest, IngestError,
    answer::{BatchAnswer, Refusal, Waiting},
    local::{AskError, Asked, Part, Round},
    publisher::{Command, Opened, Shared},
    turns::Turns,
    worker::Worker,
};
use kvasir_engine::recover::{Ask, HeldShare, Input, Item, Numbered, OutcomeCounts, Recovery};
use kvasir_index::SourceStatus;
use kvasir_proto::{
    convert::{EventsPart, Heartbeat, Hello, LocalDumpPart, PublishedBatch},
    types::{BlockCounts, CopyMode, DpRank, HeldBlock, Incarnation, KvEvent, SourceState},
};
use std::{collections::VecDeque, future::pending, mem, sync::Arc, time::Duration};
use tokio::{select, sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

/// A batch, as the recovery holds it back.
#[derive(Debug)]
pub(super) struct Held(PublishedBatch);

impl Item for Held {
    fn bytes(&self) -> usize {
        let operations = self.0.events.iter().map(KvEvent::operations).sum::<usize>();
        size_of::<PublishedBatch>() + operations * size_of::<HeldBlock>() / 2
    }
}

/// What a source says of itself, where it speaks for an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stated {
    state: SourceState,
    /// When the newest of what the engine said was last known to be in the stream; none for at once.
    verified_at: Option<Duration>,
    /// Whether the engine is not connected to it.
    engine_away: bool,
}

impl Stated {
    pub(super) const EXACT: Self =
        Self { state: SourceState::Exact, verified_at: None, engine_away: false };
}

/// A part of a dump: names of one rank.
pub(super) type Chunk = (DpRank, Vec<HeldBlock>);

/// What the task is made of.
pub(super) struct Follower {
    pub(super) ingest: Arc<Ingest>,
    pub(super) worker: Arc<Worker>,
    pub(super) name: String,
    pub(super) shared: Arc<Shared>,
    pub(super) recovery: Recovery<Held, Chunk>,
    pub(super) copy_mode: CopyMode,
    /// Who can be asked, if anybody.
    pub(super) asked: Option<Asked>,
    pub(super) turns: Arc<Turns>,
    pub(super) held: HeldShare,
    /// The latest stream; those before are fenced.
    pub(super) stream: u64,
    pub(super) fence: CancellationToken,
    /// The life that the stream which is open is in.
    pub(super) stream_life: Option<Incarnation>,
    /// Batches of that stream that are not answered yet.
    pub(super) waiting: VecDeque<Waiting>,
    /// Number that was wanted next when they were looked through last.
    pub(super) expected: Option<u64>,
    pub(super) round: Option<Round>,
    /// Whether the index holds a part of a dump: what no batch of the source left behind. So there
    /// is no cursor to go on from, above all none for a checkpoint.
    pub(super) is_torn: bool,
    /// Whether the dump that has just ended lacks blocks.
    pub(super) dump_is_incomplete: bool,
    /// Whether the index holds what the source says that it does.
    pub(super) audit: Audit,
    /// As the last heartbeat of its stream said.
    pub(super) stated: Stated,
    /// Lives that are over.
    pub(super) past: Arc<[Incarnation]>,
    /// As the index was told last.
    pub(super) shown: SourceStatus,
    /// As the metrics were told last.
    pub(super) counted: OutcomeCounts,
}

/// What happened next.
enum Event {
    Command(Command),
    Part(Result<Part, AskError>),
    Audited(Result<Part, AskError>),
    Tick,
}

impl Follower {
    /// Follows the source until cancelled, or nobody is left to hand in anything.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        cancel: CancellationToken,
    ) {
        // A checkpoint may have something to be done.
        let mut done = self.work().await;
        loop {
            if let Err(error) = done
                && self.begin_afresh(&error).await.is_err()
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
                Event::Command(command) => self.take(command).await,
                Event::Part(part) => self.take_part(part).await,
                Event::Audited(part) => self.take_audited(part).await,
                Event::Tick => self.input(Input::Tick).await,
            };
        }
        if self.stream_life.is_some() {
            self.say_closed();
        }
        self.fence.cancel();
    }

    /// Time until the recovery is to be told the time.
    fn wait(&self) -> Duration {
        /// For a recovery that waits for nothing.
        const FAR: Duration = Duration::from_secs(3_600);
        let deadline = self.recovery.deadline().unwrap_or(Duration::MAX);
        deadline.saturating_sub(self.ingest.origin.elapsed()).min(FAR)
    }

    async fn take(&mut self, command: Command) -> Result<(), IngestError> {
        if !matches!(command, Command::Batch { .. } | Command::Heartbeat { .. }) {
            self.end_audit("abandoned").await?;
        }
        match command {
            Command::Open { hello, in_order, reply } => {
                let opened = self.open(&hello, in_order).await;
                self.say_opened(&hello, &opened);
                let broken = opened.as_ref().err().filter(|error| !error.is_of_hello()).cloned();
                let _gone = reply.send(opened);
                broken.map_or(Ok(()), Err)
            }
            Command::Batch { stream, batch, reply } => {
                let sequence = batch.sequence;
                let waiting = reply.map(|reply| Waiting { sequence, reply });
                self.take_batch(stream, batch, waiting).await
            }
            Command::Heartbeat { stream, heartbeat } => self.beat(stream, heartbeat).await,
            Command::Behind { stream } if stream == self.stream => self.input(Input::Behind).await,
            Command::CaughtUp { stream } if stream == self.stream => {
                self.input(Input::CaughtUp).await
            }
            Command::Behind { .. } | Command::CaughtUp { .. } => Ok(()),
            // Its stream says that by itself.
            Command::Hold(_) if self.stream_life.is_some() => Ok(()),
            Command::Hold(deaf) => {
                self.shared.set_held(deaf);
                self.input(if deaf { Input::Behind } else { Input::Disconnected }).await
            }
            Command::Heal => match self.shared.source() {
                Some(source) if self.index_lacks(&source).await? => {
                    self.input(Input::LacksBlocks).await
                }
                _ => Ok(()),
            },
            Command::Expected { reply } => {
                let _gone = reply.send(self.recovery.expected().unwrap_or(0));
                Ok(())
            }
            Command::Close { stream } => {
                if stream != self.stream {
                    return Ok(());
                }
                self.stream_life = None;
                self.waiting.clear();
                self.say_closed();
                self.input(Input::Disconnected).await
            }
        }
    }

    /// Publishers try again and again where they are refused, and say so themselves.
    fn say_opened(&self, hello: &Hello, opened: &Result<Opened, IngestError>) {
        let (source, worker, incarnation) = (&self.name, self.worker.address(), hello.incarnation);
        match opened {
            Ok(opened) => {
                let applied = opened.applied.map(|cursor| cursor.sequence);
                let head = hello.head_sequence;
                tracing::info!(source, %worker, %incarnation, applied, head, "stream open");
            }
            Err(error) => tracing::debug!(source, %worker, %incarnation, %error, "stream refused"),
        }
    }

    fn say_closed(&self) {
        let applied = self.recovery.status().applied.map(|cursor| cursor.sequence);
        let worker = self.worker.address();
        tracing::info!(source = self.name, %worker, applied, "stream closed");
    }

    async fn beat(&mut self, stream: u64, heartbeat: Heartbeat) -> Result<(), IngestError> {
        let Some(incarnation) = self.life_of(stream) else { return Ok(()) };
        self.worker.heard(self.ingest.origin);
        let Heartbeat { head_sequence: head, digest, state, verified_age, engine_away } = heartbeat;
        let verified_at = self.ingest.origin.elapsed().saturating_sub(verified_age);
        let verified_at = Some(verified_at).filter(|_| verified_age > Duration::ZERO);
        self.stated = Stated { state, verified_at, engine_away };
        // What it names may be held back: it is not missing.
        let known = head.filter(|_| !self.audit.holds());
        self.input(Input::Announced { incarnation, head: known }).await?;
        self.audit.announce(head, digest);
        self.audit().await
    }

    /// The life of a stream, if it is the one that is open.
    fn life_of(&self, stream: u64) -> Option<Incarnation> {
        self.stream_life.filter(|_| stream == self.stream)
    }

    async fn open(&mut self, hello: &Hello, in_order: bool) -> Result<Opened, IngestError> {
        let incarnation = hello.incarnation;
        if !self.recovery.admits(incarnation) {
            // Whoever can be asked says whether it is the present one after all.
            self.input(Input::Announced { incarnation, head: None }).await?;
            return Err(IngestError::PastIncarnation { source_name: self.name.clone() });
        }
        let is_present = self.recovery.is_present(incarnation);
        if is_present && self.copy_mode != hello.copy_mode {
            return Err(IngestError::CopyMode { source_name: self.name.clone() });
        }
        self.worker.heard(self.ingest.origin);
        if let Some(asked) = &self.asked {
            self.turns.heard(&asked.agent);
        }
        if self.shared.is_held() {
            // It is heard now, maybe before it is told that it can be.
            self.shared.set_held(false);
            self.input(Input::Disconnected).await?;
        }
        self.copy_mode = hello.copy_mode;
        if !is_present {
            self.stated = Stated::EXACT;
        }
        self.fence.cancel();
        self.fence = CancellationToken::new();
        self.stream += 1;
        self.stream_life = Some(incarnation);
        self.waiting.clear();
        let (first, head) = (hello.first_sequence, hello.head_sequence);
        self.input(Input::Connected { incarnation, first, head, in_order }).await?;
        self.shared.set_idle(false);
        let applied = self.recovery.status().applied;
        Ok(Opened { stream: self.stream, fence: self.fence.clone(), applied })
    }

    async fn take_batch(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
        waiting: Option<Waiting>,
    ) -> Result<(), IngestError> {
        if self.audit.holds() {
            self.audit.hold(stream, batch, waiting);
        } else {
            self.follow(stream, batch, waiting).await?;
        }
        self.audit().await
    }

    async fn follow(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
        waiting: Option<Waiting>,
    ) -> Result<(), IngestError> {
        let Some(incarnation) = self.life_of(stream) else {
            self.ingest.metrics.count_refusal("fenced");
            if let Some(waiting) = waiting {
                waiting.answer(Ok(BatchAnswer::Refused(Refusal::Fenced)));
            }
            return Ok(());
        };
        self.worker.heard(self.ingest.origin);
        let (sequence, stale) = (batch.sequence, self.recovery.counts().stale);
        self.waiting.extend(waiting);
        let batch = Numbered { sequence, item: Held(batch) };
        self.input(Input::Live { incarnation, batch }).await?;
        if self.recovery.counts().stale > stale {
            // A number that cannot be one of the source's.
            let expected = self.recovery.expected().unwrap_or(0);
            self.ingest.metrics.count_refusal("gap");
            self.answer(sequence, BatchAnswer::Refused(Refusal::Gap { expected }));
        }
        Ok(())
    }

    async fn take_part(&mut self, part: Result<Part, AskError>) -> Result<(), IngestError> {
        let Some(Round { number: round, ask, .. }) = self.round else { return Ok(()) };
        self.worker.heard(self.ingest.origin);
        let (input, outcome) = match part {
            Ok(Part::Events(EventsPart::Batch(batch))) => {
                let batch = Numbered { sequence: batch.sequence, item: Held(batch) };
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
                let (incarnation, watermark) = (end.incarnation, end.watermark);
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
                tracing::debug!(%error, ?ask, source = self.name, "the answer broke off");
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

    /// Hands an input to the recovery.
    async fn input(&mut self, input: Input<Held, Chunk>) -> Result<(), IngestError> {
        self.recovery.share(&mut self.held);
        self.recovery.handle(input, self.ingest.origin.elapsed());
        self.work().await
    }

    /// Carries out what the recovery says.
    async fn work(&mut self) -> Result<(), IngestError> {
        while let Some(step) = self.recovery.next_step() {
            self.carry_out(step).await?;
        }
        self.count();
        if self.stream_life.is_some_and(|life| !self.recovery.is_present(life)) {
            self.stream_life = None;
            self.waiting.clear();
            self.fence.cancel();
        }
        self.show().await?;
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

    /// The index refused the source, or is gone: nothing that was said of the source is in it.
    async fn begin_afresh(&mut self, error: &IngestError) -> Result<(), IngestError> {
        if matches!(error, IngestError::Stopping(_)) {
            return Err(error.clone());
        }
        tracing::warn!(%error, source = self.name, worker = %self.worker.address(), "refused");
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
        self.stream_life = None;
        self.recovery = self.worker.recovery(&self.ingest, &self.name, None);
        self.counted = OutcomeCounts::default();
        self.shown = SourceStatus { state: SourceState::Cold, ..SourceStatus::default() };
        Ok(())
    }
}

/// The next part of the round under way; waits for ever if there is none.
async fn next_part(round: &mut Option<Round>) -> Result<Part, AskError> {
    match round {
        Some(round) => round.next().await,
        None => pending().await,
    }
}
