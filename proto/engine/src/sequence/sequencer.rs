use super::{
    config::SequencerConfig,
    incarnation,
    life::{Life, Position},
    replays::{Plan, Replays},
    step::{Input, Received, Step},
};
use crate::order::{Buffer, HeldShare, Item, OutcomeCounts};
use kvasir_proto::types::{Cursor, Fingerprint, Incarnation, LossPolicy, SourceState};
use std::{collections::VecDeque, mem, time::Duration};

/// What a checkpoint knows of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resume {
    /// How far it was applied.
    pub cursor: Cursor,
    /// Whether batches had been lost for good.
    pub degraded: bool,
    /// The engine's main KV-cache group, for whoever reads its batches.
    pub main_group: Option<u32>,
}

/// What a sequencer knows of its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencerStatus {
    /// How far the source's entry can be trusted.
    pub state: SourceState,
    /// Whether the live stream is connected.
    pub connected: bool,
    /// How far it was applied.
    pub applied: Option<Cursor>,
    /// Highest number seen live in this life.
    pub last_live: Option<u64>,
    /// Batches held back.
    pub buffered_batches: usize,
    /// Bytes held back.
    pub buffered_bytes: usize,
    /// When the newest batch of the publisher was last known to be applied, on the driver's clock.
    pub verified_at: Option<Duration>,
}

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

/// Batches were lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    /// When what is doubtful is dropped.
    pub(super) drop_suspects_at: Option<Duration>,
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
    pub(super) now: Duration,
    pub(super) connection: Connection,
    pub(super) life: Life,
    /// The life that a statement of another one ended on this connection: what still comes of it
    /// is stale.
    pub(super) ended: Option<Incarnation>,
    /// When a cursor in doubt is taken on trust: no replay socket, and the publisher states its
    /// life, but has not on this connection yet.
    pub(super) prove_by: Option<Duration>,
    /// Number of the next batch to apply.
    pub(super) next: u64,
    /// What is missing below this number is lost: no further round asks for it.
    pub(super) given_up_below: u64,
    /// Highest number seen live, or the cursor's where that was not on this connection: what is
    /// published after a connection was made is newer than all that came before it.
    pub(super) last_live: Option<Position>,
    pub(super) buffer: Buffer<Received<I>>,
    pub(super) replays: Replays,
    /// Whether all that was announced before some moment of this connection is applied.
    pub(super) caught_up: bool,
    pub(super) verified_at: Option<Duration>,
    pub(super) damage: Option<Damage>,
    pub(super) received: u64,
    pub(super) counts: OutcomeCounts,
    pub(super) steps: VecDeque<Step<I>>,
    /// Whether an input is not yet worked out to its end.
    pub(super) unsettled: bool,
}

impl<I: Item> Sequencer<I> {
    /// A source that is not connected yet, at the time `now` of a monotonic clock. A degraded
    /// one has a step to be taken.
    #[must_use]
    pub fn new(config: SequencerConfig, resume: Option<Resume>, now: Duration) -> Self {
        let replay_attempts_max = config.replay_attempts_max.max(1);
        let mut sequencer = Self {
            now,
            connection: Connection::Down { since: now, expired: false },
            life: Life::Fresh(None),
            ended: None,
            prove_by: None,
            next: 0,
            given_up_below: 0,
            last_live: None,
            buffer: Buffer::new(),
            replays: Replays::new(config.jitter_seed),
            caught_up: false,
            verified_at: None,
            damage: None,
            received: 0,
            counts: OutcomeCounts::default(),
            steps: VecDeque::new(),
            unsettled: false,
            config: SequencerConfig { replay_attempts_max, ..config },
        };
        if let Some(Resume { cursor, degraded, .. }) = resume {
            let Cursor { incarnation, sequence, fingerprint } = cursor;
            let position = Position { sequence, fingerprint };
            sequencer.life = Life::Doubtful(incarnation, position);
            sequencer.next = sequencer.life.next();
            sequencer.last_live = Some(position);
            if degraded {
                sequencer.degrade();
            }
        }
        sequencer
    }

    /// Takes one input at the time `now`. A `now` earlier than the last one counts as that.
    pub fn handle(&mut self, input: Input<I>, now: Duration) {
        debug_assert!(self.steps.is_empty() && !self.unsettled, "steps are left");
        self.now = self.now.max(now);
        self.unsettled = true;
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
        loop {
            if let Some(step) = self.steps.pop_front() {
                return Some(step);
            }
            if self.take_next() {
                continue;
            }
            if !mem::take(&mut self.unsettled) {
                self.validate();
                return None;
            }
            self.settle();
        }
    }

    /// The batch applied last could not be read, or not all of it.
    pub fn content_lost(&mut self) {
        self.degrade();
    }

    /// The batch applied last says that the engine's cache is empty: nothing that was lost before
    /// it matters any more.
    pub const fn content_cleared(&mut self) {
        self.damage = None;
    }

    /// When to hand in [`Input::Tick`] at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let expiry = match self.connection {
            Connection::Down { since, expired: false } => Some(since + self.config.worker_timeout),
            Connection::Down { expired: true, .. } | Connection::Up { .. } => None,
        };
        let drop_suspects_at = self.damage.and_then(|damage| damage.drop_suspects_at);
        [expiry, drop_suspects_at, self.prove_by, self.replays.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// From the next batch on, no more is held back than other sources leave room for, but for the newest
    /// batch.
    pub fn share(&mut self, held: &mut HeldShare) {
        self.config.buffer_bytes_max = held.note(self.buffer.bytes());
    }

    /// What is known of the source.
    #[must_use]
    pub fn status(&self) -> SequencerStatus {
        SequencerStatus {
            state: self.state(),
            connected: matches!(self.connection, Connection::Up { .. }),
            applied: self.cursor(),
            last_live: self.last_live.map(|position| position.sequence),
            buffered_batches: self.buffer.len(),
            buffered_bytes: self.buffer.bytes(),
            verified_at: self.verified_at,
        }
    }

    /// Sums of outcomes since the sequencer was made.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.counts
    }

    fn cursor(&self) -> Option<Cursor> {
        let Position { sequence, fingerprint } = self.life.position()?;
        Some(Cursor { incarnation: self.life.incarnation()?, sequence, fingerprint })
    }

    fn state(&self) -> SourceState {
        let recovering =
            self.replays.round().is_some() || matches!(self.replays.plan(), Plan::Recover(_));
        if self.damage.is_some() {
            SourceState::Degraded
        } else if self.caught_up && self.buffer.len() > 0 {
            SourceState::Gap
        } else if self.caught_up {
            SourceState::Exact
        } else if self.life.is_fresh() && !recovering {
            SourceState::Cold
        } else {
            SourceState::CatchingUp
        }
    }

    /// Applies the next batch if it is there.
    fn take_next(&mut self) -> bool {
        if self.life.is_doubtful() {
            return false;
        }
        self.skip_given_up();
        let Some(received) = self.buffer.take_front(self.next) else { return false };
        let Received { sequence, fingerprint, item, .. } = received;
        let incarnation = self.named_from(sequence, fingerprint);
        let fingerprint = Some(fingerprint);
        self.life = Life::Known(incarnation, Position { sequence, fingerprint });
        self.next = self.life.next();
        self.counts.applied += 1;
        if self.connection == (Connection::Up { live_seen: true }) && self.buffer.len() == 0 {
            self.verified_at = Some(self.now);
        }
        let cursor = Cursor { incarnation, sequence, fingerprint };
        self.steps.push_back(Step::Apply { cursor, item });
        true
    }

    /// What follows from the present state, once nothing more can be applied.
    fn settle(&mut self) {
        self.drop_suspects_when_due();
        let live_seen = match self.connection {
            Connection::Down { since, expired } => {
                self.expire_when_due(since, expired);
                return;
            }
            Connection::Up { live_seen } => live_seen,
        };
        self.trust_when_due();
        if self.buffer.len() > 0 && !self.life.is_doubtful() {
            self.replays.recover(self.now, &self.config);
        }
        if live_seen && self.buffer.len() == 0 && !self.life.is_doubtful() {
            self.caught_up = true;
        }
        let cursor = self.life.position().map(|position| position.sequence);
        if let Some(round) = self.replays.start_due(self.now, cursor) {
            let from = cursor.unwrap_or(0);
            self.steps.push_back(Step::StartReplay { round, from });
        }
    }

    fn drop_suspects_when_due(&mut self) {
        let Some(damage) = &mut self.damage else { return };
        if damage.drop_suspects_at.take_if(|at| *at <= self.now).is_some() {
            self.steps.push_back(Step::DropSuspects);
        }
    }

    fn trust_when_due(&mut self) {
        let due = self.prove_by.take_if(|at| *at <= self.now).is_some();
        if due && self.life.is_doubtful() {
            self.accept_unproved();
        }
    }

    fn expire_when_due(&mut self, since: Duration, expired: bool) {
        if expired || self.now < since + self.config.worker_timeout {
            return;
        }
        self.connection = Connection::Down { since, expired: true };
        self.life = Life::Fresh(None);
        self.next = 0;
        self.given_up_below = 0;
        self.last_live = None;
        self.damage = None;
        self.verified_at = None;
        self.steps.push_back(Step::Expired);
    }

    /// Counts what is missing before the first batch at hand as lost, if it was given up.
    fn skip_given_up(&mut self) {
        let Some(front) = self.buffer.front() else { return };
        let (sequence, fingerprint) = (front.sequence, front.fingerprint);
        let given_up = !self.config.replay || sequence <= self.given_up_below;
        let missing = sequence.saturating_sub(self.next);
        if missing == 0 || !given_up {
            return;
        }
        if self.life.is_fresh() {
            self.life = Life::Fresh(Some(self.named_from(sequence, fingerprint)));
        }
        self.counts.lost = self.counts.lost.saturating_add(missing);
        self.next = sequence;
        self.degrade();
    }

    /// What the source holds can no longer be relied on.
    pub(super) fn degrade(&mut self) {
        let earlier = self.damage.and_then(|damage| damage.drop_suspects_at);
        let drop_suspects_at = match self.config.loss_policy {
            LossPolicy::Keep => {
                self.steps.push_back(Step::MarkSuspect);
                // A later loss does not prolong an earlier one's doubt.
                Some(earlier.unwrap_or(self.now + self.config.degraded_ttl))
            }
            LossPolicy::Clear => {
                self.steps.push_back(Step::ClearLost);
                None
            }
        };
        self.damage = Some(Damage { drop_suspects_at });
    }

    /// Id of the life, which in a fresh one is the first batch's to give unless it was stated.
    fn named_from(&mut self, sequence: u64, fingerprint: Fingerprint) -> Incarnation {
        match self.life {
            Life::Known(incarnation, _) | Life::Doubtful(incarnation, _) => incarnation,
            Life::Fresh(Some(stated)) if incarnation::is_stated(stated) => stated,
            Life::Fresh(_) => self.name_life(incarnation::of_first_batch(sequence, fingerprint)),
        }
    }

    /// Says that a life begins, once.
    pub(super) fn name_life(&mut self, incarnation: Incarnation) -> Incarnation {
        if self.life.incarnation() != Some(incarnation) {
            self.steps.push_back(Step::NewLife { incarnation });
        }
        incarnation
    }

    /// The engine restarted: nothing of its earlier life counts. Unless the new one was stated, its first
    /// batch names it.
    pub(super) fn end_life(&mut self, stated: Option<Incarnation>) {
        if let Some(round) = self.replays.abandon() {
            self.replays.outlived(&self.config);
            self.steps.push_back(Step::CancelReplay { round: round.number });
        }
        self.counts.stale += self.buffer.clear();
        self.ended = None;
        self.prove_by = None;
        self.steps.push_back(match stated {
            Some(incarnation) => Step::NewLife { incarnation },
            None => Step::Restarted,
        });
        self.life = Life::Fresh(stated);
        self.next = 0;
        self.given_up_below = 0;
        self.last_live = None;
        if let Connection::Up { live_seen } = &mut self.connection {
            *live_seen = false;
        }
        self.caught_up = false;
        self.verified_at = None;
        self.damage = None;
        if self.config.replay {
            self.replays.recover(self.now, &self.config);
        }
    }
}
