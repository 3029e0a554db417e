//! Caches below device memory: host memory and disk. Whatever becomes complete in device memory is written to both; each
//! evicts what was used longest ago.

use kvasir_proto::types::{BlockName, KvEvent, StoredBlock, Tier};
use std::collections::{BTreeMap, HashMap};

/// Blocks in the tiers below device memory.
#[derive(Debug)]
pub(super) struct Tiers {
    host: Lru,
    disk: Lru,
}

/// How many blocks are fetched from which tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fetch {
    pub(super) host: usize,
    pub(super) disk: usize,
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
    pub(super) fn total(self) -> usize {
        self.host + self.disk
    }
}

// === impl Tiers ===

impl Tiers {
    /// Empty tiers of so many blocks.
    pub(super) fn new(host_blocks: usize, disk_blocks: usize) -> Self {
        Self { host: Lru::new(Tier::Host, host_blocks), disk: Lru::new(Tier::Disk, disk_blocks) }
    }

    /// How many leading blocks of these it has, each counted in its best tier.
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
    pub(super) fn store(
        &mut self,
        parent: Option<BlockName>,
        blocks: &[StoredBlock],
        events: &mut Vec<KvEvent>,
    ) {
        self.host.store(parent, blocks, events);
        self.disk.store(parent, blocks, events);
    }

    /// Notes that a chain was used: its end is evicted before its beginning.
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

    fn store(
        &mut self,
        parent: Option<BlockName>,
        blocks: &[StoredBlock],
        events: &mut Vec<KvEvent>,
    ) {
        if self.capacity == 0 {
            return;
        }
        let mut before = parent;
        for block in blocks {
            let is_new = !self.stamps.contains_key(&block.name.0);
            if is_new {
                let blocks = vec![*block];
                events.push(KvEvent::Stored { parent: before, tier: self.tier, blocks });
                self.clock += 1;
                self.stamps.insert(block.name.0, self.clock);
                self.by_stamp.insert(self.clock, block.name.0);
            } else {
                self.touch(block.name.0);
            }
            before = Some(block.name);
        }
        while self.stamps.len() > self.capacity {
            let Some((_, name)) = self.by_stamp.pop_first() else { break };
            self.stamps.remove(&name);
            push_removed(events, self.tier, BlockName(name));
        }
    }
}

/// Consecutive removals from one tier become one event.
pub(super) fn push_removed(events: &mut Vec<KvEvent>, from: Tier, name: BlockName) {
    match events.last_mut() {
        Some(KvEvent::Removed { names, tier }) if *tier == from => names.push(name),
        _ => events.push(KvEvent::Removed { tier: from, names: vec![name] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::LocalHash;

    fn chain(names: &[u64]) -> Vec<StoredBlock> {
        let block = |&name: &u64| StoredBlock { name: BlockName(name), local: LocalHash(name) };
        names.iter().map(block).collect()
    }

    #[test]
    fn what_was_used_longest_ago_is_evicted_tail_first() {
        let (mut tiers, mut events) = (Tiers::new(3, 5), Vec::new());
        tiers.store(None, &chain(&[1, 2, 3]), &mut events);
        assert_eq!(events.len(), 6, "three in each tier: {events:?}");
        tiers.touch(&[1, 2, 3]);
        tiers.store(None, &chain(&[7]), &mut events);
        assert_eq!(tiers.leading(&[1, 2, 3, 4]), Fetch { host: 2, disk: 1 });
        assert_eq!(tiers.leading(&[9, 1]), Fetch::default());
        let names = vec![BlockName(3)];
        assert!(events.contains(&KvEvent::Removed { tier: Tier::Host, names }), "{events:?}");
    }

    #[test]
    fn without_room_nothing_is_kept() {
        let (mut tiers, mut events) = (Tiers::new(0, 0), Vec::new());
        tiers.store(None, &chain(&[1, 2]), &mut events);
        assert_eq!((events.len(), tiers.leading(&[1]).total()), (0, 0));
    }
}
