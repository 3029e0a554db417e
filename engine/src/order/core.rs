use super::{Buffer, HeldShare, Numbered, OutcomeCounts};
use kvasir_proto::types::LossPolicy;
use std::collections::VecDeque;
use std::mem;
use std::time::Duration;

/// Reaction to losses, and limits of the buffer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) loss_policy: LossPolicy,
    /// How long suspect blocks are retained under [`LossPolicy::Keep`].
    pub(crate) degraded_ttl: Duration,
    pub(crate) batches_max: usize,
    pub(crate) bytes_max: usize,
}

/// Steps that follow a loss.
pub(crate) trait LossSteps {
    /// Marks the source's blocks as suspect.
    const MARK_SUSPECT: Self;
    /// Drops the source's blocks.
    const CLEAR_LOST: Self;
    /// Drops the blocks that are still suspect.
    const DROP_SUSPECTS: Self;
}

/// A permanent loss of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Damage {
    /// When suspect blocks are dropped.
    drop_suspects_at: Option<Duration>,
}

/// State shared by every [`Machine`]: batches `B` go in, steps `S` come out.
#[derive(Debug, Clone)]
pub(crate) struct Core<B, S> {
    bounds: Bounds,
    pub(crate) now: Duration,
    pub(crate) buffer: Buffer<B>,
    pub(crate) counts: OutcomeCounts,
    /// When the newest batch of the source was last confirmed as applied.
    pub(crate) verified_at: Option<Duration>,
    received: u64,
    damage: Option<Damage>,
    steps: VecDeque<S>,
    /// Whether [`Machine::derive_steps`] must still run for the last input.
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

    /// Begins an input at time `now`. Time never runs backwards: an earlier `now` counts as the latest one.
    pub(crate) fn begin_input(&mut self, now: Duration) {
        debug_assert!(self.steps.is_empty() && !self.unsettled, "steps are left");
        self.now = self.now.max(now);
        self.unsettled = true;
    }

    /// Requests another call of [`Machine::derive_steps`].
    pub(crate) const fn derive_steps_again(&mut self) {
        self.unsettled = true;
    }

    pub(crate) fn push(&mut self, step: S) {
        self.steps.push_back(step);
    }

    /// Counts a received batch.
    pub(crate) const fn receive(&mut self) {
        self.received += 1;
    }

    /// Buffers a live batch. Drops the lowest batches beyond the limits.
    pub(crate) fn buffer_batch(&mut self, batch: B) {
        self.buffer.insert(batch);
        let Bounds { batches_max, bytes_max, .. } = self.bounds;
        self.counts.duplicate += self.buffer.drop_lowest(batches_max, bytes_max);
    }

    /// Drops the buffered batches.
    pub(crate) fn drop_held(&mut self) {
        self.counts.stale += self.buffer.clear();
    }

    /// Counts `missing` batches as lost.
    pub(crate) const fn lose(&mut self, missing: u64) {
        debug_assert!(missing > 0, "a loss has a size");
        self.counts.lost = self.counts.lost.saturating_add(missing);
    }

    /// Records that the source's blocks are no longer reliable.
    pub(crate) fn degrade(&mut self) {
        let earlier = self.damage.and_then(|damage| damage.drop_suspects_at);
        let drop_suspects_at = match self.bounds.loss_policy {
            LossPolicy::Keep => {
                self.push(S::MARK_SUSPECT);
                // A later loss does not extend the deadline of an earlier one.
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

    /// Ends the damage, because the loss no longer affects the source's blocks.
    pub(crate) const fn repair(&mut self) {
        self.damage = None;
    }

    /// Resets the state, because all blocks of the source are dropped.
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

    /// Limits the buffer to the share that other sources leave, except for its newest batch. Applies from the
    /// next batch on.
    pub(crate) fn limit_to_share(&mut self, held: &mut HeldShare) {
        self.bounds.bytes_max = held.note(self.buffer.bytes());
    }

    /// Invariants between two inputs. `refused` batches will be sent again.
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

/// The rules of one ordering method, around a [`Core`].
pub(crate) trait Machine {
    type Batch: Numbered;
    type Step: LossSteps;

    fn core(&mut self) -> &mut Core<Self::Batch, Self::Step>;

    /// Applies the next batch if it is available. Returns whether it was.
    fn apply_next(&mut self) -> bool;

    /// Derives the consequences of the current state, after all available batches are applied.
    fn derive_steps(&mut self);

    /// Checks the invariants between two inputs, in debug builds.
    fn validate(&self);
}

/// The next step of a machine; `None` after all consequences of the last input.
///
/// Emits queued steps first. Then it applies one batch, whose steps must be emitted before the next batch. When no
/// batch can be applied, it derives further steps, which may make more batches applicable.
pub(crate) fn next_step<M: Machine>(machine: &mut M) -> Option<M::Step> {
    loop {
        if let Some(step) = machine.core().steps.pop_front() {
            return Some(step);
        }
        if machine.apply_next() {
            continue;
        }
        if !mem::take(&mut machine.core().unsettled) {
            machine.validate();
            return None;
        }
        machine.derive_steps();
    }
}

/// Asserts invariants in debug builds, and lists the broken ones.
pub(crate) fn assert_facts<'a>(facts: impl IntoIterator<Item = (&'a str, bool)>) {
    let broken = facts.into_iter().filter(|(_, holds)| !holds);
    let broken: Vec<_> = broken.map(|(fact, _)| fact).collect();
    debug_assert!(broken.is_empty(), "{broken:?}");
}
