use super::{PoolConfig, PoolConfigError, Slots};
use crate::events::EventManager;
use crate::identity::SlotId;
use crate::tier::BlockTier;
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;

/// State shared by all handles of a pool's blocks. Lock order: this lock before the events' lock, and no other.
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

    /// Locks the slots. Do not drop a handle while they are locked.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }
}

/// Omits the slots, because there may be millions and they may be locked.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A counted reference to a slot. Only its drop releases it.
#[derive(Debug)]
pub(crate) struct Held {
    shared: Arc<Shared>,
    slot: SlotId,
}

impl Held {
    /// Wraps a reference that [`Slots`] has just counted.
    pub(crate) const fn new(shared: Arc<Shared>, slot: SlotId) -> Self {
        Self { shared, slot }
    }

    pub(crate) const fn slot(&self) -> SlotId {
        self.slot
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Creates a weak reference, which keeps no slot in use.
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

/// A weak reference to a registered block in a slot.
#[derive(Debug, Clone)]
pub(crate) struct WeakHeld {
    shared: Arc<Shared>,
    slot: SlotId,
    generation: u32,
}

impl WeakHeld {
    /// Returns a counted reference if the slot still contains the same block.
    pub(crate) fn upgrade(&self) -> Option<Held> {
        let shares = self.shared.lock().share_again(self.slot, self.generation);
        shares.then(|| Held::new(Arc::clone(&self.shared), self.slot))
    }
}
