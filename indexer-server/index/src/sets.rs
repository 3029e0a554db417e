//! Interned sets of holders. Equal sets have equal ids, so a walk compares one number per tier and segment. A
//! set's bits are stored once, however many segments use it. The empty set and sets of one holder are encoded
//! in their id and need no memory.
#![expect(clippy::indexing_slicing, reason = "set numbers are handed out by this file only")]

use crate::table::{SplitTable, index_u32, mix};
use kvasir_proto::types::Tier;
use smallvec::SmallVec;

/// Dense index of a rank within an index.
pub(crate) type HolderIndex = u32;

/// One set id per tier.
pub(crate) type TierSets = [SetId; Tier::COUNT];

/// An interned set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SetId(u32);

const SINGLE: u32 = 1 << 31;

impl SetId {
    pub(crate) const EMPTY: Self = Self(0);

    /// The set of one holder.
    pub(crate) const fn single(holder: HolderIndex) -> Self {
        Self(SINGLE | holder)
    }

    const fn as_single(self) -> Option<HolderIndex> {
        if self.0 & SINGLE == 0 { None } else { Some(self.0 & !SINGLE) }
    }

    /// The id as a number, for validation.
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    const fn entry(self) -> usize {
        self.0 as usize - 1
    }
}

/// Bits of a set, lowest holder first, without trailing zero words.
type Words = SmallVec<[u64; 2]>;

#[derive(Debug)]
struct Entry {
    words: Words,
    references: u32,
}

/// All sets of two or more holders.
#[derive(Debug, Default)]
pub(crate) struct Sets {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Entry numbers, by the hash of their words.
    interned: SplitTable<u32>,
    /// Words of sets that are too large to be stored in their entries.
    spilled_words: usize,
}

fn hash(words: &[u64]) -> u64 {
    words.iter().fold(0, |hash, &word| mix(hash ^ word))
}

/// Words allocated outside of the set's entry.
fn spilled(words: &Words) -> usize {
    if words.spilled() { words.capacity() } else { 0 }
}

const fn position(holder: HolderIndex) -> (usize, u64) {
    (holder as usize / 64, 1 << (holder % 64))
}

impl Sets {
    /// Number of used sets of two or more holders.
    pub(crate) fn used(&self) -> usize {
        self.interned.len()
    }

    pub(crate) fn contains(&self, set: SetId, holder: HolderIndex) -> bool {
        if set == SetId::EMPTY {
            return false;
        }
        if let Some(single) = set.as_single() {
            return single == holder;
        }
        let (word, bit) = position(holder);
        self.entries[set.entry()].words.get(word).is_some_and(|word| word & bit != 0)
    }

    /// Adds the set's holders to a bitmap, which must be large enough for every holder of the index.
    pub(crate) fn union_into(&self, set: SetId, bitmap: &mut [u64]) {
        if set == SetId::EMPTY {
            return;
        }
        if let Some(single) = set.as_single() {
            let (word, bit) = position(single);
            bitmap[word] |= bit;
            return;
        }
        for (into, word) in bitmap.iter_mut().zip(&self.entries[set.entry()].words) {
            *into |= word;
        }
    }

    /// Number of holders.
    pub(crate) fn len(&self, set: SetId) -> u32 {
        if set == SetId::EMPTY {
            return 0;
        }
        if set.as_single().is_some() {
            return 1;
        }
        self.entries[set.entry()].words.iter().map(|word| word.count_ones()).sum()
    }

    /// Adds a reference to a set.
    pub(crate) fn retain(&mut self, set: SetId) {
        if set != SetId::EMPTY && set.as_single().is_none() {
            self.entries[set.entry()].references += 1;
        }
    }

    /// Removes a reference to a set.
    pub(crate) fn release(&mut self, set: SetId) {
        if set == SetId::EMPTY || set.as_single().is_some() {
            return;
        }
        let entry = &mut self.entries[set.entry()];
        debug_assert!(entry.references > 0, "a released set has users");
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        let words = std::mem::take(&mut entry.words);
        self.spilled_words -= spilled(&words);
        let number = set.0 - 1;
        let entries = &self.entries;
        let of = |at: &u32| hash(&entries[*at as usize].words);
        self.interned.remove(hash(&words), |&at| at == number, of);
        self.free.push(number);
        if self.interned.is_empty() {
            *self = Self::default();
        }
    }

    /// The set `set` plus `holder`, retained.
    pub(crate) fn with(&mut self, set: SetId, holder: HolderIndex) -> SetId {
        if set == SetId::EMPTY {
            return SetId::single(holder);
        }
        if self.contains(set, holder) {
            self.retain(set);
            return set;
        }
        let mut words = self.words(set);
        let (word, bit) = position(holder);
        if words.len() <= word {
            words.resize(word + 1, 0);
        }
        words[word] |= bit;
        self.intern(words)
    }

    /// The set `set` minus `holder`, retained.
    pub(crate) fn without(&mut self, set: SetId, holder: HolderIndex) -> SetId {
        if !self.contains(set, holder) {
            self.retain(set);
            return set;
        }
        let mut words = self.words(set);
        let (word, bit) = position(holder);
        words[word] &= !bit;
        while words.last() == Some(&0) {
            words.pop();
        }
        self.intern(words)
    }

    /// The bits of a set.
    fn words(&self, set: SetId) -> Words {
        match set.as_single() {
            Some(single) => {
                let (word, bit) = position(single);
                let mut words = Words::from_elem(0, word + 1);
                words[word] = bit;
                words
            }
            None => self.entries[set.entry()].words.clone(),
        }
    }

    /// The id of a set with these bits: a single holder needs no entry, and equal sets share one.
    fn intern(&mut self, words: Words) -> SetId {
        let holders: u32 = words.iter().map(|word| word.count_ones()).sum();
        if let (Some(&last), true) = (words.last(), holders == 1) {
            return SetId::single(index_u32((words.len() - 1) * 64) + last.trailing_zeros());
        }
        if words.is_empty() {
            return SetId::EMPTY;
        }
        let hashed = hash(&words);
        let entries = &self.entries;
        if let Some(&number) = self.interned.find(hashed, |&at| entries[at as usize].words == words)
        {
            self.entries[number as usize].references += 1;
            return SetId(number + 1);
        }
        self.spilled_words += spilled(&words);
        let entry = Entry { words, references: 1 };
        let number = if let Some(number) = self.free.pop() {
            self.entries[number as usize] = entry;
            number
        } else {
            self.entries.push(entry);
            index_u32(self.entries.len() - 1)
        };
        let entries = &self.entries;
        self.interned.insert(hashed, number, |&at| hash(&entries[at as usize].words));
        SetId(number + 1)
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        self.spilled_words * size_of::<u64>()
            + self.entries.capacity() * size_of::<Entry>()
            + self.free.capacity() * size_of::<u32>()
            + self.interned.bytes()
    }

    /// Whether the running totals equal the sums over the entries.
    pub(crate) fn is_counted(&self) -> bool {
        let each = self.entries.iter().map(|entry| spilled(&entry.words));
        each.sum::<usize>() == self.spilled_words && self.interned.is_counted()
    }

    /// Reference count of each set.
    pub(crate) fn references(&self) -> impl Iterator<Item = (SetId, u32)> + '_ {
        let numbered = self.entries.iter().enumerate();
        numbered
            .filter(|(_, entry)| entry.references > 0)
            .map(|(number, entry)| (SetId(index_u32(number) + 1), entry.references))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_have_equal_ids_and_unused_ones_go() {
        let mut sets = Sets::default();
        let one = sets.with(SetId::EMPTY, 3);
        let two = sets.with(one, 200);
        let other = sets.with(SetId::single(200), 3);
        assert_eq!(two, other);
        assert_eq!(
            (sets.len(two), sets.contains(two, 200), sets.contains(two, 64)),
            (2, true, false)
        );
        assert_eq!(sets.without(two, 200), SetId::single(3));
        assert_eq!(sets.used(), 1);
        sets.release(two);
        sets.release(other);
        assert_eq!((sets.used(), sets.bytes()), (0, 0));
    }
}
