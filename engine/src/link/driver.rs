use super::clears::Clears;
use super::command::SourceCommand;
use super::config::{Common, LinkConfig, OUTBOX_BYTES_MAX, OUTBOX_COMMANDS_MAX, Resume};
use super::frames::{self, Payload};
use super::logs::Logs;
use super::replay::{Replay, ReplayError, ReplayEvent, Target};
use super::reports::{Reports, Sums};
use super::topic::Topics;
use super::unheard::Unheard;
use crate::decode::decode;
use crate::expiry::{Expired, Expiry};
use crate::normalise::Normaliser;
use crate::sequence::{
    HeldBytes, HeldShare, Input, REPLAY_REPLIES_MAX, Received, Sequencer, SequencerConfig, Step,
};
use crate::zmtp::{Message, SubEvent, SubSocket};
use kvasir_proto::types::{BlockName, Cursor, KvEvent, SourceStatus};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

/// Steps executed before the task yields to others.
const STEPS_PER_TURN: usize = 32;
/// Maximum number of live messages from the read buffer before other events are checked.
const AT_HAND_MAX: usize = 32;

/// Follows one source until `cancel` is cancelled or the receiver of `commands` is dropped.
///
/// `resume` is the state from a checkpoint. The index must contain all batches up to its cursor.
pub async fn run(
    config: LinkConfig,
    resume: Option<Resume>,
    commands: mpsc::Sender<SourceCommand>,
    common: Common,
    cancel: CancellationToken,
) {
    let mut driver = Driver::new(config, resume, commands, common);
    tokio::select! {
        () = cancel.cancelled() => {}
        _receiver_gone = driver.run() => {}
    }
}

/// The receiver of the commands was dropped.
struct ReceiverGone;

/// The next event of a link.
enum Event {
    Live(SubEvent),
    Replay(ReplayEvent),
    Tick,
    /// The receiver took a command.
    Delivered,
}

/// A command that waits for the receiver, and the bytes of its payload.
struct Pending {
    command: SourceCommand,
    bytes: usize,
}

struct Driver {
    /// The sequencer's time 0.
    origin: Instant,
    config: LinkConfig,
    socket: SubSocket,
    replay: Option<Replay>,
    replay_permits: Arc<Semaphore>,
    held: HeldShare,
    /// Remaining live messages before other events are checked.
    at_hand: usize,
    sequencer: Sequencer<Payload>,
    normaliser: Normaliser,
    clears: Clears,
    expiry: Expiry,
    /// Deadlines of blocks in the pool.
    pool_expiry: Expiry,
    commands: mpsc::Sender<SourceCommand>,
    outbox: VecDeque<Pending>,
    outbox_bytes: usize,
    /// Running totals for reports.
    sums: Sums,
    reports: Reports,
    unheard: Unheard,
    was_connected: bool,
    topics: Topics,
    log: Logs,
}

impl Driver {
    fn new(
        config: LinkConfig,
        resume: Option<Resume>,
        commands: mpsc::Sender<SourceCommand>,
        Common { replay_permits, held, deadlines }: Common,
    ) -> Self {
        let replay = config.replay.is_some();
        let sequencing = SequencerConfig { replay, ..config.sequencing };
        let topic = Topics::subscription(&config.topic, replay);
        let mut normaliser = Normaliser::new(config.normaliser.clone());
        let status = resume.as_ref().map(|resume| resume.status.clone());
        let Resume { names, ranks, .. } = resume.unwrap_or_default();
        if let Some(status) = status.as_ref().filter(|at| at.applied.is_some()) {
            normaliser.resume((*status.learned).clone(), names, &ranks);
        }
        Self {
            origin: Instant::now(),
            socket: SubSocket::new(config.attach.clone(), topic, config.zmtp.clone()),
            replay: None,
            replay_permits,
            held: HeldBytes::share(held),
            at_hand: AT_HAND_MAX,
            sequencer: Sequencer::new(sequencing, status.as_ref(), Duration::ZERO),
            normaliser,
            clears: Clears::for_ranks(ranks),
            expiry: Expiry::new(HeldBytes::share(Arc::clone(&deadlines))),
            pool_expiry: Expiry::new(HeldBytes::share(deadlines)),
            commands,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            sums: Sums::default(),
            reports: Reports::default(),
            unheard: Unheard::default(),
            was_connected: false,
            topics: Topics::new(config.topic.clone()),
            log: Logs::new(),
            config,
        }
    }

    /// Alternates between steps and events. While the outbox is full, live messages stay in the socket.
    async fn run(&mut self) -> Result<Infallible, ReceiverGone> {
        loop {
            let done = self.execute_steps().await?;
            if done
                && self.at_hand > 0
                && let Some(event) = self.socket.buffered()
            {
                self.at_hand -= 1;
                self.handle_event(Event::Live(event));
                continue;
            }
            self.at_hand = AT_HAND_MAX;
            if done {
                self.report_status()?;
            }
            let event = self.wait(done).await?;
            self.handle_event(event);
        }
    }

    /// Executes steps until there are no more. Returns `false` if the outbox is full.
    async fn execute_steps(&mut self) -> Result<bool, ReceiverGone> {
        if self.topics.take_mixed() {
            self.drop_mixed()?;
        }
        for turn in 1_usize.. {
            if self.outbox.len() >= OUTBOX_COMMANDS_MAX || self.outbox_bytes >= OUTBOX_BYTES_MAX {
                return Ok(false);
            }
            if !self.expire()? {
                let Some(step) = self.sequencer.next_step() else { break };
                self.carry_out(step)?;
            }
            if turn.is_multiple_of(STEPS_PER_TURN) {
                yield_now().await;
            }
        }
        Ok(true)
    }

    /// Sends the next expired blocks, if any.
    fn expire(&mut self) -> Result<bool, ReceiverGone> {
        if self.expiry.deadline().or(self.pool_expiry.deadline()).is_none() {
            return Ok(false);
        }
        let now = self.origin.elapsed();
        let bytes = |expired: &Expired| expired.event.operations() * size_of::<BlockName>();
        let (command, bytes) = if let Some(own) = self.expiry.next(now) {
            let bytes = bytes(&own);
            self.normaliser.expire(own.rank, &own.event);
            (SourceCommand::Expire(own), bytes)
        } else if let Some(of_pool) = self.pool_expiry.next(now) {
            let bytes = bytes(&of_pool);
            (SourceCommand::ExpireInPool(of_pool), bytes)
        } else {
            return Ok(false);
        };
        self.send(command, bytes)?;
        Ok(true)
    }

    /// Waits for the next event. Reads sockets only after all steps are executed.
    async fn wait(&mut self, done: bool) -> Result<Event, ReceiverGone> {
        let deadline = self.deadline();
        let Self { socket, replay, commands, outbox, outbox_bytes, .. } = self;
        if !done && let Some(replay) = replay {
            replay.restart_timeout();
        }
        let next_reply = async {
            match replay {
                Some(replay) => replay.next().await,
                None => pending().await,
            }
        };
        tokio::select! {
            permit = commands.reserve(), if !outbox.is_empty() => {
                let permit = permit.map_err(|_closed| ReceiverGone)?;
                if let Some(Pending { command, bytes }) = outbox.pop_front() {
                    *outbox_bytes -= bytes;
                    permit.send(command);
                }
                Ok(Event::Delivered)
            }
            () = commands.closed() => Err(ReceiverGone),
            event = socket.next(), if done => Ok(Event::Live(event)),
            event = next_reply, if done => Ok(Event::Replay(event)),
            () = sleep_until(deadline), if done => Ok(Event::Tick),
        }
    }

    /// Time of the next timer event, at most an hour ahead.
    fn deadline(&self) -> Instant {
        const FAR: Duration = Duration::from_secs(3_600);
        let far = Instant::now() + FAR;
        let after_origin = |deadline| self.origin + deadline;
        let sequencer = self.sequencer.deadline().map(after_origin);
        let expiry = self.expiry.deadline().map(after_origin);
        let pool_expiry = self.pool_expiry.deadline().map(after_origin);
        [sequencer, expiry, pool_expiry, self.reports.deadline()]
            .into_iter()
            .flatten()
            .min()
            .map_or(far, |at| at.min(far))
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Live(SubEvent::Connected) => {
                self.unheard = Unheard::default();
                self.was_connected = true;
                self.input(Input::Connected);
            }
            Event::Live(SubEvent::Disconnected(error)) => {
                self.sums.count_excess(error.excess());
                self.sums.is_unreachable |= !self.was_connected;
                self.log.disconnected(&error);
                self.input(Input::Disconnected);
            }
            Event::Live(SubEvent::Message(message)) => self.take_live(&message),
            Event::Replay(event) => self.take_reply(event),
            Event::Tick => self.input(Input::Tick),
            Event::Delivered => {}
        }
    }

    fn input(&mut self, input: Input<Payload>) {
        self.sequencer.share(&mut self.held);
        self.sequencer.handle(input, self.origin.elapsed());
    }

    /// Handles a live message. Drops messages of other topics and malformed ones: the sequencer then finds a gap.
    fn take_live(&mut self, message: &Message) {
        let topic = frames::topic(message);
        if !self.topics.admit_live(topic) {
            // Its number is missing from the stream.
            self.sums.other_topic += 1;
            return;
        }
        self.unheard.receive_live();
        match frames::live(message) {
            Ok(received) => {
                self.log_number(&received);
                self.input(Input::Live(received));
            }
            Err(error) => {
                // If it was a batch, its number is missing from the stream.
                self.sums.undecodable += 1;
                self.log.malformed(&error);
            }
        }
    }

    /// Drops the batches replayed without a topic, because the socket has since shown a second topic.
    fn drop_mixed(&mut self) -> Result<(), ReceiverGone> {
        tracing::warn!(
            "replayed batches may be another engine's, as they state no topic: all blocks are dropped"
        );
        self.topics.forget_taken();
        self.expiry.clear();
        self.pool_expiry.clear();
        self.sequencer.content_lost();
        self.send(SourceCommand::ClearLost, 0)
    }

    /// Whether a replayed batch comes from this engine.
    fn admit_replayed(&mut self, topic: &[u8]) -> Result<bool, ReplayError> {
        if self.topics.admit_replayed(topic)? {
            return Ok(true);
        }
        self.sums.other_topic += 1;
        let Some(replay) = &mut self.replay else { return Ok(false) };
        replay.others += 1;
        if replay.others > REPLAY_REPLIES_MAX { Err(ReplayError::OtherTopics) } else { Ok(false) }
    }

    /// Logs a batch that the sequencer is about to drop because of its number.
    fn log_number(&mut self, received: &Received<Payload>) {
        if !self.sequencer.believes(received.sequence, received.incarnation) {
            self.log.unbelievable(received.sequence);
        }
    }

    /// Handles an event of the replay round. Fails at its end if replies had other topics, because batches may be
    /// missing.
    fn take_reply(&mut self, event: ReplayEvent) {
        let Some(replay) = &self.replay else { return };
        let round = replay.round;
        let others = replay.others;
        let event = match event {
            ReplayEvent::Batch { ref topic, .. } => match self.admit_replayed(topic) {
                Ok(true) => event,
                Ok(false) => return,
                Err(error) => ReplayEvent::Failed(error),
            },
            ReplayEvent::End if others > 0 => ReplayEvent::Failed(ReplayError::OtherTopics),
            ReplayEvent::End | ReplayEvent::Failed(_) => event,
        };
        let input = match event {
            ReplayEvent::Batch { received, .. } => {
                self.log_number(&received);
                Input::ReplayReply { round, received }
            }
            ReplayEvent::End => {
                if self.unheard.end_round() {
                    let topic = String::from_utf8_lossy(&self.config.topic);
                    tracing::warn!(
                        %topic,
                        "the engine's batches come by replay only and none of them live: compare this topic with the \
                         engine's"
                    );
                }
                self.sums.replays_completed += 1;
                Input::ReplayEnd { round }
            }
            ReplayEvent::Failed(error) => {
                self.sums.replays_failed += 1;
                self.sums.count_excess(error.excess());
                self.log.replay_failed(self.config.replay.as_ref(), &error);
                Input::ReplayFailed { round }
            }
        };
        if !matches!(input, Input::ReplayReply { .. }) {
            self.replay = None;
        }
        self.input(input);
    }

    /// Executes a step of the sequencer: starts or cancels a replay, or sends a command to the index.
    fn carry_out(&mut self, step: Step<Payload>) -> Result<(), ReceiverGone> {
        let command = match step {
            Step::Apply { cursor, item } => return self.apply(cursor, &item),
            Step::StartReplay { round, from } => {
                self.start_replay(round, from);
                return Ok(());
            }
            Step::CancelReplay { .. } => {
                self.sums.replays_cancelled += u64::from(self.replay.take().is_some());
                return Ok(());
            }
            Step::Restarted => {
                self.reset_knowledge();
                tracing::debug!("the source restarted");
                SourceCommand::Clear
            }
            Step::NewIncarnation { incarnation } => {
                self.reset_knowledge();
                tracing::info!(%incarnation, "new incarnation of the source");
                SourceCommand::Clear
            }
            Step::Expired => {
                self.reset_knowledge();
                tracing::warn!(
                    "the engine was disconnected for longer than worker-timeout: its blocks are dropped"
                );
                SourceCommand::Expired
            }
            Step::MarkSuspect => {
                self.clears.lose();
                self.normaliser.doubt_blocks();
                SourceCommand::MarkSuspect
            }
            Step::ClearLost => {
                self.clears.lose();
                self.normaliser.forget_blocks();
                self.expiry.clear();
                self.pool_expiry.clear();
                SourceCommand::ClearLost
            }
            Step::DropSuspects => SourceCommand::DropSuspects,
        };
        self.send(command, 0)
    }

    /// Resets the knowledge about the source. All its blocks are dropped, except those in the pool.
    fn reset_knowledge(&mut self) {
        self.topics.forget_taken();
        self.normaliser.reset();
        self.clears = Clears::default();
        self.expiry.clear();
    }

    fn start_replay(&mut self, round: u64, from: u64) {
        let permits = Arc::clone(&self.replay_permits);
        self.replay =
            Target::from(&self.config).map(|target| Replay::start(round, from, target, permits));
    }

    /// Sends a decoded batch to the index. Reports an undecodable one to the sequencer as lost content.
    fn apply(&mut self, cursor: Cursor, payload: &Payload) -> Result<(), ReceiverGone> {
        let batch = match decode(&payload.bytes, self.config.normaliser.engine) {
            Ok(batch) => batch,
            Err(error) => {
                self.log.undecodable(cursor.sequence, &error);
                self.sums.undecodable += 1;
                self.sequencer.content_lost();
                return Ok(());
            }
        };
        if payload.is_replayed {
            self.unheard.apply_replayed();
        }
        let has_ttls = !self.config.normaliser.medium_ttls.is_empty();
        let age = if has_ttls { payload.age(batch.ts_bits) } else { Duration::ZERO };
        let normalised = self.normaliser.normalise(batch);
        let has_clear = normalised.events.contains(&KvEvent::Cleared);
        if self.clears.record_batch(normalised.rank, has_clear) {
            self.sequencer.content_cleared();
        }
        if let Some(unreadable) = normalised.first_unreadable {
            self.log.unreadable(cursor.sequence, unreadable);
        }
        if normalised.is_lossy() {
            self.sequencer.content_lost();
        }
        let reasons = normalised.reasons();
        let now = self.origin.elapsed();
        self.expiry.note(normalised.rank, &normalised.events, &normalised.expiring, now, age);
        // A pool has one rank, whichever rank announces the block.
        self.pool_expiry.note(0, &normalised.pool_events, &normalised.pool_expiring, now, age);
        let command = SourceCommand::Apply {
            cursor,
            rank: normalised.rank,
            events: normalised.events,
            pool_events: normalised.pool_events,
            drops: Box::new(normalised.drops),
            unmatchable_blocks: normalised.unmatchable_blocks,
            reasons,
            names: normalised.name_changes,
            learned: Arc::clone(self.normaliser.learned()),
        };
        self.send(command, payload.bytes.len())
    }

    /// Sends a command to the receiver, or queues it in the outbox if the receiver is not ready.
    fn send(&mut self, command: SourceCommand, bytes: usize) -> Result<(), ReceiverGone> {
        let command = if self.outbox.is_empty() {
            match self.commands.try_send(command) {
                Ok(()) => return Ok(()),
                Err(mpsc::error::TrySendError::Closed(_)) => return Err(ReceiverGone),
                Err(mpsc::error::TrySendError::Full(command)) => command,
            }
        } else {
            command
        };
        self.outbox_bytes += bytes;
        self.outbox.push_back(Pending { command, bytes });
        Ok(())
    }

    /// Sends the changes since the last report.
    fn report_status(&mut self) -> Result<(), ReceiverGone> {
        let status = self.sequencer.status().by_clock(|at| self.origin + at);
        let learned = Arc::clone(self.normaliser.learned());
        let status = SourceStatus { learned, ..status };
        self.sums.counts = self.sequencer.counts();
        let commands = self.reports.next(status, self.sums, Instant::now());
        for command in commands.into_iter().flatten() {
            self.send(command, 0)?;
        }
        Ok(())
    }
}
