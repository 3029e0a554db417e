//! The names that one rank holds: a dense array of records, and tables that find them by name.
//!
//! Dense means that the last record replaces a removed one: no slot is ever free, and a dump can read the array from
//! its beginning to its end. The tables take 4 bytes and a tag per name. They are split into parts by the name's hash,
//! so that growing moves one part at a time.

use hashbrown::HashTable;
use kvasir_proto::types::{BlockName, HeldBlock, LocalHash, Tier};
use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::BuildHasher;
use std::hint::black_box;
use std::mem::size_of;

/// Position in the array of records.
pub(super) type Slot = u32;

/// Records allocated at a time.
const CHUNK_SLOTS: usize = 1 << CHUNK_BITS;
const CHUNK_BITS: u32 = 10;
/// Number of tables over which the names of a rank are spread.
const PARTS: usize = 64;
/// A table shrinks once less than one in this many places is used,
const SHRINK_FACTOR: usize = 8;
/// unless it is this small already.
const SHRUNK_PLACES: usize = 64;
/// This value means as many copies or more: the side table has the number.
const MANY: u8 = u8::MAX;

const HAS_PARENT: u8 = 1;
const HAS_LOCAL: u8 = 2;

/// Record of one name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    name: u64,
    parent: u64,
    local: u64,
    copies: [u8; Tier::COUNT],
    known: u8,
    /// The last dump that has read the record, or is about to; 0 for none.
    pub(super) read_by: u32,
}

const _: () = assert!(size_of::<Record>() == 32);

impl Record {
    /// Creates a record without copies.
    pub(super) fn new(
        name: BlockName,
        parent: Option<BlockName>,
        local: Option<LocalHash>,
    ) -> Self {
        let mut record = Self {
            name: name.0,
            parent: 0,
            local: 0,
            copies: [0; Tier::COUNT],
            known: 0,
            read_by: 0,
        };
        record.link(parent, local);
        record
    }

    pub(super) const fn name(&self) -> BlockName {
        BlockName(self.name)
    }

    pub(super) fn parent(&self) -> Option<BlockName> {
        (self.known & HAS_PARENT != 0).then_some(BlockName(self.parent))
    }

    pub(super) fn local(&self) -> Option<LocalHash> {
        (self.known & HAS_LOCAL != 0).then_some(LocalHash(self.local))
    }

    /// Sets parent and local hash.
    pub(super) fn link(&mut self, parent: Option<BlockName>, local: Option<LocalHash>) {
        self.parent = parent.map_or(0, |name| name.0);
        self.local = local.map_or(0, |hash| hash.0);
        self.known = if parent.is_some() { HAS_PARENT } else { 0 };
        self.known |= if local.is_some() { HAS_LOCAL } else { 0 };
    }

    /// Whether the name is held, by tier.
    pub(super) fn tiers(&self) -> [bool; Tier::COUNT] {
        self.copies.map(|copies| copies > 0)
    }

    fn is_held(&self) -> bool {
        self.copies != [0; Tier::COUNT]
    }
}

/// The names of one rank.
#[derive(Debug)]
pub(super) struct Names {
    chunks: Vec<Vec<Record>>,
    len: usize,
    parts: Vec<HashTable<Slot>>,
    /// Number of copies, for names with at least [`MANY`].
    many: FxHashMap<(BlockName, Tier), u32>,
}

fn hash(name: BlockName) -> u64 {
    FxBuildHasher.hash_one(name.0)
}

/// The part of a name. Uses bits of the hash that the tables use neither for the place nor for the tag.
fn part(hash: u64) -> usize {
    usize::from(hash.to_le_bytes()[5]) % PARTS
}

fn at(chunks: &[Vec<Record>], slot: usize) -> Option<&Record> {
    chunks.get(slot >> CHUNK_BITS)?.get(slot % CHUNK_SLOTS)
}

fn hash_at(chunks: &[Vec<Record>], slot: Slot) -> u64 {
    // Tables contain only slots of the array.
    at(chunks, slot as usize).map_or(0, |record| hash(record.name()))
}

impl Names {
    pub(super) fn new() -> Self {
        let parts = (0..PARTS).map(|_| HashTable::new()).collect();
        Self { chunks: Vec::new(), len: 0, parts, many: FxHashMap::default() }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> usize {
        let records = self.chunks.len() * CHUNK_SLOTS * size_of::<Record>();
        let chunks = self.chunks.capacity() * size_of::<Vec<Record>>();
        let parts: usize = self.parts.iter().map(HashTable::allocation_size).sum();
        let many = self.many.capacity() * (size_of::<((BlockName, Tier), u32)>() + 1);
        size_of::<Self>() + PARTS * size_of::<HashTable<Slot>>() + records + chunks + parts + many
    }

    pub(super) fn at(&self, slot: usize) -> Option<&Record> {
        at(&self.chunks, slot)
    }

    pub(super) fn at_mut(&mut self, slot: usize) -> Option<&mut Record> {
        self.chunks.get_mut(slot >> CHUNK_BITS)?.get_mut(slot % CHUNK_SLOTS)
    }

    /// Slot of a name.
    pub(super) fn find(&self, name: BlockName) -> Option<usize> {
        let hash = hash(name);
        let is_it = |slot: &Slot| {
            at(&self.chunks, *slot as usize).is_some_and(|record| record.name() == name)
        };
        self.parts.get(part(hash))?.find(hash, is_it).map(|slot| *slot as usize)
    }

    /// Prefetches the cache lines of names that are needed soon: independent lookups load them in parallel.
    pub(super) fn read_ahead(&self, names: impl Iterator<Item = BlockName>) {
        for name in names {
            black_box(self.find(name));
        }
    }

    /// Prefetches the last `count` records, which replace removed ones.
    pub(super) fn read_ahead_last(&self, count: usize) {
        let last = self.len.saturating_sub(count)..self.len;
        self.read_ahead(last.filter_map(|slot| self.at(slot).map(Record::name)));
    }

    /// Appends a record for a new name, and returns its slot. The name counts as held once it has a copy.
    pub(super) fn insert(&mut self, record: Record) -> usize {
        debug_assert!(self.find(record.name()).is_none(), "{:?} twice", record.name());
        let slot = self.len;
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK_SLOTS => chunk.push(record),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK_SLOTS);
                chunk.push(record);
                self.chunks.push(chunk);
            }
        }
        self.len += 1;
        let hash = hash(record.name());
        let chunks = &self.chunks;
        if let (Some(part), Ok(slot)) = (self.parts.get_mut(part(hash)), Slot::try_from(slot)) {
            part.insert_unique(hash, slot, |&slot| hash_at(chunks, slot));
        }
        slot
    }

    /// Removes the record at `slot`, and moves the last record there. Returns whether another record is at `slot` now.
    pub(super) fn remove(&mut self, slot: usize) -> bool {
        let Some(&gone) = self.at(slot) else { return false };
        self.forget(gone.name(), slot);
        let Some(last) = self.pop() else { return false };
        if last.name() == gone.name() {
            return false;
        }
        let hash = hash(last.name());
        let from = self.len;
        if let (Some(part), Ok(to)) = (self.parts.get_mut(part(hash)), Slot::try_from(slot))
            && let Some(entry) = part.find_mut(hash, |&slot| slot as usize == from)
        {
            *entry = to;
        }
        if let Some(hole) = self.at_mut(slot) {
            *hole = last;
        }
        true
    }

    /// Removes a name from the lookup table, and shrinks the table if it is mostly empty.
    fn forget(&mut self, name: BlockName, slot: usize) {
        let hash = hash(name);
        let chunks = &self.chunks;
        let Some(part) = self.parts.get_mut(part(hash)) else { return };
        if let Ok(entry) = part.find_entry(hash, |&at| at as usize == slot) {
            entry.remove();
        }
        let len = part.len();
        let places = part.capacity();
        if places > SHRUNK_PLACES && len < places / SHRINK_FACTOR {
            part.shrink_to(len * 2, |&slot| hash_at(chunks, slot));
        }
    }

    /// Removes the last record, and its chunk if it is empty then.
    fn pop(&mut self) -> Option<Record> {
        let chunk = self.chunks.last_mut()?;
        let last = chunk.pop()?;
        if chunk.is_empty() {
            self.chunks.pop();
        }
        self.len -= 1;
        Some(last)
    }

    pub(super) fn copies(&self, record: &Record, tier: Tier) -> u32 {
        match record.copies.get(tier.index()) {
            Some(&MANY) => self.many.get(&(record.name(), tier)).copied().unwrap_or(MANY.into()),
            Some(&few) => few.into(),
            None => 0,
        }
    }

    /// Sets the copies of the record at `slot` in one tier. Returns whether its name is still held in any tier.
    pub(super) fn set_copies(&mut self, slot: usize, tier: Tier, copies: u32) -> bool {
        let few = u8::try_from(copies).unwrap_or(MANY);
        let Some(record) = self.at_mut(slot) else { return false };
        let name = record.name();
        let mut before = 0;
        if let Some(at) = record.copies.get_mut(tier.index()) {
            before = std::mem::replace(at, few);
        }
        let held = record.is_held();
        if few == MANY {
            self.many.insert((name, tier), copies);
        } else if before == MANY {
            self.many.remove(&(name, tier));
        }
        held
    }

    /// State of a record.
    pub(super) fn held(&self, record: &Record) -> HeldBlock {
        HeldBlock {
            name: record.name(),
            parent: record.parent(),
            local: record.local(),
            copies: Tier::ALL.map(|tier| self.copies(record, tier)),
        }
    }
}
