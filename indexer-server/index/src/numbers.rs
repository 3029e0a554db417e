//! Tables from hashes to numbers of our own: names to slots, branches to segments.
//!
//! The numbers lie in sub-tables, each for a range of hashes and sorted by hash, with gaps: a hash
//! says where in the range it should be, and it is there or a little further on. So a search reads
//! one or two lines of memory, looking for what is not there ends as soon as a larger hash is met,
//! and growing, shrinking and splitting a sub-table is copying it in order. 32 bits of the hash are
//! kept beside each number: what is moved is not looked at.
//!
//! A step never moves more than one sub-table. 8 bytes a number, half to three quarters full.
#![expect(clippy::indexing_slicing, reason = "places are computed by this file only")]

use crate::table::index_u32;

/// Places of a sub-table before it is split in two.
const SUB_PLACES_MAX: usize = 1_536;
const SUB_PLACES_MIN: usize = 16;
/// Beyond this many bits of directory a sub-table grows instead (hashes that collide on purpose).
const DIRECTORY_BITS_MAX: u32 = 22;
/// Number of an entry that was taken out. Its hash stays, so that the order does.
const GONE: u32 = u32::MAX;
/// Hash and number are all ones, which no entry is.
const EMPTY: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Sub {
    /// Hash above number, sorted; the last place stays empty.
    places: Box<[u64]>,
    len: u32,
    /// Places that are not empty: entries, and what was taken out among them.
    filled: u32,
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

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inserted {
    New,
    Known,
    NoRoom,
}

/// The part of a hash that is kept; never all ones.
const fn short(hash: u64) -> u32 {
    let short = (hash >> 32) as u32;
    if short == u32::MAX { short - 1 } else { short }
}

/// The hash of an entry, and all ones for an empty place.
const fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

const fn entry(hash: u32, number: u32) -> u64 {
    (hash as u64) << 32 | number as u64
}

#[expect(clippy::cast_possible_truncation, reason = "the lower half is the number")]
const fn number_of(entry: u64) -> u32 {
    entry as u32
}

/// Places for `len` entries, at most three quarters full: a power of two, or half as much again.
const fn places_for(len: usize) -> usize {
    let wanted = len * 4 / 3 + 1;
    if wanted <= SUB_PLACES_MIN {
        return SUB_PLACES_MIN;
    }
    let half = wanted.next_power_of_two() / 4;
    wanted.div_ceil(half) * half
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
        while hash_of(self.places[at]) < hash {
            at += 1;
        }
        at
    }

    /// Spreads sorted entries over `places`, or more if they do not fit.
    fn spread(bits: u32, entries: &[u64], places: usize) -> Self {
        let len = index_u32(entries.len());
        let empty = vec![EMPTY; places].into_boxed_slice();
        let mut sub = Self { places: empty, len, filled: len, bits };
        let mut free = 0;
        for &entry in entries {
            let at = sub.home(hash_of(entry)).max(free);
            if at + 1 >= places {
                return Self::spread(bits, entries, places_for(places));
            }
            sub.places[at] = entry;
            free = at + 1;
        }
        sub
    }

    fn entries(&self) -> impl Iterator<Item = u64> {
        self.places.iter().copied().filter(|&entry| number_of(entry) != GONE)
    }

    /// Inserts an entry unless one of its hash is recognised, or there is no room near its place.
    fn insert(&mut self, entry: u64, is_it: impl Fn(u32) -> bool) -> Inserted {
        if (self.filled as usize + 1) * 4 > self.places.len() * 3 {
            return Inserted::NoRoom;
        }
        let at = self.seek(hash_of(entry));
        let mut free = None;
        let mut next = at;
        loop {
            let there = self.places[next];
            let same = hash_of(there) == hash_of(entry);
            if number_of(there) == GONE {
                free = free.or(Some(next));
                if there == EMPTY || !same {
                    break;
                }
            } else if same && is_it(number_of(there)) {
                return Inserted::Known;
            } else if !same && free.is_some() {
                break;
            }
            next += 1;
        }
        let free = free.unwrap_or(next);
        let was_empty = self.places[free] == EMPTY;
        if was_empty && free + 1 == self.places.len() {
            return Inserted::NoRoom;
        }
        self.places.copy_within(at..free, at + 1);
        self.places[at] = entry;
        self.len += 1;
        self.filled += u32::from(was_empty);
        Inserted::New
    }

    fn remove(&mut self, entry: u64) -> bool {
        let mut at = self.seek(hash_of(entry));
        while self.places[at] != entry {
            if hash_of(self.places[at]) != hash_of(entry) {
                return false;
            }
            at += 1;
        }
        self.len -= 1;
        self.places[at] |= u64::from(GONE);
        // What nothing follows needs no mark.
        let is_mark = |entry: u64| number_of(entry) == GONE && entry != EMPTY;
        while self.places[at + 1] == EMPTY && is_mark(self.places[at]) {
            self.places[at] = EMPTY;
            self.filled -= 1;
            at = at.saturating_sub(1);
        }
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
        let same = places.iter().take_while(|&&entry| hash_of(entry) == hash);
        let mut numbers = same.map(|&entry| number_of(entry));
        numbers.find(|&number| number != GONE && is_it(number))
    }

    /// Reads where a hash should be. Done for several hashes in a row, what [`Numbers::find`] and
    /// the others will need is fetched from memory at the same time.
    pub(crate) fn touch(&self, hash: u64) -> u64 {
        let hash = short(hash);
        let sub = self.sub(hash).and_then(|sub| self.subs.get(sub));
        let sub = sub.filter(|sub| !sub.places.is_empty());
        sub.and_then(|sub| sub.places.get(sub.home(hash)).copied()).unwrap_or(EMPTY)
    }

    /// Adds a number, unless the caller recognises one that is there; false then.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, is_it: impl Fn(u32) -> bool) -> bool {
        let hash = short(hash);
        if self.directory.is_empty() {
            self.directory.push(0);
            self.subs.push(Sub::default());
        }
        while let Some(sub) = self.sub(hash) {
            match self.subs[sub].insert(entry(hash, number), &is_it) {
                Inserted::New => {
                    self.len += 1;
                    return true;
                }
                Inserted::Known => return false,
                Inserted::NoRoom => self.make_room(sub, hash),
            }
        }
        false
    }

    /// Lets the sub-table of a hash grow, or splits it.
    fn make_room(&mut self, sub: usize, hash: u32) {
        let crowded = std::mem::take(&mut self.subs[sub]);
        let (bits, places, len) = (crowded.bits, crowded.places.len(), crowded.len as usize);
        let is_marked = crowded.filled > crowded.len;
        self.places -= places;
        let entries: Vec<u64> = crowded.entries().collect();
        drop(crowded);
        // Many were taken out: there is room once their marks are gone. Were this not so up to
        // nearly the size at which tables grow, coming and going would grow them.
        let same = is_marked && len * 5 < places * 3;
        let grown = if same { places } else { places_for((len + 1).max(places * 3 / 4 + 1)) };
        let splits = grown > SUB_PLACES_MAX && bits < DIRECTORY_BITS_MAX;
        if !splits {
            self.put(sub, Sub::spread(bits, &entries, grown));
            return;
        }
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&sub| [sub, sub]).collect();
            self.bits += 1;
        }
        let is_low = |&entry: &u64| hash_of(entry) >> (31 - bits) & 1 == 0;
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
        if sub.len == 0 || (sub.len as usize) < sub.places.len() / 4 {
            let entries: Vec<u64> = sub.entries().collect();
            let places = if entries.is_empty() { 0 } else { places_for(entries.len() * 3 / 2) };
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
            let at = short(mix(u64::from(step)));
            let (number, adds) =
                (at % numbers, (at >> 20) % 8 < if step < numbers * 2 { 6 } else { 2 });
            if adds && model.insert(number) {
                assert!(table.insert(hash(number), number, |at| at == number));
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
        check(u64::from, 1_500);
        check(|number| !u64::from(number), 1_500);
    }

    #[test]
    fn an_empty_sub_table_can_be_touched() {
        let mut table = Numbers::default();
        let hash = |number: u32| mix(u64::from(number));
        (0..8_000).for_each(|number| assert!(table.insert(hash(number), number, |_| false)));
        (1..8_000).for_each(|number| assert!(table.remove(hash(number), number)));
        let there = (0..8_000).filter(|&number| table.touch(hash(number)) != EMPTY);
        assert!(there.count() >= 1, "the one that is left");
    }

    #[test]
    fn coming_and_going_at_a_steady_size_does_not_grow_tables() {
        const LIVE: u32 = 100_000;
        let hash = |number: u32| mix(u64::from(number));
        let mut table = Numbers::default();
        (0..LIVE).for_each(|number| assert!(table.insert(hash(number), number, |_| false)));
        let mut after = Vec::new();
        for turnover in 0..20 {
            for number in turnover * LIVE..(turnover + 1) * LIVE {
                assert!(table.remove(hash(number), number));
                assert!(table.insert(hash(number + LIVE), number + LIVE, |_| false));
            }
            after.push(table.bytes());
        }
        let (early, late) = (after[2], after[19]);
        assert!(late * 50 <= early * 51, "{early} bytes early, {late} late");
        let per_number = late as f64 / f64::from(LIVE);
        assert!(per_number < 16.0, "{per_number} bytes a number");
    }

    #[test]
    fn tables_stay_dense() {
        let mut table = Numbers::default();
        for number in 0..200_000 {
            table.insert(mix(u64::from(number)), number, |_| false);
            if number > 1_000 && number % 1_000 == 0 {
                let per_number = table.bytes() as f64 / f64::from(number);
                assert!(per_number < 16.5, "{per_number} bytes at {number}");
            }
        }
    }
}
