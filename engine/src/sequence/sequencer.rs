use super::{
    config::SequencerConfig,
    incarnation,
    progress::{Position, Progress},
    replays::Replays,
    step::{Input, Received, Step},
};
use crate::order::{self, Bounds, Core, HeldShare, Item, Machine, OutcomeCounts};
use kvasir_proto::{
    limits::{SEQUENCES_AHEAD_MAX, UNSTATED_FIRST_SEQUENCE_MAX},
    types::{Cursor, Fingerprint, Incarnation, SourceState, SourceStatus},
};
use std::time::Duration;

/// Whether the live stream is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    Down {
        since: Duration,
        expired: bool,
    },
    Up {
        /// Whether a batch came over it: from there on, the live stream is the proof that nothing
        /// newer is missing.
        live_seen: bool,
    },
}

/// Orders the batches of one source. See the [module](super).
///
/// Feed it with [`handle`](Self::handle), then take all steps with
/// [`next_step`](Self::next_step) before the next input. An [`Step::Apply`] whose payload could not
/// be read, or that cleared the engine's cache, is reported back with
/// [`content_lost`](Self::content_lost) or [`content_cleared`](Self::content_cleared) before the
/// next step is taken.
#[derive(Debug, Clone)]
pub struct Sequencer<I> {
    pub(super) config: SequencerConfig,
    pub(super) core: Core<Received<I>, Step<I>>,
    pub(super) connection: Connection,
    pub(super) progress: Progress,
    /// The incarnation that a statement of another one ended on this connection: what still comes of it
    /// is stale.
    pub(super) ended: Option<Incarnation>,
    /// When a cursor in doubt is taken on trust: no replay socket, and the publisher states its
    /// incarnation, but has not on this connection yet.
    pub(super) prove_by: Option<Duration>,
    /// Number of the next batch to apply.
    pub(super) next: u64,
    /// What is missing below this number is lost: no further round asks for it.
    pub(super) given_up_below: u64,
    /// Highest number seen live, or the cursor's where that was not on this connection: what is
    /// published after a connection was made is newer than all that came before it.
    pub(super) last_live: Option<Position>,
    pub(super) replays: Replays,
    /// Whether all that was announced before some moment of this connection is applied.
    pub(super) caught_up: bool,
}

impl<I: Item> Sequencer<I> {
    /// A source that is not connected yet, at the time `now` of a monotonic clock. Where `resume` has a cursor, the index
    /// holds what was applied up to it. A degraded source has a step to be taken.
    #[must_use]
    pub fn new(config: SequencerConfig, resume: Option<&SourceStatus>, now: Duration) -> Self {
        let bounds = Bounds {
            loss_policy: config.loss_policy,
            degraded_ttl: config.degraded_ttl,
            batches_max: config.buffer_batches_max,
            bytes_max: config.buffer_bytes_max,
        };
        let mut sequencer = Self {
            core: Core::new(bounds, now),
            connection: Connection::Down { since: now, expired: false },
            progress: Progress::Fresh(None),
            ended: None,
            prove_by: None,
            next: 0,
            given_up_below: 0,
            last_live: None,
            replays: Replays::new(&config),
            caught_up: false,
            config,
        };
        if let Some((status, cursor)) = resume.and_then(|status| Some((status, status.applied?))) {
            let Cursor { incarnation, sequence, fingerprint } = cursor;
            let position = Position { sequence, fingerprint };
            sequencer.progress = Progress::Unproven(incarnation, position);
            sequencer.next = sequencer.progress.next();
            sequencer.last_live = Some(position);
            if status.state == SourceState::Degraded {
                sequencer.core.degrade();
            }
        }
        sequencer
    }

    /// Takes one input at the time `now`. A `now` earlier than the last one counts as that.
    pub fn handle(&mut self, input: Input<I>, now: Duration) {
        self.core.begin(now);
        match input {
            Input::Connected => self.on_connected(),
            Input::Disconnected => self.on_disconnected(),
            Input::Live(received) => self.on_live(received),
            Input::ReplayReply { round, received } => self.on_reply(round, received),
            Input::ReplayEnd { round } => self.on_replay_end(round),
            Input::ReplayFailed { round } => self.on_replay_failed(round),
            Input::Tick => {}
        }
    }

    /// The next thing to do; none once the last input is worked out to its end.
    pub fn next_step(&mut self) -> Option<Step<I>> {
        order::next_step(self)
    }

    /// Whether the number of a batch can be one of the source's: not where it is far beyond the next one on the same
    /// connection, nor where no engine has published so many. A batch of which it cannot is dropped as stale.
    #[must_use]
    pub fn believes(&self, sequence: u64, incarnation: Option<Incarnation>) -> bool {
        let is_same = incarnation.is_none_or(|stated| self.progress.incarnation() == Some(stated));
        match self.progress {
            Progress::Known(..) if is_same => {
                sequence.saturating_sub(self.next) < SEQUENCES_AHEAD_MAX
            }
            Progress::Fresh(_) | Progress::Unproven(..) | Progress::Known(..) => {
                sequence <= UNSTATED_FIRST_SEQUENCE_MAX
            }
        }
    }

    /// Whether a live batch shows that the position is wrong: what comes live is new, and nothing is under way for
    /// so long.
    pub(super) const fn is_far_behind(&self, sequence: u64) -> bool {
        !self.progress.is_unproven() && self.next.saturating_sub(sequence) > SEQUENCES_AHEAD_MAX
    }

    /// The batch applied last could not be read, or not all of it.
    pub fn content_lost(&mut self) {
        self.core.degrade();
    }

    /// The batch applied last cleared the engine's cache: earlier losses do not matter any more.
    pub const fn content_cleared(&mut self) {
        self.core.repair();
    }

    /// The latest time for the next [`Input::Tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let expiry = match self.connection {
            Connection::Down { since, expired: false } => Some(since + self.config.worker_timeout),
            Connection::Down { expired: true, .. } | Connection::Up { .. } => None,
        };
        [expiry, self.core.suspects_deadline(), self.prove_by, self.replays.rounds.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Limits the buffer to what other sources leave room for, except for its newest batch.
    pub fn share(&mut self, held: &mut HeldShare) {
        self.core.share(held);
    }

    /// What is known of the source.
    #[must_use]
    pub fn status(&self) -> SourceStatus {
        SourceStatus {
            state: self.state(),
            connected: matches!(self.connection, Connection::Up { .. }),
            applied: self.cursor(),
            head: self.last_live.map(|position| position.sequence),
            buffered_batches: self.core.buffer.len() as u64,
            verified_at: self.core.verified_at,
            ..SourceStatus::default()
        }
    }

    /// Sums of outcomes since the sequencer was made.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.core.counts
    }

    fn cursor(&self) -> Option<Cursor> {
        let Position { sequence, fingerprint } = self.progress.position()?;
        Some(Cursor { incarnation: self.progress.incarnation()?, sequence, fingerprint })
    }

    fn state(&self) -> SourceState {
        if self.core.is_degraded() {
            SourceState::Degraded
        } else if self.caught_up && self.core.buffer.len() > 0 {
            SourceState::Gap
        } else if self.caught_up {
            SourceState::Exact
        } else if self.progress.is_fresh() && !self.replays.is_recovering() {
            SourceState::Cold
        } else {
            SourceState::CatchingUp
        }
    }

    fn trust_when_due(&mut self) {
        let due = self.prove_by.take_if(|at| *at <= self.core.now).is_some();
        if due && self.progress.is_unproven() {
            self.accept_unproved();
        }
    }

    fn expire_when_due(&mut self, since: Duration, expired: bool) {
        if expired || self.core.now < since + self.config.worker_timeout {
            return;
        }
        self.connection = Connection::Down { since, expired: true };
        self.progress = Progress::Fresh(None);
        self.next = 0;
        self.given_up_below = 0;
        self.last_live = None;
        self.core.reset();
        self.core.push(Step::Expired);
    }

    /// Counts what is missing before the first batch at hand as lost, if it was given up.
    fn skip_given_up(&mut self) {
        let Some(front) = self.core.buffer.front() else { return };
        let sequence = front.sequence;
        let fingerprint = front.fingerprint;
        let given_up = !self.config.replay || sequence <= self.given_up_below;
        let missing = sequence.saturating_sub(self.next);
        if missing == 0 || !given_up {
            return;
        }
        if self.progress.is_fresh() {
            self.progress = Progress::Fresh(Some(self.named_from(sequence, fingerprint)));
        }
        self.core.lose(missing);
        self.next = sequence;
        self.core.degrade();
    }

    /// Id of the incarnation. A fresh one gets it from its first batch, unless it was stated.
    fn named_from(&mut self, sequence: u64, fingerprint: Fingerprint) -> Incarnation {
        match self.progress {
            Progress::Known(incarnation, _) | Progress::Unproven(incarnation, _) => incarnation,
            Progress::Fresh(Some(stated)) if incarnation::is_stated(stated) => stated,
            Progress::Fresh(_) => {
                self.name_incarnation(incarnation::of_first_batch(sequence, fingerprint))
            }
        }
    }

    /// Emits the step for a new incarnation, once.
    pub(super) fn name_incarnation(&mut self, incarnation: Incarnation) -> Incarnation {
        if self.progress.incarnation() != Some(incarnation) {
            self.core.push(Step::NewIncarnation { incarnation });
        }
        incarnation
    }

    /// The engine restarted: nothing of its earlier incarnation counts. The first batch of the new one
    /// names it, unless a statement did.
    pub(super) fn end_incarnation(&mut self, stated: Option<Incarnation>) {
        if let Some(round) = self.replays.rounds.abandon() {
            self.replays.rounds.restarted();
            self.core.push(Step::CancelReplay { round });
        }
        self.core.drop_held();
        self.ended = None;
        self.prove_by = None;
        self.core.push(match stated {
            Some(incarnation) => Step::NewIncarnation { incarnation },
            None => Step::Restarted,
        });
        self.progress = Progress::Fresh(stated);
        self.next = 0;
        self.given_up_below = 0;
        self.last_live = None;
        if let Connection::Up { live_seen } = &mut self.connection {
            *live_seen = false;
        }
        self.caught_up = false;
        self.core.reset();
        if self.config.replay {
            self.replays.recover(self.core.now);
        }
    }
}

impl<I: Item> Machine for Sequencer<I> {
    type Batch = Received<I>;
    type Step = Step<I>;

    fn core(&mut self) -> &mut Core<Received<I>, Step<I>> {
        &mut self.core
    }

    fn take_next(&mut self) -> bool {
        if self.progress.is_unproven() {
            return false;
        }
        self.skip_given_up();
        let Some(received) = self.core.buffer.take_front(self.next) else { return false };
        let Received { sequence, fingerprint, item, .. } = received;
        let incarnation = self.named_from(sequence, fingerprint);
        let fingerprint = Some(fingerprint);
        self.progress = Progress::Known(incarnation, Position { sequence, fingerprint });
        self.next = self.progress.next();
        self.core.counts.applied += 1;
        if self.connection == (Connection::Up { live_seen: true }) && self.core.buffer.len() == 0 {
            self.core.verified_at = Some(self.core.now);
        }
        let cursor = Cursor { incarnation, sequence, fingerprint };
        self.core.push(Step::Apply { cursor, item });
        true
    }

    fn settle(&mut self) {
        self.core.drop_suspects_when_due();
        let live_seen = match self.connection {
            Connection::Down { since, expired } => {
                self.expire_when_due(since, expired);
                return;
            }
            Connection::Up { live_seen } => live_seen,
        };
        self.trust_when_due();
        if self.core.buffer.len() > 0 && !self.progress.is_unproven() {
            self.replays.recover(self.core.now);
        }
        if live_seen && self.core.buffer.len() == 0 && !self.progress.is_unproven() {
            self.caught_up = true;
        }
        let cursor = self.progress.position().map(|position| position.sequence);
        if let Some(round) = self.replays.start_due(self.core.now, cursor) {
            let from = cursor.unwrap_or(0);
            self.core.push(Step::StartReplay { round, from });
        }
    }

    fn validate(&self) {
        if cfg!(debug_assertions) {
            order::assert_facts(self.facts());
        }
    }
}
