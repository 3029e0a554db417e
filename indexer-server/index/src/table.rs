//! A hash table that grows and shrinks in bounded steps: extendible hashing with small sub-tables. An
//! insertion moves the entries of at most one sub-table.

use hashbrown::HashTable;

/// Maximum entries of a sub-table before it is split in two: 7/8 of 2,048 buckets.
const SUB_ENTRIES_MAX: usize = 1_792;
/// Maximum number of directory bits; beyond it a sub-table grows instead.
const DIRECTORY_BITS_MAX: u32 = 22;
/// Sub-tables also grow instead if the directory has more entries than these, plus one per [`PLACE_ENTRIES`]
/// entries of the table. Deliberately colliding hashes would otherwise fill the directory without use.
const DIRECTORY_FREE: usize = 16;
const PLACE_ENTRIES: usize = 64;

/// Mixes 64 bits, because names and local hashes may be small or sequential numbers.
pub(crate) const fn mix(value: u64) -> u64 {
    let product = (value ^ 0x9e37_79b9_7f4a_7c15) as u128 * 0xd6e8_feb8_6659_fd93_u128;
    #[expect(clippy::cast_possible_truncation, reason = "both halves are folded together")]
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[derive(Debug)]
struct Sub<T> {
    entries: HashTable<T>,
    /// Number of hash bits that all entries share.
    bits: u32,
}

/// The table. The caller provides hashes and equality, as with [`HashTable`].
#[derive(Debug)]
pub(crate) struct SplitTable<T> {
    /// `2^bits` indexes into `subs`; empty if the table is empty.
    directory: Vec<u32>,
    subs: Vec<Sub<T>>,
    bits: u32,
    len: usize,
    /// Bytes that the sub-tables have allocated for entries.
    allocated: usize,
}

impl<T> Default for SplitTable<T> {
    fn default() -> Self {
        Self { directory: Vec::new(), subs: Vec::new(), bits: 0, len: 0, allocated: 0 }
    }
}

#[expect(clippy::indexing_slicing, reason = "the directory holds indexes of subs")]
impl<T> SplitTable<T> {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Directory slot of `hash`. The low bits place an entry inside a sub-table and the highest
    /// seven tag it there, so the directory uses bits from the middle.
    const fn slot(&self, hash: u64) -> usize {
        (hash >> 32) as usize & ((1 << self.bits) - 1)
    }

    fn sub(&self, hash: u64) -> Option<usize> {
        self.directory.get(self.slot(hash)).map(|&sub| sub as usize)
    }

    pub(crate) fn find(&self, hash: u64, eq: impl FnMut(&T) -> bool) -> Option<&T> {
        self.subs[self.sub(hash)?].entries.find(hash, eq)
    }

    pub(crate) fn find_mut(&mut self, hash: u64, eq: impl FnMut(&T) -> bool) -> Option<&mut T> {
        let sub = self.sub(hash)?;
        self.subs[sub].entries.find_mut(hash, eq)
    }

    /// Adds an entry, which must not exist yet.
    pub(crate) fn insert(&mut self, hash: u64, value: T, hasher: impl Fn(&T) -> u64) {
        if self.directory.is_empty() {
            self.subs.push(Sub { entries: HashTable::new(), bits: 0 });
            self.directory.push(0);
        }
        let mut sub = self.directory[self.slot(hash)] as usize;
        while self.subs[sub].entries.len() >= SUB_ENTRIES_MAX && self.split(hash, &hasher) {
            sub = self.directory[self.slot(hash)] as usize;
        }
        let entries = &mut self.subs[sub].entries;
        let before = entries.allocation_size();
        entries.insert_unique(hash, value, hasher);
        let after = entries.allocation_size();
        self.allocated = self.allocated - before + after;
        self.len += 1;
    }

    /// Splits the sub-table of `hash` by its next bit. Returns `false` if the directory has reached its
    /// limit.
    fn split(&mut self, hash: u64, hasher: &impl Fn(&T) -> u64) -> bool {
        let sub = self.directory[self.slot(hash)] as usize;
        let bit = self.subs[sub].bits;
        if bit == self.bits {
            let places_max = DIRECTORY_FREE + self.len / PLACE_ENTRIES;
            if self.bits == DIRECTORY_BITS_MAX || self.directory.len() > places_max {
                return false;
            }
            self.directory.extend_from_within(..);
            self.bits += 1;
        }
        let goes_up = |hash: u64| hash >> (32 + bit) & 1 == 1;
        let half = SUB_ENTRIES_MAX / 2;
        let mut lower = HashTable::with_capacity(half);
        let mut upper = HashTable::with_capacity(half);
        let entries = std::mem::take(&mut self.subs[sub].entries);
        self.allocated -= entries.allocation_size();
        for value in entries {
            let hash = hasher(&value);
            let side = if goes_up(hash) { &mut upper } else { &mut lower };
            side.insert_unique(hash, value, hasher);
        }
        self.allocated += lower.allocation_size() + upper.allocation_size();
        self.subs[sub] = Sub { entries: lower, bits: bit + 1 };
        let above = index_u32(self.subs.len());
        self.subs.push(Sub { entries: upper, bits: bit + 1 });
        let first = self.slot(hash) & ((1 << bit) - 1) | 1 << bit;
        for target in self.directory[first..].iter_mut().step_by(2 << bit) {
            *target = above;
        }
        true
    }

    pub(crate) fn remove(
        &mut self,
        hash: u64,
        eq: impl FnMut(&T) -> bool,
        hasher: impl Fn(&T) -> u64,
    ) -> Option<T> {
        let sub = self.sub(hash)?;
        let entries = &mut self.subs[sub].entries;
        let before = entries.allocation_size();
        let (value, _) = entries.find_entry(hash, eq).ok()?.remove();
        let len = entries.len();
        let capacity = entries.capacity();
        if len == 0 {
            *entries = HashTable::new();
        } else if len * 8 < capacity {
            entries.shrink_to(len * 2, hasher);
        }
        let after = entries.allocation_size();
        self.allocated = self.allocated - before + after;
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
        }
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.subs.iter().flat_map(|sub| sub.entries.iter())
    }

    /// Entries of one sub-table; `None` after the last. Iterating the numbers from 0 visits every entry that
    /// stays in the table at least once, even if others are added and removed meanwhile.
    pub(crate) fn part(&self, number: usize) -> Option<impl Iterator<Item = &T>> {
        self.subs.get(number).map(|sub| sub.entries.iter())
    }

    /// Bytes allocated, without memory that entries own.
    pub(crate) const fn bytes(&self) -> usize {
        self.allocated
            + self.subs.capacity() * size_of::<Sub<T>>()
            + self.directory.capacity() * size_of::<u32>()
    }

    /// Whether the running total equals the sum over the sub-tables.
    pub(crate) fn is_counted(&self) -> bool {
        let each = self.subs.iter().map(|sub| sub.entries.allocation_size());
        each.sum::<usize>() == self.allocated
    }
}

/// A table of (key, value) pairs with unique keys.
#[derive(Debug)]
pub(crate) struct SplitMap<K, V>(SplitTable<(K, V)>);

impl<K, V> Default for SplitMap<K, V> {
    fn default() -> Self {
        Self(SplitTable::default())
    }
}

/// A key of a [`SplitMap`].
pub(crate) trait MapKey: Copy + Eq {
    /// The key's 64 bits, before mixing.
    fn bits(self) -> u64;
}

impl MapKey for u32 {
    fn bits(self) -> u64 {
        u64::from(self)
    }
}

impl MapKey for u64 {
    fn bits(self) -> u64 {
        self
    }
}

impl MapKey for kvasir_proto::types::BlockName {
    fn bits(self) -> u64 {
        self.0
    }
}

impl<K: MapKey, V> SplitMap<K, V> {
    pub(crate) const fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.0.find(mix(key.bits()), |(at, _)| *at == key).map(|(_, value)| value)
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.0.find_mut(mix(key.bits()), |(at, _)| *at == key).map(|(_, value)| value)
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.get(key).is_some()
    }

    /// Adds a key, which must not exist yet.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        debug_assert!(!self.contains(key), "keys are unique");
        self.0.insert(mix(key.bits()), (key, value), |(key, _)| mix(key.bits()));
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let removed =
            self.0.remove(mix(key.bits()), |(at, _)| *at == key, |(key, _)| mix(key.bits()));
        removed.map(|(_, value)| value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(K, V)> {
        self.0.iter()
    }

    pub(crate) fn part(&self, number: usize) -> Option<impl Iterator<Item = &(K, V)>> {
        self.0.part(number)
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.0.bytes()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.0.is_counted()
    }
}

impl<K: MapKey, V: Default> SplitMap<K, V> {
    pub(crate) fn get_or_default(&mut self, key: K) -> &mut V {
        if !self.contains(key) {
            self.insert(key, V::default());
        }
        #[expect(clippy::expect_used, reason = "inserted above")]
        self.get_mut(key).expect("the key is there")
    }
}

/// Converts an index of an internal table to the stored 32 bits.
///
/// # Panics
/// Beyond 2^32 entries: over 100 GiB of index, which no configuration reaches.
#[expect(clippy::expect_used, reason = "see Panics")]
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("fewer than 2^32 entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Hashes with the number itself as directory bits, so that a test controls which sub-tables fill up. The
    /// other bits are mixed as usual.
    const fn chosen(number: u64) -> u64 {
        mix(number) & 0xff00_0000_ffff_ffff | (number & 0xff_ffff) << 32
    }

    #[test]
    fn sub_tables_that_fill_unevenly_lose_nothing() {
        let mut table = SplitTable::default();
        let hasher = |&number: &u64| chosen(number);
        // Nearly all in one corner of the directory, then some everywhere.
        let numbers = || (0..20_000_u64).map(|at| at * 64).chain((0..5_000).map(|at| at * 64 + 7));
        for number in numbers() {
            table.insert(chosen(number), number, hasher);
        }
        assert_eq!((table.len(), table.iter().count()), (25_000, 25_000));
        for number in numbers() {
            assert!(table.find(chosen(number), |&at| at == number).is_some(), "{number}");
        }
        let parts = (0..).map_while(|part| table.part(part).map(Iterator::count));
        assert_eq!(parts.sum::<usize>(), 25_000);
        for number in numbers() {
            assert_eq!(table.remove(chosen(number), |&at| at == number, hasher), Some(number));
        }
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }

    #[test]
    fn hashes_that_collide_on_purpose_take_no_large_directory() {
        let mut table = SplitTable::default();
        // All directory bits are equal. An attacker needs seconds to find this many such names.
        let hasher = |&number: &u64| mix(number) & 0xffff_ffff;
        for number in 0..4_000 {
            table.insert(hasher(&number), number, hasher);
        }
        let per_entry = table.bytes() / table.len();
        assert!(per_entry < 64, "{per_entry} bytes for each of {}", table.len());
        for number in 0..4_000 {
            assert!(table.find(hasher(&number), |&at| at == number).is_some(), "{number}");
        }
    }
}
