//! One engine endpoint: a task that runs `kvasir-engine`'s link and forwards its commands to the writer.

use super::presence::PresenceTracker;
use super::subscription::Subscription;
use super::{IngestConfig, IngestError, IngestMetrics};
use crate::partitions::{IndexBatch, IndexedSource, Origin, Writer, WriterGone};
use futures::FutureExt;
use kvasir_engine::expiry::Expired;
use kvasir_engine::link::{self, Common, LinkConfig, REPLAY_REPLY_TIMEOUT, Resume, SourceCommand};
use kvasir_engine::normalise::{
    DropKind, Drops, NormaliserConfig, StatedBlockSize, chunk_sizes, tier_of_medium,
};
use kvasir_engine::sequence::SequencerConfig;
use kvasir_engine::zmtp::{Attach, Endpoint, EndpointError, Limits};
use kvasir_index::Index;
use kvasir_proto::convert::{EndpointSpec, Registration};
use kvasir_proto::types::{
    BatchOutcome, DpRank, KvEvent, Reason, SourceState, SourceStatus, StateReason,
};
use prometheus_client::metrics::counter::Counter;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio::{join, select};
use tokio_util::sync::CancellationToken;

/// Maximum queued commands between an endpoint's link and the writer's mailbox.
const COMMANDS_MAX: usize = 64;
/// Maximum block operations of batches that are submitted to the writer together. Smaller than one critical section of
/// the writer, so that sources alternate.
const TOGETHER_MAX: usize = 256;
/// Delay after an internal fault in a link, before the link restarts empty.
const FAULT_PAUSE: Duration = Duration::from_secs(5);

/// An endpoint of a registration, validated.
#[derive(Debug)]
pub(super) struct LinkPlan {
    /// Name of the source.
    pub(super) name: String,
    /// Rank of batches without a rank.
    pub(super) rank: DpRank,
    /// Socket and topic of the link, and the observed presence of its engine.
    pub(super) subscription: Subscription,
    config: LinkConfig,
}

impl LinkPlan {
    /// Returns the plans of all endpoints of a registration, in order.
    pub(super) fn plan_all(
        registration: &Registration,
        defaults: &IngestConfig,
    ) -> Result<Vec<Self>, IngestError> {
        let sockets = check_endpoints(registration)?.into_iter();
        let endpoints = registration.endpoints.iter().zip(sockets);
        Ok(endpoints
            .map(|(spec, sockets)| Self::new(registration, spec, sockets, defaults))
            .collect())
    }

    /// Builds the plan of a link to one endpoint from the registration and the server's defaults.
    fn new(
        registration: &Registration,
        spec: &EndpointSpec,
        Sockets { attach, replay }: Sockets,
        defaults: &IngestConfig,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (&registration.partition, &registration.worker, &spec.endpoint).hash(&mut hasher);
        let sequencing = SequencerConfig {
            loss_policy: registration.loss_policy.unwrap_or(defaults.loss_policy),
            degraded_ttl: defaults.degraded_ttl,
            worker_timeout: defaults.worker_timeout,
            probe_interval: defaults.probe_interval,
            jitter_seed: hasher.finish(),
            ..SequencerConfig::default()
        };
        let normaliser = NormaliserConfig {
            engine: registration.engine,
            block_size: registration.block_size,
            default_rank: spec.rank,
            lora_names: Arc::new(registration.lora_names.clone().into_iter().collect()),
            medium_ttls: registration.medium_ttls.clone().into_iter().collect(),
            // A pool's stream goes to every shard and has its own numbers, so an agent must publish it.
            has_pool: false,
            copy_mode: registration.copy_mode,
            connector_chunks: registration.connector_chunks.clone().into_iter().collect(),
        };
        let subscription = Subscription::new(&attach, spec, Arc::default());
        let config = LinkConfig {
            attach,
            replay,
            replay_reply_timeout: REPLAY_REPLY_TIMEOUT,
            topic: spec.topic.clone().into(),
            normaliser,
            sequencing,
            zmtp: Limits::default(),
        };
        Self { name: spec.endpoint.clone(), rank: spec.rank, subscription, config }
    }
}

/// Addresses of an endpoint's sockets.
#[derive(Debug)]
pub struct Sockets {
    attach: Attach,
    replay: Option<Endpoint>,
}

impl Sockets {
    pub(super) const fn attach(&self) -> &Attach {
        &self.attach
    }
}

/// Validates all endpoints and media of a registration, without connecting. Returns the sockets in order.
///
/// # Errors
/// If an endpoint is invalid, or a medium is unknown. The error names the field.
pub fn check_endpoints(registration: &Registration) -> Result<Vec<Sockets>, IngestError> {
    let is_unknown = |medium: &&String| tier_of_medium(medium).is_none();
    if let Some(medium) = registration.medium_ttls.keys().find(is_unknown) {
        return Err(IngestError::Medium { medium: medium.clone() });
    }
    chunk_sizes(&registration.connector_chunks)?;
    let endpoints = registration.endpoints.iter().enumerate();
    let sockets = endpoints.map(|(index, spec)| {
        parse_sockets(spec).map_err(|(field, error)| IngestError::Endpoint {
            field: format!("endpoints[{index}].{field}"),
            error,
        })
    });
    sockets.collect()
}

fn parse_sockets(spec: &EndpointSpec) -> Result<Sockets, (&'static str, EndpointError)> {
    let attach = Attach::parse(&spec.endpoint, spec.bind).map_err(|error| ("endpoint", error))?;
    let replay = spec.replay.as_deref().map(Endpoint::parse_dialable).transpose();
    Ok(Sockets { attach, replay: replay.map_err(|error| ("replay_endpoint", error))? })
}

/// One endpoint, with the state of its task.
pub(super) struct Link {
    name: String,
    config: LinkConfig,
    /// Cursor to resume from after a checkpoint.
    resume: Option<Resume>,
    sink: IndexSink,
}

/// Target of a link's commands.
struct IndexSink {
    source: IndexedSource,
    writer: Writer,
    origin: Origin,
    metrics: IngestMetrics,
    unmatchable: Counter,
    /// Status as last reported to the index.
    status: SourceStatus,
    presence: PresenceTracker,
    /// State and connection in the last log line.
    logged: Option<(SourceState, bool)>,
    together: Option<Together>,
    block_size: u32,
    warned_of_block_size: bool,
    /// Why the source is not exact, since its last clear.
    reasons: Vec<StateReason>,
    /// Ranks of the source's batches since its last clear.
    ranks: BTreeSet<DpRank>,
}

/// Small batches that are submitted as one, with the status after the last batch.
struct Together {
    batch: IndexBatch,
    operations: usize,
}

impl Link {
    /// Creates a link that starts empty, or resumes from a cursor.
    pub(super) fn new(
        (writer, origin, metrics): (Writer, Origin, IngestMetrics),
        source: IndexedSource,
        plan: LinkPlan,
        resume: Option<Resume>,
    ) -> Self {
        let status = resume.as_ref().map(|resume| &resume.status);
        let sink = IndexSink {
            source,
            writer,
            origin,
            unmatchable: metrics.unmatchable_blocks.clone(),
            metrics,
            presence: PresenceTracker::new(plan.subscription.presence, status),
            status: status.cloned().unwrap_or_default(),
            logged: None,
            together: None,
            block_size: plan.config.normaliser.block_size,
            warned_of_block_size: false,
            reasons: status.map_or_else(Vec::new, resumed_reasons),
            ranks: BTreeSet::new(),
        };
        Self { name: plan.name, config: plan.config, resume, sink }
    }

    /// Adds the endpoint to every log line of its task. The span has the highest level, so that filters never drop it
    /// from a line that passes.
    pub(super) fn span(&self, of: &Registration) -> tracing::Span {
        tracing::error_span!(
            "engine",
            model = of.partition.model(),
            tenant = of.partition.tenant(),
            worker = of.worker.as_str(),
            endpoint = self.name,
        )
    }

    /// Follows the endpoint until cancelled. After a panic, the link restarts with an empty source.
    pub(super) async fn run(mut self, common: Common, cancel: CancellationToken) {
        loop {
            let (commands, queue) = mpsc::channel(COMMANDS_MAX);
            let config = self.config.clone();
            let common = common.clone();
            let resume = self.resume.take();
            let link = link::run(config, resume, commands, common, cancel.clone());
            let work = async { join!(link, self.sink.forward(queue)).1 };
            match AssertUnwindSafe(work).catch_unwind().await {
                Ok(Ok(()) | Err(WriterGone)) => return,
                Err(_panic) => {
                    tracing::error!("the link to an engine failed: it restarts empty");
                }
            }
            if self.sink.reset().await.is_err() {
                return;
            }
            select! {
                () = cancel.cancelled() => return,
                () = sleep(FAULT_PAUSE) => {}
            }
        }
    }
}

/// Returns the reasons of a resumed source; `ForgottenNames` if the checkpoint lacks names.
fn resumed_reasons(resume: &SourceStatus) -> Vec<StateReason> {
    let mut reasons = resume.reasons.to_vec();
    if resume.learned.forgot_names {
        let reason = Reason::ForgottenNames;
        let example = Arc::default();
        let seen = StateReason { reason, count: 1, example, since: Duration::ZERO };
        StateReason::note(&mut reasons, seen);
    }
    reasons
}

impl IndexSink {
    /// Forwards commands until the link has ended and its queue is empty.
    async fn forward(
        &mut self,
        mut commands: mpsc::Receiver<SourceCommand>,
    ) -> Result<(), WriterGone> {
        let mut taken = Vec::with_capacity(COMMANDS_MAX);
        while commands.recv_many(&mut taken, COMMANDS_MAX).await > 0 {
            for command in taken.drain(..) {
                self.handle_command(command).await?;
            }
            self.submit_pending().await?;
        }
        Ok(())
    }

    /// Submits the batches collected so far.
    async fn submit_pending(&mut self) -> Result<(), WriterGone> {
        let Some(Together { batch, .. }) = self.together.take() else { return Ok(()) };
        self.writer.submit(&self.source, batch, self.status.clone()).await
    }

    /// Collects a batch. First submits the collected ones if the rank differs or there are many.
    async fn add(&mut self, mut batch: IndexBatch) -> Result<(), WriterGone> {
        let added = batch.events.iter().map(KvEvent::operations).sum::<usize>();
        let fits =
            |at: &Together| at.batch.rank == batch.rank && at.operations + added <= TOGETHER_MAX;
        if !self.together.as_ref().is_some_and(fits) {
            self.submit_pending().await?;
        }
        match &mut self.together {
            Some(together) => {
                together.batch.events.append(&mut batch.events);
                together.batch.names.append(&mut batch.names);
                together.operations += added;
            }
            None => self.together = Some(Together { batch, operations: added }),
        }
        Ok(())
    }

    /// Applies a command of the link to the index or to the metrics. Batches may wait to be merged; any other command
    /// first submits them.
    async fn handle_command(&mut self, command: SourceCommand) -> Result<(), WriterGone> {
        if !matches!(command, SourceCommand::Apply { .. }) {
            self.submit_pending().await?;
        }
        let source = &self.source;
        match command {
            command @ SourceCommand::Apply { .. } => self.take_batch(command).await,
            SourceCommand::Expire(Expired { rank, event, early }) => {
                let blocks = event.operations() as u64;
                self.metrics.count_expired(blocks, early);
                let batch = IndexBatch { rank, events: vec![event], names: Vec::new() };
                self.writer.submit(source, batch, self.status.clone()).await
            }
            // Unreachable: see `has_pool`.
            SourceCommand::ExpireInPool(_) => Ok(()),
            ref command @ (SourceCommand::Clear | SourceCommand::Expired) => {
                self.presence.note_cleared(*command == SourceCommand::Expired);
                self.status.state = self.status.state.max(SourceState::CatchingUp);
                self.status.applied = None;
                self.status.head = None;
                self.status.learned = Arc::default();
                self.reasons.clear();
                self.ranks.clear();
                self.status.reasons = Arc::default();
                self.writer.clear(source, self.status.clone()).await
            }
            SourceCommand::ClearLost => {
                self.note_lost();
                self.writer.clear(&self.source, self.status.clone()).await
            }
            SourceCommand::MarkSuspect => {
                self.note_lost();
                self.writer.mark_suspect(&self.source, self.status.clone()).await
            }
            SourceCommand::DropSuspects => self.writer.drop_suspects(source).await,
            SourceCommand::Outcome { outcome, batches } => {
                self.metrics.count_batches(outcome, batches);
                Ok(())
            }
            SourceCommand::Replays { outcome, rounds } => {
                self.metrics.count_replays(outcome, rounds);
                Ok(())
            }
            SourceCommand::Excess { excess, connections } => {
                self.metrics.count_excess(excess, connections);
                Ok(())
            }
            SourceCommand::Unreachable => {
                self.presence.note_unreachable();
                Ok(())
            }
            SourceCommand::Status(status) => {
                self.set_status(status.by_clock(|at| self.origin.since(at))).await
            }
        }
    }

    /// Applies a batch of the link. Rejected operations make the source incomplete. Ignores other commands.
    async fn take_batch(&mut self, command: SourceCommand) -> Result<(), WriterGone> {
        let SourceCommand::Apply {
            cursor,
            rank,
            events,
            drops,
            unmatchable_blocks,
            reasons,
            names,
            learned,
            pool_events: _,
        } = command
        else {
            return Ok(());
        };
        self.metrics.count_received(events.iter().map(KvEvent::operations).sum(), &drops);
        self.metrics.count_batches(BatchOutcome::Applied, 1);
        self.unmatchable.inc_by(unmatchable_blocks);
        self.warn_of_block_size(&drops);
        self.ranks.insert(rank);
        if events.contains(&KvEvent::Cleared) && self.is_only_rank(rank).await? {
            self.reasons.clear();
            self.status.reasons = Arc::default();
        }
        self.add(IndexBatch { rank, events, names }).await?;
        self.presence.note_applied(&cursor);
        self.status.applied = Some(cursor);
        self.status.learned = learned;
        self.note_reasons(reasons);
        if drops.iter().any(|(reason, _)| reason.kind() == DropKind::Rejected) {
            self.submit_pending().await?;
            self.writer.mark_incomplete(&self.source).await?;
            if self.logged.is_none_or(|(state, _)| state < SourceState::Partial) {
                self.log_state().await?;
            }
        }
        Ok(())
    }

    /// Whether the source feeds no other rank. Only the index knows ranks from before a restart.
    async fn is_only_rank(&self, rank: DpRank) -> Result<bool, WriterGone> {
        if self.ranks.len() > 1 {
            return Ok(false);
        }
        let id = self.source.id();
        let ask = move |index: &mut Index| index.feeds_only(id, rank);
        self.writer.change(self.source.shard(), ask).await
    }

    /// Applies the link's status to the index. Logs the state if it has changed.
    async fn set_status(&mut self, status: SourceStatus) -> Result<(), WriterGone> {
        self.metrics.count_state(self.status.state, status.state);
        self.presence.note_status(&status);
        self.status = SourceStatus { reasons: self.reasons.as_slice().into(), ..status };
        self.writer.set_status(&self.source, self.status.clone()).await?;
        if self.logged != Some((self.status.state, self.status.connected)) {
            self.log_state().await?;
        }
        Ok(())
    }

    /// Logs the state that answers report, if it has changed. It may be worse than the link's state, because only the
    /// index records blocks that it refused.
    async fn log_state(&mut self) -> Result<(), WriterGone> {
        let SourceStatus { state, connected, .. } = self.status;
        let id = self.source.id();
        let ask = move |index: &mut Index| index.status(id).map(|status| status.state);
        let state = self.writer.change(self.source.shard(), ask).await?.unwrap_or(state);
        if self.logged.replace((state, connected)) != Some((state, connected)) {
            tracing::info!(%state, connected, "source state");
        }
        Ok(())
    }

    /// Records reasons why the source is worse than exact. Logs each reason once.
    fn note_reasons(&mut self, reasons: Vec<(Reason, u64, String)>) {
        if reasons.is_empty() {
            return;
        }
        let since = self.origin.elapsed();
        for (reason, count, example) in reasons {
            self.metrics.count_reason(reason, count);
            let seen = StateReason { reason, count, example: example.as_str().into(), since };
            if StateReason::note(&mut self.reasons, seen) {
                let may_be = reason.direction();
                tracing::warn!(%reason, example, ?may_be, "the source is not exact");
            }
        }
        self.status.reasons = self.reasons.as_slice().into();
    }

    /// Warns once that the block size that drops state differs from the registration.
    fn warn_of_block_size(&mut self, drops: &Drops) {
        let stated = drops.stated_block_size().filter(|_| !self.warned_of_block_size);
        let Some(size) = stated else { return };
        self.warned_of_block_size = true;
        let StatedBlockSize { tokens: stated, medium } = size;
        let stated = *stated;
        let registered = self.block_size;
        if size.is_of_device() {
            tracing::warn!(
                stated,
                registered,
                %medium,
                "the block size in the engine's events differs from the registration: these blocks are rejected; \
                 register the worker with the engine's block-size"
            );
        } else if let Some(blocks) = size.chunk_blocks(registered) {
            tracing::warn!(
                stated,
                registered,
                %medium,
                "blocks on this medium are rejected: a connector announces chunks of several blocks there; register the \
                 worker with connector-chunk.{medium}={blocks}, and keep the block-size of the engine's own blocks"
            );
        } else {
            tracing::warn!(
                stated,
                registered,
                %medium,
                "blocks on this medium are rejected: a connector announces chunks of another size than the engine's blocks, \
                 which connector-chunk cannot state; keep the block-size of the engine's own blocks"
            );
        }
    }

    /// Records lost batches. Images from now on must show the loss, though the link reports its state only later.
    fn note_lost(&mut self) {
        let lost = self.status.state.max(SourceState::Degraded);
        self.metrics.count_state(self.status.state, lost);
        self.status.state = lost;
    }

    /// Drops all data of the source.
    async fn reset(&mut self) -> Result<(), WriterGone> {
        self.together = None;
        self.reasons.clear();
        self.ranks.clear();
        self.status = SourceStatus::default();
        self.writer.clear(&self.source, self.status.clone()).await
    }
}
