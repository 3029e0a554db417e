use super::{IngestConfig, IngestError};
use kvasir_engine::recover::{
    Admission, Input, Item, LossPolicy, Numbered, Recourse, Recovery, RecoveryConfig, Step,
};
use kvasir_feed::disk::{PersistedSource, SourceKind};
use kvasir_feed::hub::{Hub, HubError, Inlet};
use kvasir_process::publish::Answer;
use kvasir_proto::convert::{Hello, PublishedBatch};
use kvasir_proto::types::{CopyMode, Cursor, Incarnation, KvEvent, SourceStatus, StoredBlock};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// One source of the service, across its streams.
pub(super) struct IngestSource {
    inlet: Inlet,
    /// Start of the recovery's clock.
    origin: Instant,
    recovery: Recovery<HeldBatch, Infallible>,
    copy_mode: CopyMode,
    /// Number of the latest stream. Earlier streams are fenced.
    stream: u64,
    fence: CancellationToken,
    /// Incarnation of the open stream; `None` without one.
    stream_incarnation: Option<Incarnation>,
    /// Whether the source had no stream for too long.
    gone: bool,
}

struct HeldBatch(PublishedBatch);

impl Item for HeldBatch {
    fn bytes(&self) -> usize {
        let operations = self.0.events.iter().map(KvEvent::operations).sum::<usize>();
        size_of::<PublishedBatch>() + operations * size_of::<StoredBlock>()
    }
}

/// An accepted stream.
pub(super) struct Opened {
    pub(super) stream: u64,
    /// Token that is cancelled once another stream takes over.
    pub(super) fence: CancellationToken,
    /// Last applied batch of the source in this incarnation.
    pub(super) applied: Option<Cursor>,
}

impl IngestSource {
    pub(super) fn open(
        hub: &Arc<Hub>,
        hello: &Hello,
        config: &IngestConfig,
    ) -> Result<Self, IngestError> {
        let inlet = hub.open_persisted(&hello.source, hello.copy_mode, SourceKind::Ingest)?;
        Ok(Self::new(inlet, hello.copy_mode, None, config))
    }

    /// Opens a source that published to an earlier agent. Its next stream shows whether it survived.
    pub(super) fn resume(
        hub: &Arc<Hub>,
        persisted: &PersistedSource,
        config: &IngestConfig,
    ) -> Result<Self, IngestError> {
        let inlet = hub.open_persisted(&persisted.name, persisted.copy_mode, SourceKind::Ingest)?;
        Ok(Self::new(inlet, persisted.copy_mode, Some(&persisted.status()), config))
    }

    /// Creates a source without a stream. With `resume`, the source continues at its persisted position.
    fn new(
        inlet: Inlet,
        copy_mode: CopyMode,
        resume: Option<&SourceStatus>,
        config: &IngestConfig,
    ) -> Self {
        let config = RecoveryConfig {
            recourse: Recourse::Rewind,
            loss_policy: LossPolicy::Clear,
            worker_timeout: config.source_timeout,
            ..RecoveryConfig::default()
        };
        let fence = CancellationToken::new();
        Self {
            inlet,
            origin: Instant::now(),
            recovery: Recovery::new(config, resume, Duration::ZERO),
            copy_mode,
            stream: 0,
            fence,
            stream_incarnation: None,
            gone: false,
        }
    }

    /// Accepts a stream for the publisher's incarnation, and fences the earlier stream. Fails for a past incarnation,
    /// or if the copy mode changes within an incarnation.
    pub(super) fn connect(&mut self, hello: &Hello) -> Result<Opened, IngestError> {
        let incarnation = hello.incarnation;
        let name = || self.inlet.name().to_owned();
        match self.recovery.admission(incarnation, false, self.origin.elapsed()) {
            Admission::Admitted => {}
            Admission::Past => return Err(IngestError::PastIncarnation(name())),
            Admission::TooMany => return Err(IngestError::TooManyIncarnations(name())),
        }
        if self.copy_mode != hello.copy_mode {
            if self.recovery.is_present(incarnation) {
                return Err(IngestError::CopyMode(name()));
            }
            // Checked now, because a new incarnation cannot be refused once it has begun.
            self.inlet.set_copy_mode(hello.copy_mode)?;
            self.copy_mode = hello.copy_mode;
        }
        self.fence.cancel();
        self.fence = CancellationToken::new();
        self.stream += 1;
        self.stream_incarnation = Some(incarnation);
        self.gone = false;
        let first = hello.first_sequence;
        let head = hello.head_sequence;
        self.input(Input::Connected { incarnation, first, head, in_order: false });
        let stream = self.stream;
        let fence = self.fence.clone();
        Ok(Opened { stream, fence, applied: self.recovery.status().applied })
    }

    /// Applies a batch of a stream. Answers `Fenced` if a newer stream has replaced this one, and `Gap` if earlier
    /// batches are missing.
    ///
    /// # Errors
    /// If the rank is reserved, so that the batch cannot be applied yet.
    pub(super) fn apply_batch(
        &mut self,
        stream: u64,
        batch: PublishedBatch,
    ) -> Result<Answer, HubError> {
        let Some(incarnation) = self.incarnation_of(stream) else { return Ok(Answer::Fenced) };
        let sequence = batch.sequence;
        self.inlet.check_turn(batch.rank)?;
        let batch = Numbered { sequence, item: HeldBatch(batch) };
        let answer = self.input(Input::Live { incarnation, batch });
        Ok(answer.unwrap_or_else(|| {
            if self.recovery.covers(sequence) {
                Answer::Acked { duplicate: true, applied: 0, noop: 0, rejected: 0 }
            } else {
                Answer::Gap { expected: self.expected() }
            }
        }))
    }

    /// Processes a heartbeat with the number of the source's newest batch.
    pub(super) fn announce(&mut self, stream: u64, head: Option<u64>) {
        if let Some(incarnation) = self.incarnation_of(stream) {
            self.input(Input::Announced { incarnation, head });
        }
    }

    /// Ends a stream.
    pub(super) fn disconnect(&mut self, stream: u64) {
        if stream == self.stream {
            self.stream_incarnation = None;
            self.input(Input::Disconnected);
        }
    }

    /// Advances the clock. Returns whether the source is gone. Then it is closed, and must not be used any more.
    pub(super) fn expire(&mut self) -> bool {
        self.input(Input::Tick);
        if self.gone {
            self.inlet.close();
        }
        self.gone
    }

    /// Number of the expected batch; 0 (any) before the first.
    pub(super) fn expected(&self) -> u64 {
        self.recovery.expected().unwrap_or(0)
    }

    fn incarnation_of(&self, stream: u64) -> Option<Incarnation> {
        self.stream_incarnation.filter(|_| stream == self.stream)
    }

    /// Passes an input to the recovery, and executes its steps. Returns the answer if the input is a batch.
    fn input(&mut self, input: Input<HeldBatch, Infallible>) -> Option<Answer> {
        self.recovery.handle(input, self.origin.elapsed());
        let mut answer = None;
        while let Some(step) = self.recovery.next_step() {
            answer = self.carry_out(step).or(answer);
        }
        self.inlet.show(self.recovery.status().by_clock(|at| self.origin + at));
        answer
    }

    /// Executes a step of the recovery. Returns the answer to the publisher, if the step has one.
    fn carry_out(&mut self, step: Step<HeldBatch, Infallible>) -> Option<Answer> {
        match step {
            Step::Apply { cursor, item } => return Some(self.apply(cursor, item.0)),
            Step::Refuse { expected, .. } => return Some(Answer::Gap { expected }),
            Step::NewIncarnation { incarnation } => {
                tracing::info!(%incarnation, source = self.inlet.name(), "new incarnation of the source");
                self.inlet.count(|counts| counts.incarnations += 1);
                self.inlet.clear();
            }
            Step::Expired => {
                tracing::info!(source = self.inlet.name(), "the source is gone");
                self.gone = true;
                self.inlet.clear();
            }
            Step::ClearLost | Step::MarkSuspect => {
                self.inlet.count(|counts| counts.losses += 1);
                self.inlet.lose();
            }
            // This recovery neither queries an agent nor retains suspect blocks.
            Step::DropSuspects
            | Step::BeginDump
            | Step::Chunk { .. }
            | Step::FinishDump { .. }
            | Step::Ask { .. }
            | Step::Cancel { .. } => {}
        }
        None
    }

    /// Applies a batch to the hub. The answer counts applied and refused operations.
    fn apply(&self, cursor: Cursor, batch: PublishedBatch) -> Answer {
        let operations = batch.events.iter().map(KvEvent::operations).sum::<usize>() as u64;
        let refused = match self.inlet.take_at(batch.rank, batch.events, cursor) {
            Ok(taken) => taken.refused,
            Err(error) => {
                tracing::debug!(%error, source = self.inlet.name(), "a publisher's batch is refused");
                self.inlet.count_refused(operations, &error);
                operations
            }
        };
        let applied = operations - refused;
        Answer::Acked { duplicate: false, applied, noop: 0, rejected: refused }
    }
}
