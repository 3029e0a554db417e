//! Tables from hashes to numbers of our own: names to slots, branches to segments.
//!
//! The numbers lie in sub-tables, each for a range of hashes and sorted by hash, with gaps: a hash
//! says where in the range it should be, and it is there or a little further on. So a search reads
//! one or two lines of memory, looking for what is not there ends as soon as a larger hash is met,
//! and growing, shrinking and splitting a sub-table is copying it in order. 32 bits of the hash are
//! kept beside each number: what is moved is not looked at.
//!
//! A step never moves more than one sub-table. 8 bytes a number, 68 to 85 % full.
#![expect(clippy::indexing_slicing, reason = "places are computed by this file only")]

use crate::table::index_u32;

/// Places of a sub-table before it is split in two.
const SUB_PLACES_MAX: usize = 1_792;
const SUB_PLACES_MIN: usize = 16;
/// Beyond this many bits of directory a sub-table grows instead (hashes that collide on purpose).
const DIRECTORY_BITS_MAX: u32 = 22;
/// Hash and number are all ones, which no number of ours is.
const EMPTY: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Sub {
    /// Hash above number, sorted; the last place stays empty.
    places: Box<[u64]>,
    len: u32,
    /// Leading bits of the hash that all entries share.
    bits: u32,
}

/// Numbers by hash. Several may have the same hash: the caller tells them apart.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// `2^bits` indexes into `subs`; empty while the table is.
    directory: Vec<u32>,
    subs: Vec<Sub>,
    bits: u32,
    len: usize,
    /// Places of all sub-tables.
    places: usize,
}

const fn short(hash: u64) -> u32 {
    (hash >> 32) as u32
}

const fn entry(hash: u32, number: u32) -> u64 {
    (hash as u64) << 32 | number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
const fn number_of(entry: u64) -> u32 {
    entry as u32
}

/// Places for `len` entries, at most 85 % full: 4, 5, 6 or 7 times a power of two, as allocators
/// round.
const fn places_for(len: usize) -> usize {
    let wanted = len * 20 / 17 + 1;
    if wanted <= SUB_PLACES_MIN {
        return SUB_PLACES_MIN;
    }
    let quarter = (wanted.next_power_of_two() / 2) / 4;
    wanted.div_ceil(quarter) * quarter
}

impl Sub {
    /// Where an entry of this hash should be. Behind the last such place there is room for what
    /// does not find its own free.
    fn home(&self, hash: u32) -> usize {
        let places = self.places.len() - self.places.len() / 32 - 2;
        let position = u64::from(hash.checked_shl(self.bits).unwrap_or(0));
        usize::try_from((position * places as u64) >> 32).unwrap_or(0)
    }

    /// First place from the hash's own on that is empty or has no smaller hash.
    fn seek(&self, hash: u32) -> usize {
        let mut at = self.home(hash);
        while short(self.places[at]) < hash {
            at += 1;
        }
        at
    }

    /// Spreads sorted entries over `places`, or more if they do not fit.
    fn spread(bits: u32, entries: &[u64], places: usize) -> Self {
        let len = index_u32(entries.len());
        let mut sub = Self { places: vec![EMPTY; places].into_boxed_slice(), len, bits };
        let mut free = 0;
        for &entry in entries {
            let at = sub.home(short(entry)).max(free);
            if at + 1 >= places {
                return Self::spread(bits, entries, places_for(places));
            }
            sub.places[at] = entry;
            free = at + 1;
        }
        sub
    }

    fn entries(&self) -> impl Iterator<Item = u64> {
        self.places.iter().copied().filter(|&entry| entry != EMPTY)
    }

    /// Inserts an entry, if there is room for it near its place.
    fn insert(&mut self, entry: u64) -> bool {
        if (self.len as usize + 1) * 20 > self.places.len() * 17 {
            return false;
        }
        let at = self.seek(short(entry));
        let free = self.places[at..].iter().position(|&entry| entry == EMPTY);
        let free = at + free.unwrap_or(0);
        if free + 1 == self.places.len() {
            return false;
        }
        self.places.copy_within(at..free, at + 1);
        self.places[at] = entry;
        self.len += 1;
        true
    }

    fn remove(&mut self, entry: u64) -> bool {
        let mut at = self.seek(short(entry));
        while self.places[at] != entry {
            if short(self.places[at]) != short(entry) || self.places[at] == EMPTY {
                return false;
            }
            at += 1;
        }
        let stays = |&next: &usize| {
            let entry = self.places[next];
            entry == EMPTY || self.home(short(entry)) == next
        };
        let end = (at + 1..).find(stays).unwrap_or(at + 1);
        self.places.copy_within(at + 1..end, at);
        self.places[end - 1] = EMPTY;
        self.len -= 1;
        true
    }
}

impl Numbers {
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    fn sub(&self, hash: u32) -> Option<usize> {
        let slot = hash.checked_shr(32 - self.bits).unwrap_or(0);
        self.directory.get(slot as usize).map(|&sub| sub as usize)
    }

    /// The number with this hash that the caller recognises.
    pub(crate) fn find(&self, hash: u64, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = short(hash);
        let sub = &self.subs[self.sub(hash)?];
        if sub.places.is_empty() {
            return None;
        }
        let places = &sub.places[sub.seek(hash)..];
        let same = places.iter().take_while(|&&entry| short(entry) == hash && entry != EMPTY);
        same.map(|&entry| number_of(entry)).find(|&number| is_it(number))
    }

    /// Reads where a hash should be. Done for several hashes in a row, what [`Numbers::find`] and
    /// the others will need is fetched from memory at the same time.
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        let hash = short(hash);
        let sub = self.sub(hash).and_then(|sub| self.subs.get(sub));
        sub.and_then(|sub| sub.places.get(sub.home(hash)).copied()).unwrap_or(EMPTY)
    }

    /// Adds a number.
    pub(crate) fn insert(&mut self, hash: u64, number: u32) {
        let hash = short(hash);
        if self.directory.is_empty() {
            self.directory.push(0);
            self.subs.push(Sub::default());
        }
        while let Some(sub) = self.sub(hash) {
            if self.subs[sub].insert(entry(hash, number)) {
                break;
            }
            self.make_room(sub, hash);
        }
        self.len += 1;
    }

    /// Lets the sub-table of a hash grow, or splits it.
    fn make_room(&mut self, sub: usize, hash: u32) {
        let Sub { places, len, bits } = std::mem::take(&mut self.subs[sub]);
        self.places -= places.len();
        let entries: Vec<u64> = places.iter().copied().filter(|&at| at != EMPTY).collect();
        let grown = places_for((len as usize + 1).max(places.len() * 17 / 20 + 1));
        drop(places);
        let splits = grown > SUB_PLACES_MAX && bits < DIRECTORY_BITS_MAX;
        if !splits {
            self.put(sub, Sub::spread(bits, &entries, grown));
            return;
        }
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&sub| [sub, sub]).collect();
            self.bits += 1;
        }
        let is_low = |&entry: &u64| short(entry) >> (31 - bits) & 1 == 0;
        let (low, high) = entries.split_at(entries.partition_point(is_low));
        let above = self.subs.len();
        for (at, half) in [(sub, low), (above, high)] {
            let half = Sub::spread(bits + 1, half, places_for(half.len()));
            self.put(at, half);
        }
        // The sub-table's part of the directory; its upper half is the new one's.
        let len = 1 << (self.bits - bits);
        let first = (hash >> (32 - self.bits)) as usize / len * len;
        self.directory[first + len / 2..first + len].fill(index_u32(above));
    }

    fn put(&mut self, at: usize, sub: Sub) {
        self.places += sub.places.len();
        match self.subs.get_mut(at) {
            Some(old) => *old = sub,
            None => self.subs.push(sub),
        }
    }

    /// Takes a number out; false if it is not there with this hash.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let hash = short(hash);
        let Some(at) = self.sub(hash) else {
            return false;
        };
        let sub = &mut self.subs[at];
        if sub.places.is_empty() || !sub.remove(entry(hash, number)) {
            return false;
        }
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
            return true;
        }
        if sub.len == 0 || (sub.len as usize) < sub.places.len() / 3 {
            let entries: Vec<u64> = sub.entries().collect();
            let places = if entries.is_empty() { 0 } else { places_for(entries.len()) };
            if places < sub.places.len() {
                self.places -= sub.places.len();
                let smaller = Sub::spread(sub.bits, &entries, places);
                self.put(at, smaller);
            }
        }
        true
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        self.places * size_of::<u64>()
            + self.subs.capacity() * size_of::<Sub>()
            + self.directory.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::mix;
    use std::collections::BTreeSet;

    fn check(hash: impl Fn(u32) -> u64, numbers: u32) {
        let mut table = Numbers::default();
        let mut model = BTreeSet::new();
        for step in 0..numbers * 4 {
            let at = mix(u64::from(step)) as u32;
            let (number, adds) =
                (at % numbers, (at >> 20) % 8 < if step < numbers * 2 { 6 } else { 2 });
            if adds && model.insert(number) {
                table.insert(hash(number), number);
            } else if !adds {
                assert_eq!(table.remove(hash(number), number), model.remove(&number), "{number}");
            }
        }
        assert_eq!(table.len(), model.len());
        let all = table.subs.iter().flat_map(Sub::entries).map(number_of);
        assert_eq!(all.collect::<BTreeSet<_>>(), model);
        for number in 0..numbers {
            let found = table.find(hash(number), |at| at == number);
            assert_eq!(found, model.get(&number).copied());
        }
        let places: usize = table.subs.iter().map(|sub| sub.places.len()).sum();
        assert_eq!(places, table.places);
        for number in model {
            assert!(table.remove(hash(number), number));
        }
        assert_eq!((table.len(), table.bytes()), (0, 0), "nothing remains");
    }

    #[test]
    fn numbers_are_found_until_they_are_removed() {
        check(|number| mix(u64::from(number)), 1);
        check(|number| mix(u64::from(number)), 50);
        check(|number| mix(u64::from(number)), 30_000);
    }

    #[test]
    fn hashes_that_crowd_lose_nothing() {
        // All in one corner of the directory, all at its end, many alike, all alike.
        check(|number| mix(u64::from(number)) >> 12, 6_000);
        check(|number| !(mix(u64::from(number)) >> 20), 6_000);
        check(|number| mix(u64::from(number) / 64), 6_000);
        check(|number| u64::from(number), 1_500);
        check(|number| !u64::from(number), 1_500);
    }

    #[test]
    fn tables_stay_dense() {
        let mut table = Numbers::default();
        for number in 0..200_000 {
            table.insert(mix(u64::from(number)), number);
            if number > 1_000 && number % 1_000 == 0 {
                let per_number = table.bytes() as f64 / f64::from(number);
                assert!(per_number < 12.5, "{per_number} bytes at {number}");
            }
        }
    }
}
