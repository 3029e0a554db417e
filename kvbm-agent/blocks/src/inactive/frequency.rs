use super::{ClassLists, FrequencySketch, InactiveEntry, InactiveIndex};
use crate::identity::{Priority, SlotId};
use kvasir_proto::types::SequenceHash;

/// Minimum number of uses for the second, third and fourth frequency tier.
const WARM: [u8; 3] = [3, 8, 15];
const TIERS: u32 = 4;
const CLASSES: u32 = 256 * TIERS;

/// Evicts by priority, then by frequency (`TinyLFU` with four frequency tiers). Blocks that were used once are evicted
/// before blocks that are used repeatedly.
#[derive(Debug)]
pub struct TinyLfu {
    sketch: FrequencySketch,
    /// One class for each priority and frequency tier.
    lists: ClassLists,
    /// Sequence hash of the inactive block in each slot.
    hashes: Vec<SequenceHash>,
}

impl TinyLfu {
    /// Creates an index for a pool of `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self {
            sketch: FrequencySketch::new(blocks),
            lists: ClassLists::new(blocks, CLASSES),
            hashes: vec![SequenceHash::default(); blocks as usize],
        }
    }

    /// The frequency tier of a block, 0 (coldest) to 3.
    fn tier(&self, hash: SequenceHash) -> u32 {
        let uses = self.sketch.estimate(hash);
        WARM.iter().map(|least| u32::from(uses >= *least)).sum()
    }

    /// Ages blocks of a priority: in each frequency tier except the coldest, checks the block that entered first, and
    /// moves it to a colder tier if its estimate has dropped.
    fn cool(&mut self, priority: Priority) {
        let first = u32::from(priority.0) * TIERS;
        for class in first + 1..first + TIERS {
            let Some(slot) = self.lists.front(class) else { continue };
            let Some(hash) = self.hashes.get(slot.index()) else { continue };
            let now = first + self.tier(*hash);
            if now < class {
                self.lists.remove(slot);
                self.lists.push_back(now, slot);
            }
        }
    }
}

impl InactiveIndex for TinyLfu {
    fn touched(&mut self, sequence: SequenceHash) {
        self.sketch.record(sequence);
    }

    fn insert(&mut self, entry: InactiveEntry) {
        let sequence = entry.identity.sequence;
        if let Some(hash) = self.hashes.get_mut(entry.slot.index()) {
            *hash = sequence;
        }
        let class = u32::from(entry.priority.0) * TIERS + self.tier(sequence);
        self.lists.push_back(class, entry.slot);
    }

    fn remove(&mut self, entry: &InactiveEntry) {
        self.lists.remove(entry.slot);
    }

    /// Moves `count` slots to `slots`, coldest first. Returns false, and changes nothing, if fewer are inactive.
    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool {
        if self.lists.len() < count {
            return false;
        }
        for _ in 0..count {
            let Some(lowest) = self.lists.lowest() else { break };
            self.cool(Priority(u8::try_from(lowest / TIERS).unwrap_or(u8::MAX)));
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
