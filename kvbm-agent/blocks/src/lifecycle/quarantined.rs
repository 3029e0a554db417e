use crate::identity::SlotId;
use crate::store::Held;
use crate::tier::TierMarker;
use std::marker::PhantomData;

/// A block in Reset whose slot a transfer may write. Only [`QuarantinedBlock::stopped`] ends the quarantine. If it is
/// dropped, the slot is never used again and [`crate::PoolStats::abandoned`] counts it.
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

    /// The slot that the transfer writes.
    #[must_use]
    pub const fn slot(&self) -> SlotId {
        self.held.slot()
    }
}
