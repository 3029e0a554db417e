use super::{InactiveEntry, InactiveIndex};
use crate::identity::{BlockIdentity, Priority, SlotId};
use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Sequence hash and position. A parent's position is lower, so a block can't be its own ancestor, even if an engine
/// reports wrong hashes.
type Key = (SequenceHash, u32);
/// Eviction order: by priority, then least recently used first.
type Turn = (Priority, u64);

/// A block that is registered, or that a registered block names as its parent.
#[derive(Debug, Default)]
struct Node {
    parent: Option<Key>,
    /// Number of registered blocks with this parent.
    children: u32,
    is_registered: bool,
    /// Slot and position in the eviction order, while the block is inactive.
    inactive: Option<(SlotId, Turn)>,
}

/// Evicts only leaves: lowest priority first, then least recently used. The remaining blocks of a prompt are therefore
/// always a prefix. A block is a leaf if no registered block, in use or not, names it as its parent. The order in which
/// the two were registered does not matter.
#[derive(Debug, Default)]
pub struct Lineage {
    nodes: FxHashMap<Key, Node>,
    /// Inactive leaves.
    leaves: BTreeMap<Turn, (SlotId, Key)>,
    inactive: usize,
    last_tick: u64,
}

fn key(identity: &BlockIdentity) -> Key {
    (identity.sequence, identity.position)
}

fn parent(identity: &BlockIdentity) -> Option<Key> {
    Some((identity.parent?, identity.position.checked_sub(1)?))
}

impl Lineage {
    /// Creates an empty index.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a registered block. If it has a parent, the parent gains a child, and is not evictable while it has
    /// children.
    fn add_block(&mut self, key: Key, parent: Option<Key>) {
        let node = self.nodes.entry(key).or_default();
        (node.parent, node.is_registered) = (parent, true);
        let Some(parent) = parent else { return };
        let above = self.nodes.entry(parent).or_default();
        above.children += 1;
        if let Some((_, turn)) = above.inactive {
            self.leaves.remove(&turn);
        }
    }

    /// Removes a registered block. Its parent becomes evictable if this was its last child and it is inactive.
    fn remove_block(&mut self, key: Key) {
        let Some(node) = self.nodes.get_mut(&key) else { return };
        node.is_registered = false;
        let above = node.parent.take();
        if node.children == 0 {
            self.nodes.remove(&key);
        }
        let Some(parent) = above else { return };
        let Some(above) = self.nodes.get_mut(&parent) else { return };
        above.children = above.children.saturating_sub(1);
        if above.children > 0 {
            return;
        }
        if let Some((slot, turn)) = above.inactive {
            self.leaves.insert(turn, (slot, parent));
        } else if !above.is_registered {
            self.nodes.remove(&parent);
        }
    }

    fn park(&mut self, key: Key, slot: SlotId, turn: Turn) {
        let node = self.nodes.entry(key).or_default();
        node.inactive = Some((slot, turn));
        self.inactive += 1;
        if node.children == 0 {
            self.leaves.insert(turn, (slot, key));
        }
    }

    fn unpark(&mut self, key: Key) {
        let inactive = self.nodes.get_mut(&key).and_then(|node| node.inactive.take());
        if let Some((_, turn)) = inactive {
            self.inactive -= 1;
            self.leaves.remove(&turn);
        }
    }
}

impl InactiveIndex for Lineage {
    fn registered(&mut self, identity: &BlockIdentity) {
        self.add_block(key(identity), parent(identity));
    }

    fn unregistered(&mut self, identity: &BlockIdentity) {
        self.remove_block(key(identity));
    }

    fn insert(&mut self, entry: InactiveEntry) {
        self.last_tick += 1;
        self.park(key(&entry.identity), entry.slot, (entry.priority, self.last_tick));
    }

    fn remove(&mut self, entry: &InactiveEntry) {
        self.unpark(key(&entry.identity));
    }

    /// Moves `count` slots to `slots`, leaves before their parents. Returns false, and changes nothing, if fewer blocks
    /// are evictable.
    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool {
        if self.inactive < count {
            return false;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let Some((&turn, &(slot, key))) = self.leaves.first_key_value() else { break };
            let parent = self.nodes.get(&key).and_then(|node| node.parent);
            self.unpark(key);
            self.remove_block(key);
            taken.push((key, parent, slot, turn));
        }
        if taken.len() == count {
            slots.extend(taken.iter().map(|(_, _, slot, _)| *slot));
            return true;
        }
        // The remaining blocks are ancestors of blocks in use. Restore all entries.
        for (key, parent, slot, turn) in taken.into_iter().rev() {
            self.add_block(key, parent);
            self.park(key, slot, turn);
        }
        false
    }

    fn len(&self) -> usize {
        self.inactive
    }
}
