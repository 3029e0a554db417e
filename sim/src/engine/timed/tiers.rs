//! Lower cache tiers: host memory and disk (pure). Blocks that become complete in device memory are written to both.
//! Each tier evicts the least recently used block.

use super::event::CacheChange;
use kvasir_proto::types::Tier;
use std::collections::{BTreeMap, HashMap};

/// Blocks in the lower tiers.
#[derive(Debug)]
pub(super) struct Tiers {
    host: Lru,
    disk: Lru,
}

/// Number of blocks to fetch from each tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Fetch {
    pub(crate) host: usize,
    pub(crate) disk: usize,
}

/// Consecutive blocks of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain<'a> {
    pub(super) id: usize,
    /// Index of the first block in the request.
    pub(super) first: usize,
    pub(super) names: &'a [u64],
    /// The preceding block.
    pub(super) parent: Option<u64>,
}

#[derive(Debug)]
struct Lru {
    tier: Tier,
    capacity: usize,
    clock: u64,
    stamps: HashMap<u64, u64>,
    by_stamp: BTreeMap<u64, u64>,
}

// === impl Fetch ===

impl Fetch {
    pub(crate) fn total(self) -> usize {
        self.host + self.disk
    }
}

// === impl Tiers ===

impl Tiers {
    /// Empty tiers of these sizes, in blocks. A tier of size 0 stores nothing.
    pub(super) fn new(host_blocks: usize, disk_blocks: usize) -> Self {
        Self { host: Lru::new(Tier::Host, host_blocks), disk: Lru::new(Tier::Disk, disk_blocks) }
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.host.capacity, self.disk.capacity);
    }

    /// Number of leading blocks among `names` that the tiers have, each counted in its best tier.
    pub(super) fn leading(&self, names: &[u64]) -> Fetch {
        let mut fetch = Fetch::default();
        for name in names {
            if self.host.stamps.contains_key(name) {
                fetch.host += 1;
            } else if self.disk.stamps.contains_key(name) {
                fetch.disk += 1;
            } else {
                break;
            }
        }
        fetch
    }

    /// Writes a chain of blocks.
    pub(super) fn store(&mut self, chain: Chain<'_>, changes: &mut Vec<CacheChange>) {
        self.host.store(chain, changes);
        self.disk.store(chain, changes);
    }

    /// Marks a chain as used, so that its end is evicted before its beginning.
    pub(super) fn touch(&mut self, names: &[u64]) {
        for lru in [&mut self.host, &mut self.disk] {
            names.iter().rev().for_each(|&name| lru.touch(name));
        }
    }
}

// === impl Lru ===

impl Lru {
    fn new(tier: Tier, capacity: usize) -> Self {
        Self { tier, capacity, clock: 0, stamps: HashMap::new(), by_stamp: BTreeMap::new() }
    }

    fn touch(&mut self, name: u64) {
        if let Some(stamp) = self.stamps.get_mut(&name) {
            self.by_stamp.remove(stamp);
            self.clock += 1;
            *stamp = self.clock;
            self.by_stamp.insert(self.clock, name);
        }
    }

    fn store(&mut self, chain: Chain<'_>, changes: &mut Vec<CacheChange>) {
        if self.capacity == 0 {
            return;
        }
        let tier = self.tier;
        let id = chain.id;
        let mut parent = chain.parent;
        for (first, &name) in (chain.first..).zip(chain.names) {
            if self.stamps.contains_key(&name) {
                self.touch(name);
            } else {
                changes.push(CacheChange::Stored { tier, id, first, names: vec![name], parent });
                self.clock += 1;
                self.stamps.insert(name, self.clock);
                self.by_stamp.insert(self.clock, name);
            }
            parent = Some(name);
        }
        while self.stamps.len() > self.capacity {
            let Some((_, name)) = self.by_stamp.pop_first() else { break };
            self.stamps.remove(&name);
            changes.push(CacheChange::Removed { tier, name, remaining: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(names: &[u64]) -> Chain<'_> {
        Chain { id: 0, first: 0, names, parent: None }
    }

    #[test]
    fn what_was_used_longest_ago_is_evicted_tail_first() {
        let mut tiers = Tiers::new(3, 5);
        let mut changes = Vec::new();
        tiers.store(chain(&[1, 2, 3]), &mut changes);
        assert_eq!(changes.len(), 6, "three in each tier: {changes:?}");
        tiers.touch(&[1, 2, 3]);
        tiers.store(chain(&[7]), &mut changes);
        assert_eq!(tiers.leading(&[1, 2, 3, 4]), Fetch { host: 2, disk: 1 });
        assert_eq!(tiers.leading(&[9, 1]), Fetch::default());
        let removed = CacheChange::Removed { tier: Tier::Host, name: 3, remaining: 0 };
        assert!(changes.contains(&removed), "{changes:?}");
        tiers.clear();
        assert_eq!(tiers.leading(&[1]), Fetch::default());
        tiers.store(chain(&[1]), &mut changes);
        assert_eq!(tiers.leading(&[1]), Fetch { host: 1, disk: 0 }, "there is room again");
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let mut tiers = Tiers::new(0, 0);
        let mut changes = Vec::new();
        tiers.store(chain(&[1, 2]), &mut changes);
        assert_eq!((changes.len(), tiers.leading(&[1]).total()), (0, 0));
    }
}
