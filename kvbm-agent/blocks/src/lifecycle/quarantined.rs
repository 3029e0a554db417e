use crate::identity::SlotId;
use crate::store::Held;
use crate::tier::TierMarker;
use std::marker::PhantomData;

/// A block in Reset whose slot a transfer may write. Nothing but [`QuarantinedBlock::stopped`] ends that: dropped, its
/// slot is never used again, which [`crate::PoolStats::abandoned`] counts.
#[derive(Debug)]
#[must_use]
pub struct QuarantinedBlock<T> {
    pub(super) held: Held,
    tier: PhantomData<fn() -> T>,
}

impl<T: TierMarker> QuarantinedBlock<T> {
    pub(super) const fn new(held: Held) -> Self {
        Self { held, tier: PhantomData }
    }

    /// The slot that is written.
    #[must_use]
    pub const fn slot(&self) -> SlotId {
        self.held.slot()
    }
}
