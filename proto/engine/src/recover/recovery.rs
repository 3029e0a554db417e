use super::{
    asks::{Asks, Kind},
    config::{Recourse, RecoveryConfig},
    lives::{Base, Life, Past, Trust},
    step::{Ask, Input, Numbered, Step},
};
use crate::order::{Buffer, HeldShare, Item, OutcomeCounts};
use kvasir_proto::types::{Cursor, Incarnation, LossPolicy, SourceState};
use std::{collections::VecDeque, mem, time::Duration};

/// What a checkpoint knows of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resume {
    /// How far it was applied; none if nothing is in the index.
    pub cursor: Option<Cursor>,
    /// Whether batches had been lost for good.
    pub degraded: bool,
    /// Lives that were over, the latest last; at most [`PAST_LIVES_MAX`](super::PAST_LIVES_MAX)
    /// are kept.
    pub past: Vec<Incarnation>,
}

/// What is known of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecoveryStatus {
    /// How far the source's entry can be trusted.
    pub state: SourceState,
    /// Whether the live stream is connected.
    pub connected: bool,
    /// How far it was applied.
    pub applied: Option<Cursor>,
    /// Highest number known to exist in this life.
    pub head: Option<u64>,
    /// Batches held back.
    pub buffered_batches: usize,
    /// Bytes held back.
    pub buffered_bytes: usize,
    /// When the newest batch was last known to be applied, on the driver's clock.
    pub verified_at: Option<Duration>,
}

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Range { from: u64 },
    Dump,
}

/// How the live stream stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Down,
    /// What comes is not the newest.
    Behind,
    Live,
}

/// Batches were lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Damage {
    /// When what is doubtful is dropped.
    pub(super) drop_suspects_at: Option<Duration>,
}

/// Orders the batches of one source and has what is missing fetched. See the [module](super).
///
/// Feed it with [`handle`](Self::handle), then take all steps with [`next_step`](Self::next_step)
/// before the next input.
#[derive(Debug, Clone)]
pub struct Recovery<I, C> {
    pub(super) config: RecoveryConfig,
    pub(super) now: Duration,
    pub(super) stream: Stream,
    /// When the source was heard last.
    pub(super) heard_at: Duration,
    /// When a batch was applied last, or the first one announced that is not.
    pub(super) progress_at: Duration,
    pub(super) life: Option<Life>,
    pub(super) past: Past,
    pub(super) buffer: Buffer<Numbered<I>>,
    pub(super) asks: Asks,
    pub(super) damage: Option<Damage>,
    pub(super) verified_at: Option<Duration>,
    pub(super) received: u64,
    pub(super) refused: u64,
    pub(super) counts: OutcomeCounts,
    pub(super) steps: VecDeque<Step<I, C>>,
    /// Whether an input is not yet worked out to its end.
    pub(super) unsettled: bool,
}

impl<I: Item, C> Recovery<I, C> {
    /// A source that is not connected yet, at the time `now` of a monotonic clock. A degraded one
    /// has a step to be taken.
    #[must_use]
    pub fn new(config: RecoveryConfig, resume: Option<&Resume>, now: Duration) -> Self {
        let attempts_max = config.attempts_max.max(1);
        let mut recovery = Self {
            config: RecoveryConfig { attempts_max, ..config },
            now,
            stream: Stream::Down,
            heard_at: now,
            progress_at: now,
            life: None,
            past: Past::default(),
            buffer: Buffer::new(),
            asks: Asks::new(config.jitter_seed),
            damage: None,
            verified_at: None,
            received: 0,
            refused: 0,
            counts: OutcomeCounts::default(),
            steps: VecDeque::new(),
            unsettled: false,
        };
        if let Some(resume) = resume {
            let present = resume.cursor.map(|cursor| cursor.incarnation);
            recovery.past = Past::of(&resume.past);
            present.into_iter().for_each(|present| recovery.past.remove(present));
            recovery.life = resume.cursor.map(|cursor| {
                let life = Life::new(cursor.incarnation, Base::At(cursor.sequence));
                Life { head: Some(cursor.sequence), ..life }
            });
            if resume.degraded && recovery.life.is_some() {
                recovery.degrade();
            }
        }
        recovery
    }

    /// Takes one input at the time `now`. A `now` earlier than the last one counts as that.
    pub fn handle(&mut self, input: Input<I, C>, now: Duration) {
        debug_assert!(self.steps.is_empty() && !self.unsettled, "steps are left");
        self.now = self.now.max(now);
        self.unsettled = true;
        match input {
            Input::Connected { incarnation, first, head, in_order } => {
                self.on_connected((incarnation, in_order), first, head);
            }
            Input::Disconnected => self.on_disconnected(),
            Input::Behind => self.stream = Stream::Behind,
            Input::CaughtUp => self.on_caught_up(),
            Input::Announced { incarnation, head } => self.on_announced(incarnation, head),
            Input::Live { incarnation, batch } => self.on_live(incarnation, batch),
            Input::RangeBatch { round, batch } => self.on_range_batch(round, batch),
            Input::RangeEnd { round, head } => self.on_range_end(round, head),
            Input::RangeGone { round } => self.on_range_gone(round),
            Input::OtherLife { round, present } => self.on_other_life(round, present),
            Input::DumpChunk { round, chunk } => self.on_dump_chunk(round, chunk),
            Input::DumpEnd { round, incarnation, watermark } => {
                self.on_dump_end(round, incarnation, watermark);
            }
            Input::RoundFailed { round } => self.on_round_failed(round),
            Input::Lacking => {
                if let Some(life) = &mut self.life {
                    life.lacks_blocks = self.config.recourse == Recourse::Ask;
                }
            }
            Input::Tick => {}
        }
    }

    /// The next thing to do; none once the last input is worked out to its end.
    pub fn next_step(&mut self) -> Option<Step<I, C>> {
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

    /// Whether the source is heard if it says that it lives this life: not if that is one of the
    /// last that are over, as long as there is another.
    #[must_use]
    pub fn admits(&self, incarnation: Incarnation) -> bool {
        self.life.is_none() || self.is_present(incarnation) || !self.past.contains(incarnation)
    }

    /// Whether this is the life that the source lives as far as is known.
    #[must_use]
    pub fn is_present(&self, incarnation: Incarnation) -> bool {
        self.life.is_some_and(|life| life.incarnation == incarnation)
    }

    /// Lives that are over, the latest last, at most [`PAST_LIVES_MAX`](super::PAST_LIVES_MAX).
    pub fn past(&self) -> impl Iterator<Item = Incarnation> + use<'_, I, C> {
        self.past.iter()
    }

    /// Number of the batch that is wanted next; none where any will do, or only a dump.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.life.and_then(|life| life.expected())
    }

    /// Whether a batch of that number is in already, was given up, or belongs before the first.
    #[must_use]
    pub fn covers(&self, sequence: u64) -> bool {
        self.life.is_some_and(|life| life.covers(sequence))
    }

    /// When to hand in [`Input::Tick`] at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let expiry = self.can_expire().then(|| self.heard_at + self.config.worker_timeout);
        let drops = self.damage.and_then(|damage| damage.drop_suspects_at);
        let drops = drops.filter(|_| !self.asks.is_dumping());
        let grace = self.grace_ends().filter(|at| *at > self.now);
        [expiry, drops, grace, self.asks.deadline()].into_iter().flatten().min()
    }

    /// From the next batch on, no more is held back than other sources leave room for, but for the newest
    /// batch.
    pub fn share(&mut self, held: &mut HeldShare) {
        self.config.buffer_bytes_max = held.note(self.buffer.bytes());
    }

    /// What is known of the source.
    #[must_use]
    pub fn status(&self) -> RecoveryStatus {
        RecoveryStatus {
            state: self.state(),
            connected: self.stream != Stream::Down,
            applied: self.life.and_then(|life| life.cursor()),
            head: self.life.and_then(|life| life.head),
            buffered_batches: self.buffer.len(),
            buffered_bytes: self.buffer.bytes(),
            verified_at: self.verified_at,
        }
    }

    /// Sums of outcomes since this was made.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.counts
    }

    fn state(&self) -> SourceState {
        let Some(life) = self.life else { return SourceState::Cold };
        if self.damage.is_some() {
            SourceState::Degraded
        } else if life.base == Base::Open && self.config.recourse != Recourse::Ask {
            SourceState::Cold
        } else if self.stream != Stream::Live || life.needs_dump {
            SourceState::CatchingUp
        } else if self.has_gap() {
            SourceState::Gap
        } else if life.target.is_none_or(|target| life.covers(target)) {
            SourceState::Exact
        } else {
            SourceState::CatchingUp
        }
    }

    /// Whether batches are known to be missing.
    fn has_gap(&self) -> bool {
        let Some(life) = self.life else { return false };
        let refused = life.refused.is_some_and(|sequence| !life.covers(sequence));
        let late = self.grace_ends().is_some_and(|at| at <= self.now);
        refused || late || self.buffer.len() > 0
    }

    /// When announced batches that have not come count as missing.
    fn grace_ends(&self) -> Option<Duration> {
        let life = self.life?;
        let waits = self.config.recourse != Recourse::Rewind && self.stream != Stream::Behind;
        let waits = waits && life.is_behind() && self.buffer.len() == 0;
        waits.then(|| self.progress_at + self.config.announce_grace)
    }

    /// Whether silence ends in the loss of what the source stored.
    fn can_expire(&self) -> bool {
        let expires = match self.stream {
            Stream::Down => true,
            Stream::Behind => false,
            Stream::Live => self.config.expires_silent,
        };
        self.life.is_some() && expires
    }

    fn need(&self) -> Option<Need> {
        let life = self.life.filter(|_| self.config.recourse == Recourse::Ask)?;
        if life.needs_dump {
            Some(Need::Dump)
        } else if self.has_gap() || life.trust == Trust::Doubted {
            // From 0 means from the first batch of the life.
            Some(Need::Range { from: life.expected().unwrap_or(0) })
        } else {
            (self.damage.is_some() || life.lacks_blocks).then_some(Need::Dump)
        }
    }

    /// Applies the next batch if it is there.
    fn take_next(&mut self) -> bool {
        let Some(life) = &mut self.life else { return false };
        if life.needs_dump {
            return false;
        }
        let is_open = life.base == Base::Open;
        let next = match life.base {
            Base::Open if self.config.recourse == Recourse::Ask => None,
            Base::Open => self.buffer.front().map(|batch| batch.sequence),
            Base::Before(_) | Base::At(_) => life.expected(),
        };
        let Some(Numbered { sequence, item }) = next.and_then(|at| self.buffer.take_front(at))
        else {
            return false;
        };
        life.base = Base::At(sequence);
        life.note_head(sequence);
        let incarnation = life.incarnation;
        let is_newest = !life.is_behind() && self.buffer.len() == 0;
        if is_open && self.config.recourse == Recourse::Nothing && sequence > 0 {
            // Whether anything came before it cannot be known.
            self.degrade();
        }
        self.counts.applied += 1;
        self.progress_at = self.now;
        if self.stream == Stream::Live && is_newest {
            self.verified_at = Some(self.now);
        }
        let cursor = Cursor { incarnation, sequence, fingerprint: None };
        self.steps.push_back(Step::Apply { cursor, item });
        true
    }

    /// What follows from the present state, once nothing more can be applied.
    fn settle(&mut self) {
        self.drop_suspects_when_due();
        self.expire_when_due();
        if self.config.recourse == Recourse::Nothing && self.has_gap() && self.give_up() {
            self.unsettled = true;
            return;
        }
        let Some(need) = self.need() else {
            self.asks.rest();
            return;
        };
        self.asks.plan(self.now, &self.config);
        if !self.asks.is_due(self.now) {
            return;
        }
        let Some(Life { incarnation, .. }) = self.life else { return };
        let (kind, ask) = match need {
            Need::Range { from } => {
                (Kind::Range { brought: false }, Ask::Range { incarnation, from })
            }
            Need::Dump => (Kind::Dump { begun: false }, Ask::Dump { incarnation }),
        };
        let round = self.asks.start(kind);
        self.steps.push_back(Step::Ask { round, ask });
    }

    fn drop_suspects_when_due(&mut self) {
        if self.asks.is_dumping() {
            return;
        }
        let Some(damage) = &mut self.damage else { return };
        if damage.drop_suspects_at.take_if(|at| *at <= self.now).is_some() {
            self.steps.push_back(Step::DropSuspects);
        }
    }

    fn expire_when_due(&mut self) {
        if !self.can_expire() || self.now < self.heard_at + self.config.worker_timeout {
            return;
        }
        self.end_life();
        if let Some(life) = self.life.take() {
            self.past.add(life.incarnation);
        }
        self.stream = Stream::Down;
        self.steps.push_back(Step::Expired);
    }

    /// Goes on without what is missing; whether anything is.
    pub(super) fn give_up(&mut self) -> bool {
        let late = self.grace_ends().is_some_and(|at| at <= self.now);
        let front = self.buffer.front().map(|batch| batch.sequence);
        let proved = |life: &&mut Life| life.trust != Trust::Returned;
        let Some(life) = self.life.as_mut().filter(proved) else { return false };
        let announced = life.head.filter(|_| late).map(|head| head.saturating_add(1));
        let mut given_up = mem::take(&mut life.needs_dump);
        if let (Some(expected), Some(next)) = (life.expected(), front.or(announced))
            && let Some(last) = next.checked_sub(1).filter(|last| *last >= expected)
        {
            self.counts.lost = self.counts.lost.saturating_add(next - expected);
            life.base = Base::At(last);
            given_up = true;
        }
        if let (Base::Open, Some(first)) = (life.base, front) {
            life.base = Base::Before(first);
            given_up = true;
        }
        life.holes = 0;
        if given_up {
            self.progress_at = self.now;
            self.degrade();
        }
        given_up
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

    /// Nothing of the present life counts any more.
    pub(super) fn end_life(&mut self) {
        if let Some(round) = self.asks.abandon() {
            self.steps.push_back(Step::Cancel { round: round.number });
        }
        self.counts.stale += self.buffer.clear();
        self.damage = None;
        self.verified_at = None;
    }
}
