use super::config::SequencerConfig;
use super::incarnation;
use super::progress::{Position, Progress};
use super::replays::Replays;
use super::step::{Input, Received, Step};
use crate::order::{self, Bounds, Core, HeldShare, Item, Machine, OutcomeCounts};
use kvasir_proto::limits::{SEQUENCES_AHEAD_MAX, UNSTATED_FIRST_SEQUENCE_MAX};
use kvasir_proto::types::{Cursor, Fingerprint, Incarnation, SourceState, SourceStatus};
use std::time::Duration;

/// Whether the live stream is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Connection {
    Down {
        since: Duration,
        expired: bool,
    },
    Up {
        /// Whether a batch has arrived over this connection. From then on, the live stream proves that no
        /// newer batch is missing.
        live_seen: bool,
    },
}

/// Orders the batches of one source. See the [module](super).
///
/// Pass inputs to [`handle`](Self::handle), then take all steps with [`next_step`](Self::next_step) before
/// the next input. Report a [`Step::Apply`] with an unreadable payload with
/// [`content_lost`](Self::content_lost), and one that cleared the engine's cache with
/// [`content_cleared`](Self::content_cleared). Do so before taking the next step.
#[derive(Debug, Clone)]
pub struct Sequencer<I> {
    pub(super) config: SequencerConfig,
    pub(super) core: Core<Received<I>, Step<I>>,
    pub(super) connection: Connection,
    pub(super) progress: Progress,
    /// The incarnation that ended on this connection because a batch stated another one. Its later batches
    /// are stale.
    pub(super) ended: Option<Incarnation>,
    /// When an unproved cursor is trusted: there is no replay socket, and the publisher states its
    /// incarnation but has not yet done so on this connection.
    pub(super) prove_by: Option<Duration>,
    /// Number of the next batch to apply.
    pub(super) next: u64,
    /// Missing batches below this number are lost: no further round requests them.
    pub(super) given_up_below: u64,
    /// The newest live batch of this connection, or the cursor if there is none. Batches published after the
    /// connection was made are newer than all earlier ones.
    pub(super) last_live: Option<Position>,
    pub(super) replays: Replays,
    /// Whether all batches announced before some moment of this connection are applied.
    pub(super) caught_up: bool,
}

impl<I: Item> Sequencer<I> {
    /// Creates the state of a source that is not connected yet, at time `now` of a monotonic clock. If
    /// `resume` has a cursor, the index has all batches up to it. A degraded source has a first step to
    /// execute.
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

    /// Processes one input at time `now`. Time never runs backwards: an earlier `now` counts as the latest
    /// one.
    pub fn handle(&mut self, input: Input<I>, now: Duration) {
        self.core.begin_input(now);
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

    /// The next step to execute; `None` after all consequences of the last input.
    pub fn next_step(&mut self) -> Option<Step<I>> {
        order::next_step(self)
    }

    /// Whether a batch's number is plausible: not far beyond the next one on the same connection, and not
    /// beyond the highest number that an engine can have reached. Batches with implausible numbers are
    /// dropped as stale.
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

    /// Whether a live batch shows that the position is wrong: live batches are new, and none can be delayed
    /// by so many numbers.
    pub(super) const fn is_far_behind(&self, sequence: u64) -> bool {
        !self.progress.is_unproven() && self.next.saturating_sub(sequence) > SEQUENCES_AHEAD_MAX
    }

    /// Reports that the last applied batch was unreadable, entirely or in part.
    pub fn content_lost(&mut self) {
        self.core.degrade();
    }

    /// Reports that the last applied batch cleared the engine's cache: earlier losses no longer matter.
    pub const fn content_cleared(&mut self) {
        self.core.repair();
    }

    /// When the next [`Input::Tick`] is due at the latest.
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

    /// Limits the buffer to the share that other sources leave, except for its newest batch.
    pub fn share(&mut self, held: &mut HeldShare) {
        self.core.limit_to_share(held);
    }

    /// Current status of the source.
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

    /// Number of batches by outcome since the sequencer was created.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.core.counts
    }

    fn cursor(&self) -> Option<Cursor> {
        let Position { sequence, fingerprint } = self.progress.position()?;
        Some(Cursor { incarnation: self.progress.incarnation()?, sequence, fingerprint })
    }

    /// State of the source. A permanent loss comes first. A source that has caught up is exact, or has a gap if
    /// batches are buffered.
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

    /// Drops the source's blocks once it was disconnected for `worker_timeout`.
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

    /// Counts the batches missing before the first buffered one as lost, if their recovery was abandoned.
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

    /// Id of the incarnation. Without a stated id, a fresh one is derived from its first batch.
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

    /// Ends the incarnation, because the engine restarted. The first batch of the new one determines its id,
    /// unless the id is `stated`.
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

    fn apply_next(&mut self) -> bool {
        // The buffered batches may be of another incarnation than the cursor. A replay must first prove that they
        // follow.
        if self.progress.is_unproven() {
            return false;
        }
        // May raise `next`, past numbers that are lost.
        self.skip_given_up();
        let Some(received) = self.core.buffer.take_front(self.next) else { return false };
        let Received { sequence, fingerprint, item, .. } = received;
        let incarnation = self.named_from(sequence, fingerprint);
        let fingerprint = Some(fingerprint);
        self.progress = Progress::Known(incarnation, Position { sequence, fingerprint });
        self.next = self.progress.next();
        self.core.counts.applied += 1;
        // From its first batch on, a live connection delivers every batch in order: nothing newer exists.
        if self.connection == (Connection::Up { live_seen: true }) && self.core.buffer.len() == 0 {
            self.core.verified_at = Some(self.core.now);
        }
        let cursor = Cursor { incarnation, sequence, fingerprint };
        self.core.push(Step::Apply { cursor, item });
        true
    }

    fn derive_steps(&mut self) {
        self.core.drop_suspects_when_due();
        let live_seen = match self.connection {
            Connection::Down { since, expired } => {
                // Replays need a connection.
                self.expire_when_due(since, expired);
                return;
            }
            Connection::Up { live_seen } => live_seen,
        };
        self.trust_when_due();
        // Batches that stay buffered here wait for missing ones. An unproven cursor already has a round planned.
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
