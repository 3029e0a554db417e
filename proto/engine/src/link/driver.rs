use super::{
    command::SourceCommand,
    config::{Common, LinkConfig, OUTBOX_BYTES_MAX, OUTBOX_COMMANDS_MAX},
    frames::{self, Payload},
    logs::Logs,
    replay::{Replay, ReplayEvent, Target},
    reports::{Reports, Sums},
    unheard::Unheard,
};
use crate::{
    decode::decode,
    expiry::{self, Expired, Expiry},
    normalise::{Normalised, Normaliser},
    sequence::{HeldBytes, HeldShare, Input, Received, Sequencer, SequencerConfig, Step},
    zmtp::{Message, SubEvent, SubSocket},
};
use kvasir_proto::types::{BlockName, Cursor, KvEvent, SourceStatus};
use std::{
    collections::VecDeque,
    future::pending,
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    sync::{Semaphore, mpsc},
    task::yield_now,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// Steps carried out before other tasks get their turn.
const STEPS_PER_TURN: usize = 32;
/// Live messages taken from the read buffer before other events are checked.
const AT_HAND_MAX: usize = 32;

/// Follows one source until `cancel` is cancelled or the receiver of `commands` is dropped.
///
/// `resume` is what a checkpoint knows: the index is expected to hold what was applied up to its
/// cursor.
pub async fn run(
    config: LinkConfig,
    resume: Option<SourceStatus>,
    commands: mpsc::Sender<SourceCommand>,
    common: Common,
    cancel: CancellationToken,
) {
    let mut driver = Driver::new(config, resume.as_ref(), commands, common);
    tokio::select! {
        () = cancel.cancelled() => {}
        _receiver_gone = driver.run() => {}
    }
}

/// The receiver of the commands was dropped.
struct ReceiverGone;

/// What happened next.
enum Event {
    Live(SubEvent),
    Replay(ReplayEvent),
    Tick,
    /// A command was taken by the receiver.
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
    /// Live messages that may still be taken before other events are checked.
    at_hand: usize,
    sequencer: Sequencer<Payload>,
    normaliser: Normaliser,
    expiry: Expiry,
    /// Of what lies in the pool.
    pool_expiry: Expiry,
    commands: mpsc::Sender<SourceCommand>,
    outbox: VecDeque<Pending>,
    outbox_bytes: usize,
    /// Batches that could not be read.
    sums: Sums,
    reports: Reports,
    unheard: Unheard,
    log: Logs,
}

impl Driver {
    fn new(
        config: LinkConfig,
        resume: Option<&SourceStatus>,
        commands: mpsc::Sender<SourceCommand>,
        Common { replay_permits, held, deadlines }: Common,
    ) -> Self {
        let replay = config.replay.is_some();
        let sequencing = SequencerConfig { replay, ..config.sequencing };
        let (attach, topic) = (config.attach.clone(), config.topic.clone());
        let mut normaliser = Normaliser::new(config.normaliser.clone());
        if let Some(resume) = resume.filter(|at| at.applied.is_some()) {
            normaliser.resume(resume.main_group);
        }
        Self {
            origin: Instant::now(),
            socket: SubSocket::new(attach, topic, config.zmtp.clone()),
            replay: None,
            replay_permits,
            held: HeldBytes::share(held),
            at_hand: AT_HAND_MAX,
            sequencer: Sequencer::new(sequencing, resume, Duration::ZERO),
            normaliser,
            expiry: Expiry::new(HeldBytes::share(Arc::clone(&deadlines))),
            pool_expiry: Expiry::new(HeldBytes::share(deadlines)),
            commands,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            sums: Sums::default(),
            reports: Reports::default(),
            unheard: Unheard::default(),
            log: Logs::new(),
            config,
        }
    }

    async fn run(&mut self) -> ReceiverGone {
        loop {
            let done = match self.work().await {
                Ok(done) => done,
                Err(gone) => return gone,
            };
            if done
                && self.at_hand > 0
                && let Some(event) = self.socket.buffered()
            {
                self.at_hand -= 1;
                self.take(Event::Live(event));
                continue;
            }
            self.at_hand = AT_HAND_MAX;
            if done && self.report().is_err() {
                return ReceiverGone;
            }
            match self.wait(done).await {
                Ok(event) => self.take(event),
                Err(gone) => return gone,
            }
        }
    }

    /// Carries out steps until none is left, or the outbox is full: then `false`.
    async fn work(&mut self) -> Result<bool, ReceiverGone> {
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

    /// Sends the next blocks whose time to live is over, if there are any.
    fn expire(&mut self) -> Result<bool, ReceiverGone> {
        if self.expiry.deadline().or(self.pool_expiry.deadline()).is_none() {
            return Ok(false);
        }
        let now = self.origin.elapsed();
        let bytes = |expired: &Expired| expired.event.operations() * size_of::<BlockName>();
        let (command, bytes) = if let Some(own) = self.expiry.next(now) {
            let bytes = bytes(&own);
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

    /// Waits for the next event. Sockets are read only once all steps are carried out.
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

    fn deadline(&self) -> Instant {
        /// For a sequencer without a deadline.
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

    fn take(&mut self, event: Event) {
        match event {
            Event::Live(SubEvent::Connected) => {
                self.unheard = Unheard::default();
                self.input(Input::Connected);
            }
            Event::Live(SubEvent::Disconnected(error)) => {
                self.sums.count_excess(error.excess());
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

    fn take_live(&mut self, message: &Message) {
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

    /// Logs a batch that the sequencer is about to drop for its number.
    fn log_number(&mut self, received: &Received<Payload>) {
        if !self.sequencer.believes(received.sequence, received.incarnation) {
            self.log.unbelievable(received.sequence);
        }
    }

    fn take_reply(&mut self, event: ReplayEvent) {
        let Some(round) = self.replay.as_ref().map(|replay| replay.round) else { return };
        let input = match event {
            ReplayEvent::Batch(received) => {
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
                self.forget();
                tracing::debug!("the source restarted");
                SourceCommand::Clear
            }
            Step::NewIncarnation { incarnation } => {
                self.forget();
                tracing::info!(%incarnation, "new incarnation of the source");
                SourceCommand::Clear
            }
            Step::Expired => {
                self.forget();
                tracing::warn!(
                    "the engine was disconnected for longer than worker-timeout: its blocks are dropped"
                );
                SourceCommand::Expired
            }
            Step::MarkSuspect => SourceCommand::MarkSuspect,
            Step::ClearLost => {
                self.expiry.clear();
                self.pool_expiry.clear();
                SourceCommand::ClearLost
            }
            Step::DropSuspects => SourceCommand::DropSuspects,
        };
        self.send(command, 0)
    }

    /// Drops what was learned of the source: all that it stored goes, except what is in the pool.
    fn forget(&mut self) {
        self.normaliser.reset();
        self.expiry.clear();
    }

    fn start_replay(&mut self, round: u64, from: u64) {
        let permits = Arc::clone(&self.replay_permits);
        self.replay =
            Target::from(&self.config).map(|target| Replay::start(round, from, target, permits));
    }

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
        let age = self.age(payload, batch.ts_bits);
        let normalised = self.normaliser.normalise(batch);
        if normalised.events.contains(&KvEvent::Cleared) {
            self.sequencer.content_cleared();
        }
        if normalised.is_lossy() {
            self.sequencer.content_lost();
        }
        let now = self.origin.elapsed();
        let Normalised { rank, events, pool_events, drops, unmatchable_blocks, .. } = normalised;
        self.expiry.note((rank, &events, &normalised.expiring), now, age);
        // A pool has one rank, whichever announces.
        self.pool_expiry.note((0, &pool_events, &normalised.pool_expiring), now, age);
        let main_group = self.normaliser.main_group();
        let command = SourceCommand::Apply {
            cursor,
            rank,
            events,
            pool_events,
            drops,
            unmatchable_blocks,
            main_group,
        };
        self.send(command, payload.bytes.len())
    }

    /// How long ago a batch was published: a live batch is new, whatever the engine's clock shows.
    #[expect(clippy::disallowed_methods, reason = "engines state the time of day")]
    fn age(&self, payload: &Payload, ts_bits: u64) -> Duration {
        if payload.is_replayed && !self.config.normaliser.medium_ttls.is_empty() {
            expiry::age(ts_bits, SystemTime::now())
        } else {
            Duration::ZERO
        }
    }

    /// Hands a command to the receiver, or to the outbox if it is not ready.
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

    /// Sends what changed since the last report.
    fn report(&mut self) -> Result<(), ReceiverGone> {
        let status = self.sequencer.status().by_clock(|at| self.origin + at);
        let status = SourceStatus { main_group: self.normaliser.main_group(), ..status };
        self.sums.counts = self.sequencer.counts();
        let commands = self.reports.next(status, self.sums, Instant::now());
        for command in commands.into_iter().flatten() {
            self.send(command, 0)?;
        }
        Ok(())
    }
}
