use super::{
    config::{Recourse, RecoveryConfig},
    progress::{Base, Past, Progress, Trust},
    step::{Admission, Ask, Input, Numbered, Step},
};
use crate::order::{
    self, BackOff, Bounds, Core, HeldShare, Item, Machine, OutcomeCounts, Pacing, Rounds,
};
use kvasir_proto::types::{Cursor, Incarnation, SourceState, SourceStatus};
use std::{mem, sync::Arc, time::Duration};

/// What is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Range { from: u64 },
    Dump,
}

/// State of the live stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stream {
    Down,
    /// What comes is not the newest.
    Behind,
    Live,
}

/// What a round under way asks for, and how far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// A range: whether a batch of it was news.
    Range { brought: bool },
    /// A dump: whether a part of it is in the index.
    Dump { begun: bool },
}

/// Orders the batches of one source and has what is missing fetched. See the [module](super).
///
/// Feed it with [`handle`](Self::handle), then take all steps with [`next_step`](Self::next_step)
/// before the next input.
#[derive(Debug, Clone)]
pub struct Recovery<I, C> {
    pub(super) config: RecoveryConfig,
    pub(super) core: Core<Numbered<I>, Step<I, C>>,
    pub(super) stream: Stream,
    /// When the last message of the source came.
    pub(super) seen_at: Duration,
    /// When a batch was applied last, or the first one announced that is not.
    pub(super) progress_at: Duration,
    pub(super) progress: Option<Progress>,
    pub(super) past: Past,
    pub(super) asks: Rounds<Round>,
    /// Numbers of the batches that were held back when the last round began.
    pub(super) asked_with: Vec<u64>,
    /// Batches that the publisher is to send again.
    pub(super) refused: u64,
}

impl<I: Item, C> Recovery<I, C> {
    /// A source that is not connected yet, at the time `now` of a monotonic clock. Where `resume` has no cursor, nothing
    /// of the source is in the index; of its past incarnations, the latest
    /// [`PAST_INCARNATIONS_RESUMED_MAX`](super::PAST_INCARNATIONS_RESUMED_MAX) are retained. A degraded source has a step to be taken.
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
            recovery.past = Past::of(&resume.past, now);
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

    /// Takes one input at the time `now`. A `now` earlier than the last one counts as that.
    pub fn handle(&mut self, input: Input<I, C>, now: Duration) {
        self.core.begin(now);
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

    /// The next thing to do; none once the last input is worked out to its end.
    pub fn next_step(&mut self) -> Option<Step<I, C>> {
        order::next_step(self)
    }

    /// Whether messages of this incarnation are accepted at the time `now`: not if it ended lately, or too many
    /// did, unless there is no current one. Over a log that preserves the order of incarnations (`in_order`), any
    /// number of them may begin.
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

    /// Whether this is the current incarnation, as far as is known.
    #[must_use]
    pub fn is_present(&self, incarnation: Incarnation) -> bool {
        self.progress.is_some_and(|progress| progress.incarnation == incarnation)
    }

    /// Number of the batch that is to come next; none if any will do, or only a dump.
    #[must_use]
    pub fn expected(&self) -> Option<u64> {
        self.progress.and_then(|progress| progress.expected())
    }

    /// Whether a batch of that number is in already, was given up, or belongs before the stated first one.
    #[must_use]
    pub fn covers(&self, sequence: u64) -> bool {
        self.progress.is_some_and(|progress| progress.covers(sequence))
    }

    /// The latest time for the next [`Input::Tick`].
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let expiry = self.can_expire().then(|| self.seen_at + self.config.worker_timeout);
        let drops = self.core.suspects_deadline().filter(|_| !self.is_dumping());
        let grace = self.grace_ends().filter(|at| *at > self.core.now);
        [expiry, drops, grace, self.asks.deadline()].into_iter().flatten().min()
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

    /// Sums of outcomes since this was made.
    #[must_use]
    pub const fn counts(&self) -> OutcomeCounts {
        self.core.counts
    }

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

    /// When announced batches that have not come count as missing.
    fn grace_ends(&self) -> Option<Duration> {
        let progress = self.progress?;
        let waits = self.config.recourse != Recourse::Rewind && self.stream != Stream::Behind;
        let waits = waits && progress.is_behind() && self.core.buffer.len() == 0;
        waits.then(|| self.progress_at + self.config.announce_grace)
    }

    /// Whether silence ends in the loss of what the source stored.
    fn can_expire(&self) -> bool {
        let expires = match self.stream {
            Stream::Down => true,
            Stream::Behind => false,
            Stream::Live => self.config.expires_silent,
        };
        self.progress.is_some() && expires
    }

    fn need(&self) -> Option<Need> {
        let progress = self.progress.filter(|_| self.config.recourse == Recourse::Ask)?;
        if progress.needs_dump {
            Some(Need::Dump)
        } else if self.has_gap() || progress.trust == Trust::Doubted {
            // From 0 means from the first batch of the incarnation.
            Some(Need::Range { from: progress.expected().unwrap_or(0) })
        } else {
            (self.core.is_degraded() || progress.lacks_blocks).then_some(Need::Dump)
        }
    }

    /// Whether a dump is being read into the index.
    pub(super) fn is_dumping(&self) -> bool {
        self.asks.under_way() == Some(&Round::Dump { begun: true })
    }

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

    /// Gives up what is missing; `false` if nothing is.
    pub(super) fn give_up(&mut self) -> bool {
        let late = self.grace_ends().is_some_and(|at| at <= self.core.now);
        let front = self.core.buffer.front().map(|batch| batch.sequence);
        let proved = |progress: &&mut Progress| progress.trust != Trust::Returned;
        let Some(progress) = self.progress.as_mut().filter(proved) else { return false };
        let announced = progress.head.filter(|_| late).map(|head| head.saturating_add(1));
        let mut given_up = mem::take(&mut progress.needs_dump);
        if let (Some(expected), Some(next)) = (progress.expected(), front.or(announced))
            && let Some(last) = next.checked_sub(1).filter(|last| *last >= expected)
        {
            self.core.lose(next - expected);
            progress.base = Base::At(last);
            given_up = true;
        }
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

    /// Ends the current incarnation: nothing of it counts any more.
    pub(super) fn end_incarnation(&mut self) {
        self.asks.rest();
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

    fn take_next(&mut self) -> bool {
        let Some(progress) = &mut self.progress else { return false };
        if progress.needs_dump {
            return false;
        }
        let is_open = progress.base == Base::Open;
        let next = match progress.base {
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
            // Whether anything came before it cannot be known.
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

    fn settle(&mut self) {
        if !self.is_dumping() {
            self.core.drop_suspects_when_due();
        }
        self.expire_when_due();
        if self.config.recourse == Recourse::Nothing && self.has_gap() && self.give_up() {
            self.core.settle_again();
            return;
        }
        let Some(need) = self.need() else {
            self.asks.rest();
            return;
        };
        self.asks.plan(self.core.now);
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
