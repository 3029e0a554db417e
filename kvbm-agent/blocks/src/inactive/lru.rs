use super::{ClassLists, InactiveEntry, InactiveIndex};
use crate::identity::SlotId;

const PRIORITIES: u32 = 256;

/// Evicts the least recently used block of the lowest priority.
#[derive(Debug)]
pub struct Lru {
    /// One class for each priority.
    lists: ClassLists,
}

impl Lru {
    /// Creates an index for a pool of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self { lists: ClassLists::new(blocks, PRIORITIES) }
    }
}

impl InactiveIndex for Lru {
    fn insert(&mut self, entry: InactiveEntry) {
        self.lists.push_back(entry.priority.0.into(), entry.slot);
    }

    fn remove(&mut self, entry: &InactiveEntry) {
        self.lists.remove(entry.slot);
    }

    /// Moves `count` slots to `slots`, the least recently used first. Returns false, and changes nothing, if fewer are
    /// inactive.
    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool {
        if self.lists.len() < count {
            return false;
        }
        for _ in 0..count {
            let front = self.lists.lowest().and_then(|class| self.lists.front(class));
            let Some(slot) = front else { break };
            self.lists.remove(slot);
            slots.push(slot);
        }
        true
    }

    fn len(&self) -> usize {
        self.lists.len()
    }
}
