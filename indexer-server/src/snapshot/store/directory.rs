use crate::snapshot::format::WorkerHead;
use kvasir_proto::convert::WorkerAddress;
use std::collections::{BTreeMap, BTreeSet};

/// One stored worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the worker in keys.
    pub(super) number: u32,
    /// Generation and image count of the stored worker.
    pub(super) head: WorkerHead,
    /// Whether only a complete image may follow, not an increment.
    pub(super) needs_whole: bool,
}

/// Stored workers and their numbers.
#[derive(Debug, Default)]
pub(super) struct Directory {
    entries: BTreeMap<WorkerAddress, Entry>,
    numbers: BTreeSet<u32>,
    /// Start of the search for a free number.
    next: u32,
}

impl Directory {
    pub(super) fn get(&self, address: &WorkerAddress) -> Option<Entry> {
        self.entries.get(address).copied()
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &WorkerAddress> {
        self.entries.keys()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether any worker needs a complete image.
    pub(super) fn needs_whole(&self) -> bool {
        self.entries.values().any(|entry| entry.needs_whole)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn held_blocks(&self) -> u64 {
        self.entries.values().map(|entry| entry.head.held_blocks).sum()
    }

    /// Current generation of each worker, by number.
    pub(super) fn generations(&self) -> BTreeMap<u32, u32> {
        self.entries.values().map(|entry| (entry.number, entry.head.generation)).collect()
    }

    /// A number that is not in use. There are far fewer workers than numbers.
    pub(super) fn free_number(&mut self) -> u32 {
        while self.numbers.contains(&self.next) {
            self.next = self.next.wrapping_add(1);
        }
        self.numbers.insert(self.next);
        self.next
    }

    /// Adds or replaces a worker. Returns false if the worker is stored under another number.
    pub(super) fn put_worker(&mut self, address: WorkerAddress, entry: Entry) -> bool {
        self.numbers.insert(entry.number);
        let before = self.entries.insert(address, entry);
        before.is_none_or(|before| before.number == entry.number)
    }

    pub(super) fn remove(&mut self, address: &WorkerAddress) {
        if let Some(entry) = self.entries.remove(address) {
            self.numbers.remove(&entry.number);
        }
    }

    /// Takes over the state from before the database was reopened. A worker accepts increments only if every
    /// acknowledged image of it is present.
    pub(super) fn adopt_state(&mut self, before: &Self) {
        for (address, entry) in &mut self.entries {
            let known = before.entries.get(address);
            entry.needs_whole = !known.is_some_and(|known| {
                !known.needs_whole
                    && known.number == entry.number
                    && known.head.images <= entry.head.images
            });
        }
    }
}
