use super::state::in_state;
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::store::{Held, WeakHeld};
use crate::tier::TierMarker;
use std::marker::PhantomData;
use std::sync::Arc;

/// A handle to a registered block. The block is in use, and its slot is read-only, while a handle exists.
#[derive(Debug)]
#[must_use]
pub struct RegisteredBlock<T> {
    pub(super) held: Held,
    identity: BlockIdentity,
    tier: PhantomData<fn() -> T>,
}

in_state!(RegisteredBlock, Registered);

impl<T: TierMarker> RegisteredBlock<T> {
    /// Creates a handle from a reference that was already counted.
    pub(crate) const fn new(held: Held, identity: BlockIdentity) -> Self {
        Self { held, identity, tier: PhantomData }
    }

    /// The block's identity.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// Checksum of the block's bytes, if known.
    #[must_use]
    pub fn checksum(&self) -> Option<Checksum> {
        self.held.shared().lock().info(self.held.slot())?.checksum
    }

    /// Sets the checksum of the block's bytes, unless one is set.
    pub fn set_checksum(&self, checksum: Checksum) {
        self.held.shared().lock().set_checksum(self.held.slot(), checksum);
    }

    /// The block's eviction priority; `None` if the block was withdrawn.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        Some(self.held.shared().lock().info(self.held.slot())?.priority)
    }

    /// Sets the block's eviction priority.
    pub fn set_priority(&self, priority: Priority) {
        self.held.shared().lock().set_priority(self.held.slot(), priority);
    }

    /// Whether the block is still registered, not withdrawn.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.held.shared().lock().info(self.held.slot()).is_some()
    }

    /// Ends the registration immediately, even if the block is in use, because its bytes are wrong. The slot becomes
    /// free when the last handle is dropped. Returns whether the block was registered.
    pub fn withdraw(&self) -> bool {
        self.held.shared().lock().withdraw(self.held.slot())
    }

    /// Returns a weak handle, which does not keep the block in use.
    #[must_use]
    pub fn downgrade(&self) -> WeakBlock<T> {
        WeakBlock { held: self.held.downgrade(), identity: self.identity, tier: PhantomData }
    }

    pub(crate) const fn held(&self) -> &Held {
        &self.held
    }
}

impl<T> Clone for RegisteredBlock<T> {
    fn clone(&self) -> Self {
        self.held.shared().lock().share(self.held.slot());
        let held = Held::new(Arc::clone(self.held.shared()), self.held.slot());
        Self { held, identity: self.identity, tier: PhantomData }
    }
}

/// A weak handle to a registered block: it does not prevent eviction.
#[derive(Debug)]
pub struct WeakBlock<T> {
    held: WeakHeld,
    identity: BlockIdentity,
    tier: PhantomData<fn() -> T>,
}

impl<T: TierMarker> WeakBlock<T> {
    /// The block's identity.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// Returns a handle to the block, unless it was evicted or withdrawn. Activates an inactive block.
    #[must_use]
    pub fn upgrade(&self) -> Option<RegisteredBlock<T>> {
        Some(RegisteredBlock::new(self.held.upgrade()?, self.identity))
    }
}

impl<T> Clone for WeakBlock<T> {
    fn clone(&self) -> Self {
        Self { held: self.held.clone(), identity: self.identity, tier: PhantomData }
    }
}
