use super::config::{Recourse, RecoveryConfig};
use super::progress::{Base, Past, Progress, Trust};
use super::step::{Admission, Ask, Input, Numbered, Step};
use crate::order::{
    self, BackOff, Bounds, Core, HeldShare, Item, Machine, OutcomeCounts, Pacing, Rounds,
};
use kvasir_proto::types::{Cursor, Incarnation, SourceState, SourceStatus};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

/// What to request from the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Range { from: u64 },
    Dump,
}

/// State of the live stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Down,
    /// The received batches are not the newest.
    Behind,
    Live,
}

/// Request and progress of the current round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// A range. `brought`: whether it has sent a new batch.
    Range { brought: bool },
    /// A dump. `begun`: whether part of it is in the index.
    Dump { begun: bool },
}

/// Orders the batches of one source and requests missing ones. See the [module](super).
///
/// Feed it with [`handle`](Self::handle), then take all steps with [`next_step`](Self::next_step)
/// before the next input.
#[derive(Debug, Clone)]
pub struct Recovery<I, C> {
    pub(super) config: RecoveryConfig,
    pub(super) core: Core<Numbered<I>, Step<I, C>>,
    pub(super) stream: Stream,
    /// When the source's last message arrived.
    pub(super) seen_at: Duration,
    /// When a batch was last applied, or when the first unapplied one was announced.
    pub(super) progress_at: Duration,
    pub(super) progress: Option<Progress>,
    pub(super) past: Past,
    pub(super) asks: Rounds<Round>,
    /// Numbers of the batches that were buffered when the last round began.
    pub(super) asked_with: Vec<u64>,
    /// Number of batches that the publisher must send again.
    pub(super) refused: u64,
}

impl<I: Item, C> Recovery<I, C> {
    /// Creates the state of a source that is not connected yet, at time `now` of a monotonic clock. If
    /// `resume` has no cursor, the index has no blocks of the source. The latest
    /// [`PAST_INCARNATIONS_RESUMED_MAX`](super::PAST_INCARNATIONS_RESUMED_MAX) past incarnations are
    /// restored. A degraded source has a first step to execute.
    #[must_use]
    pub fn new(config: RecoveryConfig, resume: Option<&SourceStatus>, now: Duration) -> Self {
        let bounds = Bounds {
            loss_policy: config.loss_policy,
            degraded_ttl: config.degraded_ttl,
            batches_max: config.buffer_batches_max,
            bytes_max: config.buffer_bytes_max,
        };
        let pacing = Pacing {
            spread: config.ask_spread,
            back_off: BackOff { min: config.retry_min, max: config.retry_max },
            attempts_max: config.attempts_max,
            jitter_seed: config.jitter_seed,
        };
        let mut recovery = Self {
            config,
            core: Core::new(bounds, now),
            stream: Stream::Down,
            seen_at: now,
            progress_at: now,
            progress: None,
            past: Past::default(),
            asks: Rounds::new(pacing),
            asked_with: Vec::new(),
            refused: 0,
        };
        if let Some(resume) = resume {
            let present = resume.applied.map(|cursor| cursor.incarnation);
            recovery.past = Past::from_checkpoint(&resume.past, now);
            present.into_iter().for_each(|present| recovery.past.remove(present));
            recovery.progress = resume.applied.map(|cursor| {
                let progress = Progress::new(cursor.incarnation, Base::At(cursor.sequence));
                Progress { head: Some(cursor.sequence), ..progress }
            });
            if resume.state == SourceState::Degraded && recovery.progress.is_some() {
                recovery.core.degrade();
            }
        }
        recovery
    }

    /// Processes one input at time `now`. Time never runs backwards: an earlier `now` counts as the latest
    /// one.
    pub fn handle(&mut self, input: Input<I, C>, now: Duration) {
        self.core.begin_input(now);
        match input {
            Input::Connected { incarnation, first, head, in_order } => {
                self.on_connected(incarnation, in_order, first, head);
            }
            Input::Disconnected => self.on_disconnected(),
            Input::Behind => self.stream = Stream::Behind,
            Input::CaughtUp => self.on_caught_up(),
            Input::Announced { incarnation, head } => self.on_announced(incarnation, head),
            Input::Live { incarnation, batch } => self.on_live(incarnation, batch),
            Input::RangeBatch { round, batch } => self.on_range_batch(round, batch),
            Input::RangeEnd { round, head } => self.on_range_end(round, head),
            Input::RangeGone { round } => self.on_range_gone(round),
            Input::OtherIncarnation { round, present } => self.on_other_incarnation(round, present),
            Input::DumpChunk { round, chunk } => self.on_dump_chunk(round, chunk),
            Input::DumpEnd { round, incarnation, watermark } => {
                self.on_dump_end(round, incarnation, watermark);
            }
            Input::RoundFailed { round } => self.on_round_failed(round),
            Input::LacksBlocks => {
                if let Some(progress) = &mut self.progress {
                    progress.lacks_blocks = self.config.recourse == Recourse::Ask;
                }
            }
            Input::Tick => {}
        }
    }

    /// The next step to execute; `None` after all consequences of the last input.
    pub fn next_step(&mut self) -> Option<Step<I, C>> {
        order::next_step(self)
    }

    /// Whether messages of this incarnation are accepted at time `now`. They are refused if it is one of the
    /// remembered past incarnations, or if too many incarnations ended recently. Without a current
    /// incarnation, all are accepted. Over a log that preserves the order of incarnations (`in_order`), any
    /// number of incarnations may begin.
    #[must_use]
    pub fn admission(&self, incarnation: Incarnation, in_order: bool, now: Duration) -> Admission {
        if self.progress.is_none() || self.is_present(incarnation) {
            Admission::Admitted
        } else if self.past.contains(incarnation) {
            Admission::Past
        } else if in_order || self.past.has_room(now.max(self.core.now)) {
            Admission::Admitted
        } else {
            Admission::TooMany
        }
    }

    /// Whether this is the current incarnation.
    #[must_use]
    pub fn is_present(&self, incarnation: Incarnation) -> bool {
        self.progress.is_some_and(|progress| progress.incarnation == incarnation)
    }

    /// Number of the next batch; `None` if any number is accepted, or only a dump.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.progress.and_then(|progress| progress.expected())
    }

    /// Whether this number is already applied, lost, or before the stated first one.
    #[must_use]
    pub fn covers(&self, sequence: u64) -> bool {
        self.progress.is_some_and(|progress| progress.covers(sequence))
    }

    /// When the next [`Input::Tick`] is due at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let expiry = self.can_expire().then(|| self.seen_at + self.config.worker_timeout);
        let drops = self.core.suspects_deadline().filter(|_| !self.is_dumping());
        let grace = self.grace_ends().filter(|at| *at > self.core.now);
        [expiry, drops, grace, self.asks.deadline()].into_iter().flatten().min()
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
            connected: self.stream != Stream::Down,
            applied: self.progress.and_then(|progress| progress.cursor()),
            head: self.progress.and_then(|progress| progress.head),
            buffered_batches: self.core.buffer.len() as u64,
            verified_at: self.core.verified_at,
            past: self.past.list(),
            learned: Arc::default(),
            reasons: Arc::default(),
        }
    }

    /// Number of batches by outcome since creation.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.core.counts
    }

    /// State of the source: cold without an applied or stated position, degraded after a permanent loss, else
    /// catching up, gap or exact.
    fn state(&self) -> SourceState {
        let Some(progress) = self.progress else { return SourceState::Cold };
        if self.core.is_degraded() {
            SourceState::Degraded
        } else if progress.base == Base::Open && self.config.recourse != Recourse::Ask {
            SourceState::Cold
        } else if self.stream != Stream::Live || progress.needs_dump {
            SourceState::CatchingUp
        } else if self.has_gap() {
            SourceState::Gap
        } else if progress.target.is_none_or(|target| progress.is_beyond(target)) {
            SourceState::Exact
        } else {
            SourceState::CatchingUp
        }
    }

    /// Whether batches are known to be missing.
    fn has_gap(&self) -> bool {
        let Some(progress) = self.progress else { return false };
        let refused = progress.refused.is_some_and(|sequence| !progress.is_beyond(sequence));
        let late = self.grace_ends().is_some_and(|at| at <= self.core.now);
        refused || late || self.core.buffer.len() > 0
    }

    /// When announced batches that have not arrived count as missing.
    fn grace_ends(&self) -> Option<Duration> {
        let progress = self.progress?;
        let waits = self.config.recourse != Recourse::Rewind && self.stream != Stream::Behind;
        let waits = waits && progress.is_behind() && self.core.buffer.len() == 0;
        waits.then(|| self.progress_at + self.config.announce_grace)
    }

    /// Whether the source's blocks are dropped after a period of silence.
    fn can_expire(&self) -> bool {
        let expires = match self.stream {
            Stream::Down => true,
            Stream::Behind => false,
            Stream::Live => self.config.expires_silent,
        };
        self.progress.is_some() && expires
    }

    /// The data to request from the agent. A dump, if it must come before any batch. Else a range, if batches are
    /// missing. Else a dump, if the index lacks blocks. `None` if the index has all data, or if the source cannot be
    /// queried.
    fn missing_data(&self) -> Option<Need> {
        let progress = self.progress.filter(|_| self.config.recourse == Recourse::Ask)?;
        if progress.needs_dump {
            Some(Need::Dump)
        } else if self.has_gap() || progress.trust == Trust::Doubted {
            // 0 means from the first batch of the incarnation.
            Some(Need::Range { from: progress.expected().unwrap_or(0) })
        } else {
            (self.core.is_degraded() || progress.lacks_blocks).then_some(Need::Dump)
        }
    }

    /// Whether a dump is being read into the index.
    pub(super) fn is_dumping(&self) -> bool {
        self.asks.under_way() == Some(&Round::Dump { begun: true })
    }

    /// Drops the source's blocks after `worker_timeout` of silence.
    fn expire_when_due(&mut self) {
        if !self.can_expire() || self.core.now < self.seen_at + self.config.worker_timeout {
            return;
        }
        self.end_incarnation();
        if let Some(progress) = self.progress.take() {
            self.past.add(progress.incarnation, self.core.now);
        }
        self.stream = Stream::Down;
        self.core.push(Step::Expired);
    }

    /// Counts missing batches as lost. Returns `false` if none is missing.
    pub(super) fn give_up(&mut self) -> bool {
        let late = self.grace_ends().is_some_and(|at| at <= self.core.now);
        let front = self.core.buffer.front().map(|batch| batch.sequence);
        // Without an answer of the source, a past incarnation never resumes.
        let proved = |progress: &&mut Progress| progress.trust != Trust::Returned;
        let Some(progress) = self.progress.as_mut().filter(proved) else { return false };
        let announced = progress.head.filter(|_| late).map(|head| head.saturating_add(1));
        let mut given_up = mem::take(&mut progress.needs_dump);
        // Everything before the first buffered batch is lost. Without buffered batches, all overdue announced ones are.
        if let (Some(expected), Some(next)) = (progress.expected(), front.or(announced))
            && let Some(last) = next.checked_sub(1).filter(|last| *last >= expected)
        {
            self.core.lose(next - expected);
            progress.base = Base::At(last);
            given_up = true;
        }
        // No answer stated the incarnation's first number: begin with the first batch received.
        if let (Base::Open, Some(first)) = (progress.base, front) {
            progress.base = Base::Before(first);
            given_up = true;
        }
        progress.holes = 0;
        if given_up {
            self.progress_at = self.core.now;
            self.core.degrade();
        }
        given_up
    }

    /// Ends the current incarnation and drops its state.
    pub(super) fn end_incarnation(&mut self) {
        self.asks.cancel_planned();
        if let Some(round) = self.asks.abandon() {
            self.core.push(Step::Cancel { round });
        }
        self.core.drop_held();
        self.core.reset();
    }
}

impl<I: Item, C> Machine for Recovery<I, C> {
    type Batch = Numbered<I>;
    type Step = Step<I, C>;

    fn core(&mut self) -> &mut Core<Numbered<I>, Step<I, C>> {
        &mut self.core
    }

    fn apply_next(&mut self) -> bool {
        let Some(progress) = &mut self.progress else { return false };
        // The dump includes some of the buffered batches. Its watermark will show which.
        if progress.needs_dump {
            return false;
        }
        let is_open = progress.base == Base::Open;
        let next = match progress.base {
            // An answer will state where the incarnation begins.
            Base::Open if self.config.recourse == Recourse::Ask => None,
            Base::Open => self.core.buffer.front().map(|batch| batch.sequence),
            Base::Before(_) | Base::At(_) => progress.expected(),
        };
        let Some(Numbered { sequence, item }) = next.and_then(|at| self.core.buffer.take_front(at))
        else {
            return false;
        };
        debug_assert!(!progress.is_beyond(sequence), "each batch is applied once");
        if is_open {
            progress.began_at = Some(sequence);
        }
        progress.base = Base::At(sequence);
        progress.note_head(sequence);
        let incarnation = progress.incarnation;
        let is_newest = !progress.is_behind() && self.core.buffer.len() == 0;
        if is_open && self.config.recourse == Recourse::Nothing && sequence > 0 {
            // It is unknown whether batches preceded this one.
            self.core.degrade();
        }
        self.core.counts.applied += 1;
        self.progress_at = self.core.now;
        if self.stream == Stream::Live && is_newest {
            self.core.verified_at = Some(self.core.now);
        }
        let cursor = Cursor { incarnation, sequence, fingerprint: None };
        self.core.push(Step::Apply { cursor, item });
        true
    }

    fn derive_steps(&mut self) {
        // A dump that is being read may still confirm suspect blocks.
        if !self.is_dumping() {
            self.core.drop_suspects_when_due();
        }
        self.expire_when_due();
        if self.config.recourse == Recourse::Nothing && self.has_gap() && self.give_up() {
            self.core.derive_steps_again();
            return;
        }
        let Some(need) = self.missing_data() else {
            self.asks.cancel_planned();
            return;
        };
        self.asks.plan_round(self.core.now);
        if !self.asks.is_due(self.core.now) {
            return;
        }
        let Some(Progress { incarnation, .. }) = self.progress else { return };
        let (round, ask) = match need {
            Need::Range { from } => {
                (Round::Range { brought: false }, Ask::Range { incarnation, from })
            }
            Need::Dump => (Round::Dump { begun: false }, Ask::Dump { incarnation }),
        };
        // If the answer is empty, these batches cannot be of this incarnation: see `drop_refuted`.
        self.asked_with = match need {
            Need::Range { .. } => self.core.buffer.numbers().collect(),
            Need::Dump => Vec::new(),
        };
        let round = self.asks.start(round);
        self.core.push(Step::Ask { round, ask });
    }

    fn validate(&self) {
        if cfg!(debug_assertions) {
            order::assert_facts(self.facts());
        }
    }
}
