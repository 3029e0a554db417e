use super::{PoolConfig, PoolConfigError, Slots};
use crate::events::EventManager;
use crate::identity::SlotId;
use crate::tier::BlockTier;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;

/// What all handles of a pool's blocks share. Its lock is taken before the events' lock, and no other.
pub(crate) struct Shared {
    pub(crate) config: PoolConfig,
    slots: Mutex<Slots>,
}

impl Shared {
    pub(crate) fn new(
        config: PoolConfig,
        tier: BlockTier,
        events: Arc<EventManager>,
    ) -> Result<Arc<Self>, PoolConfigError> {
        config.validate()?;
        Ok(Arc::new(Self { config, slots: Mutex::new(Slots::new(&config, tier, events)) }))
    }

    /// The slots. No handle may be dropped while they are locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }
}

/// Without its slots: there may be millions, and they may be locked.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A share in a slot. Dropping it is the one way to give it back.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    slot: SlotId,
}

impl Held {
    /// The share that [`Slots`] has just counted.
    pub(crate) const fn new(shared: Arc<Shared>, slot: SlotId) -> Self {
        Self { shared, slot }
    }

    pub(crate) const fn slot(&self) -> SlotId {
        self.slot
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// One that keeps nothing.
    pub(crate) fn downgrade(&self) -> WeakHeld {
        let generation = self.shared.lock().generation(self.slot);
        WeakHeld { shared: Arc::clone(&self.shared), slot: self.slot, generation }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.lock().release(self.slot);
    }
}

/// Knows a registered block of a slot, and does not keep it.
#[derive(Debug, Clone)]
pub(crate) struct WeakHeld {
    shared: Arc<Shared>,
    slot: SlotId,
    generation: u32,
}

impl WeakHeld {
    /// A share in the slot, if the same block is in it still.
    pub(crate) fn upgrade(&self) -> Option<Held> {
        let shares = self.shared.lock().share_again(self.slot, self.generation);
        shares.then(|| Held::new(Arc::clone(&self.shared), self.slot))
    }
}
