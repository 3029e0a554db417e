use super::{Buffer, HeldShare, Numbered, OutcomeCounts};
use kvasir_proto::types::LossPolicy;
use std::{collections::VecDeque, mem, time::Duration};

/// What a loss does, and how many batches are held back.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) loss_policy: LossPolicy,
    /// How long suspects are retained under [`LossPolicy::Keep`].
    pub(crate) degraded_ttl: Duration,
    pub(crate) batches_max: usize,
    pub(crate) bytes_max: usize,
}

/// The steps that a loss leads to.
pub(crate) trait LossSteps {
    /// What the source holds becomes suspect.
    const MARK_SUSPECT: Self;
    /// What the source holds is dropped.
    const CLEAR_LOST: Self;
    /// What is still suspect is dropped.
    const DROP_SUSPECTS: Self;
}

/// Batches were lost for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Damage {
    /// When suspects are dropped.
    drop_suspects_at: Option<Duration>,
}

/// State of every [`Machine`]: batches `B` go in, steps `S` come out.
#[derive(Debug, Clone)]
pub(crate) struct Core<B, S> {
    bounds: Bounds,
    pub(crate) now: Duration,
    pub(crate) buffer: Buffer<B>,
    pub(crate) counts: OutcomeCounts,
    /// When the newest batch of the source was last known to be applied.
    pub(crate) verified_at: Option<Duration>,
    received: u64,
    damage: Option<Damage>,
    steps: VecDeque<S>,
    /// Whether the last input still has consequences to work out.
    unsettled: bool,
}

impl<B: Numbered, S: LossSteps> Core<B, S> {
    pub(crate) fn new(bounds: Bounds, now: Duration) -> Self {
        Self {
            bounds,
            now,
            buffer: Buffer::new(),
            counts: OutcomeCounts::default(),
            verified_at: None,
            received: 0,
            damage: None,
            steps: VecDeque::new(),
            unsettled: false,
        }
    }

    /// Begins an input at the time `now`. A `now` earlier than the last one counts as that.
    pub(crate) fn begin(&mut self, now: Duration) {
        debug_assert!(self.steps.is_empty() && !self.unsettled, "steps are left");
        self.now = self.now.max(now);
        self.unsettled = true;
    }

    /// Has [`Machine::settle`] called once more.
    pub(crate) const fn settle_again(&mut self) {
        self.unsettled = true;
    }

    pub(crate) fn push(&mut self, step: S) {
        self.steps.push_back(step);
    }

    /// Counts a batch that came in.
    pub(crate) const fn receive(&mut self) {
        self.received += 1;
    }

    /// Holds back a live batch; the lowest are shed if there are too many.
    pub(crate) fn hold(&mut self, batch: B) {
        self.buffer.insert(batch);
        let Bounds { batches_max, bytes_max, .. } = self.bounds;
        self.counts.duplicate += self.buffer.shed(batches_max, bytes_max);
    }

    /// Drops what is held back.
    pub(crate) fn drop_held(&mut self) {
        self.counts.stale += self.buffer.clear();
    }

    /// So many numbers were given up.
    pub(crate) const fn lose(&mut self, missing: u64) {
        debug_assert!(missing > 0, "a loss has a size");
        self.counts.lost = self.counts.lost.saturating_add(missing);
    }

    /// What the source holds can no longer be relied on.
    pub(crate) fn degrade(&mut self) {
        let earlier = self.damage.and_then(|damage| damage.drop_suspects_at);
        let drop_suspects_at = match self.bounds.loss_policy {
            LossPolicy::Keep => {
                self.push(S::MARK_SUSPECT);
                // A later loss does not extend the time that an earlier one left.
                Some(earlier.unwrap_or(self.now + self.bounds.degraded_ttl))
            }
            LossPolicy::Clear => {
                self.push(S::CLEAR_LOST);
                None
            }
        };
        self.damage = Some(Damage { drop_suspects_at });
    }

    pub(crate) const fn is_degraded(&self) -> bool {
        self.damage.is_some()
    }

    /// What was lost does not matter any more.
    pub(crate) const fn repair(&mut self) {
        self.damage = None;
    }

    /// Nothing is known of the source any more: what it holds is dropped.
    pub(crate) const fn reset(&mut self) {
        self.damage = None;
        self.verified_at = None;
    }

    pub(crate) fn suspects_deadline(&self) -> Option<Duration> {
        self.damage.and_then(|damage| damage.drop_suspects_at)
    }

    pub(crate) fn drop_suspects_when_due(&mut self) {
        let Some(damage) = &mut self.damage else { return };
        if damage.drop_suspects_at.take_if(|at| *at <= self.now).is_some() {
            self.push(S::DROP_SUSPECTS);
        }
    }

    /// From the next batch on, the source holds back no more than the others leave room for, except
    /// for its newest batch.
    pub(crate) fn share(&mut self, held: &mut HeldShare) {
        self.bounds.bytes_max = held.note(self.buffer.bytes());
    }

    /// Facts that hold between two inputs; `refused` batches are to be sent again.
    pub(crate) fn facts(&self, refused: u64) -> [(&'static str, bool); 4] {
        let held = u64::try_from(self.buffer.len()).unwrap_or(u64::MAX);
        let settled = self.counts.settled() + refused;
        let keeps = self.bounds.loss_policy == LossPolicy::Keep;
        [
            ("one outcome each, or buffered", self.received == settled + held),
            ("bytes add up", self.buffer.bytes() == self.buffer.bytes_recounted()),
            ("few are buffered", self.buffer.len() <= self.bounds.batches_max.max(1)),
            ("only retained blocks are suspect", keeps || self.suspects_deadline().is_none()),
        ]
    }
}

/// The rules of one way of ordering batches, around a [`Core`].
pub(crate) trait Machine {
    type Batch: Numbered;
    type Step: LossSteps;

    fn core(&mut self) -> &mut Core<Self::Batch, Self::Step>;

    /// Applies the next batch if it is at hand.
    fn take_next(&mut self) -> bool;

    /// Works out what follows from the present state, once nothing more can be applied.
    fn settle(&mut self);

    /// Checks what holds between two inputs. In debug builds.
    fn validate(&self);
}

/// The next step of a machine; none once the consequences of the last input are worked out.
pub(crate) fn next_step<M: Machine>(machine: &mut M) -> Option<M::Step> {
    loop {
        if let Some(step) = machine.core().steps.pop_front() {
            return Some(step);
        }
        if machine.take_next() {
            continue;
        }
        if !mem::take(&mut machine.core().unsettled) {
            machine.validate();
            return None;
        }
        machine.settle();
    }
}

/// Asserts facts, one a line. In debug builds.
pub(crate) fn assert_facts<'a>(facts: impl IntoIterator<Item = (&'a str, bool)>) {
    let broken = facts.into_iter().filter(|(_, holds)| !holds);
    let broken: Vec<_> = broken.map(|(fact, _)| fact).collect();
    debug_assert!(broken.is_empty(), "{broken:?}");
}
