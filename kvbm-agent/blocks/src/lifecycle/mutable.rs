use super::state::in_state;
use super::{BlockRefused, CompleteBlock, IdentityError, PartialBlock, QuarantinedBlock};
use crate::identity::BlockIdentity;
use crate::store::Held;
use crate::tier::TierMarker;
use kvasir_proto::hash::Seed;
use std::marker::PhantomData;

/// An empty block with one owner, who may write its slot (state Reset). Dropping it frees the slot.
#[derive(Debug)]
#[must_use]
pub struct MutableBlock<T> {
    pub(super) held: Held,
    tier: PhantomData<fn() -> T>,
}

in_state!(MutableBlock, Reset);

impl<T: TierMarker> MutableBlock<T> {
    pub(crate) const fn new(held: Held) -> Self {
        Self { held, tier: PhantomData }
    }

    /// Reset → Partial: begins a sequence. `salt_hash` is the seed of its namespace's local hashes.
    pub fn init_sequence(self, salt_hash: Seed) -> PartialBlock<T> {
        PartialBlock::new(self.held, salt_hash, None)
    }

    /// Reset → Partial: continues a sequence after the block `before`.
    pub fn continue_sequence(self, salt_hash: Seed, before: &BlockIdentity) -> PartialBlock<T> {
        PartialBlock::new(self.held, salt_hash, Some(*before))
    }

    /// Reset → Complete, without tokens: for engines that supply hashes, and for copies from other tiers.
    ///
    /// # Errors
    /// [`IdentityError`] if position and parent contradict each other.
    pub fn complete(
        self,
        identity: BlockIdentity,
    ) -> Result<CompleteBlock<T>, BlockRefused<Self, IdentityError>> {
        if !identity.is_consistent() {
            return Err(BlockRefused { reason: IdentityError, block: self });
        }
        Ok(CompleteBlock::new(self.held, identity))
    }

    /// Quarantines the slot, because a transfer will write it.
    pub fn quarantine(self) -> QuarantinedBlock<T> {
        self.held.shared().lock().quarantine(self.held.slot());
        QuarantinedBlock::new(self.held)
    }
}

// Transitions back to Reset are defined here, because no other state's module refers to `MutableBlock`.

impl<T: TierMarker> PartialBlock<T> {
    /// Partial → Reset: discards the tokens.
    pub fn reset(self) -> MutableBlock<T> {
        MutableBlock::new(self.held)
    }
}

impl<T: TierMarker> CompleteBlock<T> {
    /// Complete → Reset: invalidates the block.
    pub fn reset(self) -> MutableBlock<T> {
        MutableBlock::new(self.held)
    }
}

impl<T: TierMarker> QuarantinedBlock<T> {
    /// Ends the quarantine. The caller guarantees that the transfer has stopped and will never write again.
    pub fn stopped(self) -> MutableBlock<T> {
        self.held.shared().lock().end_quarantine(self.held.slot());
        MutableBlock::new(self.held)
    }
}
