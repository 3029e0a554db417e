use super::MutableBlock;
use crate::identity::SlotId;
use crate::store::Held;
use crate::tier::TierMarker;
use std::marker::PhantomData;

/// A block in Reset whose slot a transfer may write. Nothing but [`QuarantinedBlock::stopped`] ends that: dropped, its
/// slot is never used again, which [`crate::PoolStats::abandoned`] counts.
#[derive(Debug)]
#[must_use]
pub struct QuarantinedBlock<T> {
    held: Held,
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

    /// The transfer has stopped: it neither writes now nor ever will.
    pub fn stopped(self) -> MutableBlock<T> {
        self.held.shared().lock().end_quarantine(self.held.slot());
        MutableBlock::new(self.held)
    }
}
