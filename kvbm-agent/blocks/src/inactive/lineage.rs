use super::{InactiveEntry, InactiveIndex};
use crate::identity::{BlockIdentity, Priority, SlotId};
use kvasir_proto::types::SequenceHash;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Sequence hash and position: a parent's position is lower, so no block is its own ancestor, whatever hashes engines
/// state.
type Key = (SequenceHash, u32);
/// The order of eviction: priority, then how long it has been unused.
type Turn = (Priority, u64);

/// A block that is registered, or that registered blocks name as their parent.
#[derive(Debug, Default)]
struct Node {
    parent: Option<Key>,
    /// Registered blocks whose parent it is.
    children: u32,
    is_registered: bool,
    /// Its slot and turn, while it is inactive.
    inactive: Option<(SlotId, Turn)>,
}

/// Evicts leaves only, those unused for longest first, of the lowest priority: what is left of a prompt is always its
/// beginning. A block is a leaf if no registered block, in use or not, names it as its parent; it does not matter
/// which of the two was registered first.
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
    /// Without blocks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn begin(&mut self, key: Key, parent: Option<Key>) {
        let node = self.nodes.entry(key).or_default();
        (node.parent, node.is_registered) = (parent, true);
        let Some(parent) = parent else { return };
        let above = self.nodes.entry(parent).or_default();
        above.children += 1;
        if let Some((_, turn)) = above.inactive {
            self.leaves.remove(&turn);
        }
    }

    fn end(&mut self, key: Key) {
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
        self.begin(key(identity), parent(identity));
    }

    fn unregistered(&mut self, identity: &BlockIdentity) {
        self.end(key(identity));
    }

    fn insert(&mut self, entry: InactiveEntry) {
        self.last_tick += 1;
        self.park(key(&entry.identity), entry.slot, (entry.priority, self.last_tick));
    }

    fn remove(&mut self, entry: &InactiveEntry) {
        self.unpark(key(&entry.identity));
    }

    fn evict(&mut self, count: usize, slots: &mut Vec<SlotId>) -> bool {
        if self.inactive < count {
            return false;
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let Some((&turn, &(slot, key))) = self.leaves.first_key_value() else { break };
            let parent = self.nodes.get(&key).and_then(|node| node.parent);
            self.unpark(key);
            self.end(key);
            taken.push((key, parent, slot, turn));
        }
        if taken.len() == count {
            slots.extend(taken.iter().map(|(_, _, slot, _)| *slot));
            return true;
        }
        // The rest are ancestors of blocks in use. Everything comes back to its place.
        for (key, parent, slot, turn) in taken.into_iter().rev() {
            self.begin(key, parent);
            self.park(key, slot, turn);
        }
        false
    }

    fn len(&self) -> usize {
        self.inactive
    }
}
