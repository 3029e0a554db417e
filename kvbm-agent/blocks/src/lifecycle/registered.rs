use super::state::in_state;
use crate::identity::{BlockIdentity, Checksum, Priority};
use crate::store::{Held, WeakHeld};
use crate::tier::TierMarker;
use std::marker::PhantomData;
use std::sync::Arc;

/// A block in Registered, in use as long as a handle of it is there. Nobody may write its slot.
#[derive(Debug)]
#[must_use]
pub struct RegisteredBlock<T> {
    pub(super) held: Held,
    identity: BlockIdentity,
    tier: PhantomData<fn() -> T>,
}

in_state!(RegisteredBlock, Registered);

impl<T: TierMarker> RegisteredBlock<T> {
    /// A handle with the share that was just counted.
    pub(crate) const fn new(held: Held, identity: BlockIdentity) -> Self {
        Self { held, identity, tier: PhantomData }
    }

    /// What it is.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// Checksum of its bytes, if it is known.
    #[must_use]
    pub fn checksum(&self) -> Option<Checksum> {
        self.held.shared().lock().info(self.held.slot())?.checksum
    }

    /// States the checksum of its bytes, if none is known yet.
    pub fn set_checksum(&self, checksum: Checksum) {
        self.held.shared().lock().set_checksum(self.held.slot(), checksum);
    }

    /// How much it is worth keeping. None if it was withdrawn.
    #[must_use]
    pub fn priority(&self) -> Option<Priority> {
        Some(self.held.shared().lock().info(self.held.slot())?.priority)
    }

    /// States how much it is worth keeping.
    pub fn set_priority(&self, priority: Priority) {
        self.held.shared().lock().set_priority(self.held.slot(), priority);
    }

    /// Whether it is still found: nobody has withdrawn it.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.held.shared().lock().info(self.held.slot()).is_some()
    }

    /// Ends its registration at once, whoever uses it: its bytes are wrong. The slot is free when the last handle is
    /// dropped. Whether it was registered.
    pub fn withdraw(&self) -> bool {
        self.held.shared().lock().withdraw(self.held.slot())
    }

    /// A handle that does not keep it in use.
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

/// Knows a registered block, and does not keep it.
#[derive(Debug)]
pub struct WeakBlock<T> {
    held: WeakHeld,
    identity: BlockIdentity,
    tier: PhantomData<fn() -> T>,
}

impl<T: TierMarker> WeakBlock<T> {
    /// What it is.
    #[must_use]
    pub const fn identity(&self) -> &BlockIdentity {
        &self.identity
    }

    /// The block, if it was not evicted or withdrawn since. One that was inactive is in use again.
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
