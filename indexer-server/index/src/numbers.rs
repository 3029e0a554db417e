//! Hash tables with bounded work per operation, from hashes to internal numbers: names to slots, branches to
//! segments.
//!
//! The numbers are in sub-tables, each for a range of hashes. A sub-table consists of lines of 64 bytes, the
//! unit in which memory is read: eight hashes and their numbers. A hash determines the line for its number
//! (linear probing by line). If that line is full, the number is in one of the next lines. A search ends at
//! the first line that is not full, usually the first one it reads. Growing, shrinking and splitting copy a
//! sub-table in order. 32 bits of the hash are stored with each number, so the moved numbers are not
//! dereferenced.
//!
//! An operation moves at most one sub-table. The cost is 8 bytes per number; tables are half to three
//! quarters full.
#![expect(clippy::indexing_slicing, reason = "places are computed by this file only")]

use crate::prefetch::prefetch;
use crate::table::index_u32;
use smallvec::{SmallVec, smallvec};
use std::iter::successors;

/// Entries per line.
const LINE: usize = 8;
/// Maximum number of lines of a sub-table before it is split in two.
const SUB_LINES_MAX: usize = 192;
const SUB_LINES_MIN: usize = 2;
/// Maximum number of directory bits. Beyond it, sub-tables grow instead of splitting (deliberately colliding
/// hashes).
const DIRECTORY_BITS_MAX: u32 = 22;
/// Tombstone: number of an entry that was removed from a full line. The hash stays, so that the line stays
/// full.
const GONE: u32 = u32::MAX;
/// Hash of an empty entry.
const NO_HASH: u32 = u32::MAX;

/// Entries in order of arrival, followed by empty ones. Only a full line has tombstones ([`GONE`]).
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
struct Line {
    hashes: [u32; LINE],
    numbers: [u32; LINE],
}

#[derive(Debug, Default)]
struct Sub {
    /// The last line is never full.
    lines: Box<[Line]>,
    len: u32,
    /// Entries that are not empty: numbers and tombstones.
    filled: u32,
    /// Leading bits of the hash, common to all entries.
    bits: u32,
}

/// Numbers by hash. Several may have the same hash, so the caller compares candidates.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    /// `2^bits` indexes into `subs`; empty if the table is empty.
    directory: Vec<u32>,
    subs: Vec<Sub>,
    bits: u32,
    len: usize,
    /// Total number of lines.
    lines: usize,
}

/// Result of inserting an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Inserted {
    New,
    Known,
    NoRoom,
}

/// The stored part of a hash; never all ones.
const fn short(hash: u64) -> u32 {
    let short = (hash >> 32) as u32;
    if short == u32::MAX { short - 1 } else { short }
}

/// Number of lines for `len` entries, at most three quarters full: a power of two, or 1.5 times one.
const fn lines_for(len: usize) -> usize {
    let wanted = (len * 4 / 3 + 1).div_ceil(LINE);
    if wanted <= SUB_LINES_MIN {
        return SUB_LINES_MIN;
    }
    let half = wanted.next_power_of_two() / 4;
    wanted.div_ceil(half) * half
}

/// Bitmap of the elements equal to `value`. Compilers vectorise this form without intrinsics.
fn equal(values: &[u32; LINE], value: u32) -> u8 {
    const BITS: [u8; LINE] = [1, 2, 4, 8, 16, 32, 64, 128];
    let is_equal = values.map(|at| at == value);
    is_equal
        .iter()
        .zip(BITS)
        .fold(0, |all, (&is_equal, bit)| if is_equal { all | bit } else { all })
}

/// Indexes of the set bits, ascending.
fn places(bits: u8) -> impl Iterator<Item = usize> {
    let rest = successors(Some(bits), |&bits| Some(bits & bits.wrapping_sub(1)));
    rest.take_while(|&bits| bits != 0).map(|bits| bits.trailing_zeros() as usize)
}

impl Line {
    const EMPTY: Self = Self { hashes: [NO_HASH; LINE], numbers: [GONE; LINE] };

    const fn is_full(&self) -> bool {
        self.hashes[LINE - 1] != NO_HASH
    }

    /// Hashes and numbers of all entries.
    fn entries(&self) -> impl Iterator<Item = (u32, u32)> {
        let all = self.hashes.iter().copied().zip(self.numbers.iter().copied());
        all.filter(|&(_, number)| number != GONE)
    }

    /// The number with this hash that `is_same` accepts.
    fn find(&self, hash: u32, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        let mut numbers = places(equal(&self.hashes, hash)).map(|at| self.numbers[at]);
        numbers.find(|&number| number != GONE && is_same(number))
    }

    /// The first empty or tombstone entry.
    fn free(&self) -> Option<usize> {
        places(equal(&self.numbers, GONE)).next()
    }

    /// Removes an entry. Returns whether an entry of the line became empty. A full line stays full: entries
    /// that did not fit into it may be in the next line, and searches must continue there.
    fn remove(&mut self, place: usize) -> bool {
        if self.is_full() {
            self.numbers[place] = GONE;
            return false;
        }
        let last = self.free().unwrap_or(LINE) - 1;
        self.hashes[place] = self.hashes[last];
        self.numbers[place] = self.numbers[last];
        self.hashes[last] = NO_HASH;
        self.numbers[last] = GONE;
        true
    }
}

impl Sub {
    /// The preferred line of this hash. The last lines of a sub-table are reserved for overflow.
    fn home(&self, hash: u32) -> usize {
        let lines = self.lines.len() - self.lines.len() / 32 - 1;
        let position = u64::from(hash.checked_shl(self.bits).unwrap_or(0));
        usize::try_from((position * lines as u64) >> 32).unwrap_or(0)
    }

    /// Copies the entries that `is_wanted` accepts by hash into `lines` lines, or more if they do not fit.
    fn spread(bits: u32, from: &[Line], is_wanted: impl Fn(u32) -> bool, lines: usize) -> Self {
        let mut sub =
            Self { lines: vec![Line::EMPTY; lines].into_boxed_slice(), len: 0, filled: 0, bits };
        let mut counts: SmallVec<[u8; 256]> = smallvec![0; lines];
        for (hash, number) in from.iter().flat_map(Line::entries).filter(|at| is_wanted(at.0)) {
            let mut at = sub.home(hash);
            while usize::from(counts[at]) == LINE {
                at += 1;
            }
            let place = usize::from(counts[at]);
            if place == LINE - 1 && at + 1 == lines {
                return Self::spread(bits, from, is_wanted, lines_for(lines * LINE));
            }
            sub.lines[at].hashes[place] = hash;
            sub.lines[at].numbers[place] = number;
            counts[at] += 1;
            sub.len += 1;
        }
        sub.filled = sub.len;
        sub
    }

    /// The number with this hash that `is_same` accepts.
    fn find(&self, hash: u32, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        for line in &self.lines[self.home(hash)..] {
            let found = line.find(hash, &is_same);
            if found.is_some() || !line.is_full() {
                return found;
            }
        }
        None
    }

    /// Inserts an entry, unless `is_same` accepts an existing one with this hash, or there is no room near its
    /// preferred line.
    fn insert(&mut self, hash: u32, number: u32, is_same: impl Fn(u32) -> bool) -> Inserted {
        if (self.filled as usize + 1) * 4 > self.lines.len() * LINE * 3 {
            return Inserted::NoRoom;
        }
        let mut free = None;
        let mut at = self.home(hash);
        loop {
            let line = &self.lines[at];
            if line.find(hash, &is_same).is_some() {
                return Inserted::Known;
            }
            free = free.or_else(|| line.free().map(|place| (at, place)));
            if !line.is_full() {
                break;
            }
            at += 1;
        }
        let (at, place) = free.unwrap_or((at, LINE - 1));
        if place == LINE - 1 && at + 1 == self.lines.len() {
            return Inserted::NoRoom;
        }
        let line = &mut self.lines[at];
        self.filled += u32::from(line.hashes[place] == NO_HASH);
        line.hashes[place] = hash;
        line.numbers[place] = number;
        self.len += 1;
        Inserted::New
    }

    /// Removes an entry. Searches from the home line of the hash up to the first line that is not full. Returns false
    /// if the entry is missing.
    fn remove(&mut self, hash: u32, number: u32) -> bool {
        let mut at = self.home(hash);
        let place = loop {
            let line = &self.lines[at];
            let found = equal(&line.hashes, hash) & equal(&line.numbers, number);
            if found != 0 {
                break found.trailing_zeros() as usize;
            }
            if !line.is_full() {
                return false;
            }
            at += 1;
        };
        self.len -= 1;
        self.filled -= u32::from(self.lines[at].remove(place));
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

    /// The number with this hash that `is_same` accepts.
    pub(crate) fn find(&self, hash: u64, is_same: impl Fn(u32) -> bool) -> Option<u32> {
        let hash = short(hash);
        let sub = &self.subs[self.sub(hash)?];
        if sub.lines.is_empty() { None } else { sub.find(hash, is_same) }
    }

    /// Prefetches the preferred line of a hash. Call it for several hashes in a row: the processor then loads
    /// their lines concurrently, before [`Numbers::find`], `insert` or `remove` reads them.
    pub(crate) fn touch(&self, hash: u64) {
        let hash = short(hash);
        let sub = self.sub(hash).and_then(|sub| self.subs.get(sub));
        if let Some(sub) = sub.filter(|sub| !sub.lines.is_empty()) {
            prefetch(&sub.lines[sub.home(hash)]);
        }
    }

    /// Adds a number. Returns `false` if `is_same` accepts an existing one.
    pub(crate) fn insert(&mut self, hash: u64, number: u32, is_same: impl Fn(u32) -> bool) -> bool {
        let hash = short(hash);
        if self.directory.is_empty() {
            self.directory.push(0);
            self.subs.push(Sub::default());
        }
        while let Some(sub) = self.sub(hash) {
            match self.subs[sub].insert(hash, number, &is_same) {
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

    /// Makes room in the full sub-table of a hash: drops its tombstones, grows it, or splits it in two.
    fn make_room(&mut self, sub: usize, hash: u32) {
        let crowded = std::mem::take(&mut self.subs[sub]);
        // Most of the prefetched lines have probably left the cache.
        crowded.lines.iter().for_each(prefetch);
        let bits = crowded.bits;
        let lines = crowded.lines.len();
        let len = crowded.len as usize;
        let is_marked = crowded.filled > crowded.len;
        self.lines -= lines;
        // After many removals there is enough room without the tombstones. This must apply up to nearly the
        // size at which tables grow. Otherwise repeated removals and insertions would grow them.
        let same = is_marked && len * 3 < lines * LINE * 2;
        let grown = if same { lines } else { lines_for((len + 1).max(lines * LINE * 3 / 4 + 1)) };
        let splits = grown > SUB_LINES_MAX && bits < DIRECTORY_BITS_MAX;
        if !splits {
            self.put_sub(sub, Sub::spread(bits, &crowded.lines, |_| true, grown));
            return;
        }
        if bits == self.bits {
            self.directory = self.directory.iter().flat_map(|&sub| [sub, sub]).collect();
            self.bits += 1;
        }
        let is_low = |hash: u32| hash >> (31 - bits) & 1 == 0;
        // Lines are in hash order, except for entries that overflowed their own line.
        let middle = crowded.home(1 << (31 - bits));
        let (before, behind) = crowded.lines.split_at(middle);
        let both = behind.iter().take_while(|line| line.is_full()).count() + 1;
        let lower = &crowded.lines[..before.len() + both];
        let low = lower.iter().flat_map(Line::entries).filter(|at| is_low(at.0)).count();
        let above = self.subs.len();
        for (at, lines, wants_low, half) in
            [(sub, lower, true, low), (above, behind, false, len - low)]
        {
            let is_wanted = |hash| is_low(hash) == wants_low;
            self.put_sub(at, Sub::spread(bits + 1, lines, is_wanted, lines_for(half)));
        }
        // The sub-table's range in the directory. Its upper half belongs to the new sub-table.
        let len = 1 << (self.bits - bits);
        let first = (hash >> (32 - self.bits)) as usize / len * len;
        self.directory[first + len / 2..first + len].fill(index_u32(above));
    }

    fn put_sub(&mut self, at: usize, sub: Sub) {
        self.lines += sub.lines.len();
        match self.subs.get_mut(at) {
            Some(old) => *old = sub,
            None => self.subs.push(sub),
        }
    }

    /// Removes a number. Returns `false` if it does not exist with this hash.
    pub(crate) fn remove(&mut self, hash: u64, number: u32) -> bool {
        let hash = short(hash);
        let Some(at) = self.sub(hash) else {
            return false;
        };
        let sub = &mut self.subs[at];
        if sub.lines.is_empty() || !sub.remove(hash, number) {
            return false;
        }
        self.len -= 1;
        if self.len == 0 {
            *self = Self::default();
            return true;
        }
        let len = sub.len as usize;
        let lines = sub.lines.len();
        if len == 0 || len < lines * LINE / 4 {
            let fewer = if len == 0 { 0 } else { lines_for(len * 3 / 2) };
            if fewer < lines {
                let smaller = Sub::spread(sub.bits, &sub.lines, |_| true, fewer);
                self.lines -= lines;
                self.put_sub(at, smaller);
            }
        }
        true
    }

    /// Bytes allocated.
    pub(crate) const fn bytes(&self) -> usize {
        self.lines * size_of::<Line>()
            + self.subs.capacity() * size_of::<Sub>()
            + self.directory.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::mix;
    use std::collections::BTreeSet;

    /// Checks the invariants of searches.
    fn validate(table: &Numbers) {
        let lines: usize = table.subs.iter().map(|sub| sub.lines.len()).sum();
        assert_eq!(lines, table.lines);
        for sub in &table.subs {
            assert!(sub.lines.last().is_none_or(|line| !line.is_full()), "searches end");
            let is_used = |hash: &&u32| **hash != NO_HASH;
            let used = sub.lines.iter().flat_map(|line| &line.hashes).filter(is_used).count();
            let entries = sub.lines.iter().flat_map(Line::entries).count();
            assert_eq!((used, entries), (sub.filled as usize, sub.len as usize));
            for (at, line) in sub.lines.iter().enumerate() {
                let count = line.hashes.iter().filter(is_used).count();
                let is_compact = line.entries().count() == count && line.free() == Some(count);
                assert!(line.is_full() || is_compact, "{line:?}");
                for (hash, number) in line.entries() {
                    let passed = sub.home(hash)..at;
                    assert!(sub.home(hash) <= at, "{number} in line {at}");
                    assert!(passed.into_iter().all(|at| sub.lines[at].is_full()), "{number}");
                }
            }
        }
    }

    fn check(hash: impl Fn(u32) -> u64, numbers: u32) {
        let mut table = Numbers::default();
        let mut model = BTreeSet::new();
        for step in 0..numbers * 4 {
            let at = short(mix(u64::from(step)));
            let number = at % numbers;
            let adds = (at >> 20) % 8 < if step < numbers * 2 { 6 } else { 2 };
            if adds && model.insert(number) {
                assert!(table.insert(hash(number), number, |at| at == number));
            } else if !adds {
                assert_eq!(table.remove(hash(number), number), model.remove(&number), "{number}");
            }
            if step % 997 == 0 {
                validate(&table);
            }
        }
        assert_eq!(table.len(), model.len());
        validate(&table);
        let all = table.subs.iter().flat_map(|sub| &sub.lines[..]).flat_map(Line::entries);
        assert_eq!(all.map(|(_, number)| number).collect::<BTreeSet<_>>(), model);
        for number in 0..numbers {
            let found = table.find(hash(number), |at| at == number);
            assert_eq!(found, model.get(&number).copied());
        }
        for number in model {
            assert!(table.remove(hash(number), number));
        }
        assert_eq!((table.len(), table.bytes()), (0, 0), "nothing remains");
    }

    #[test]
    fn each_place_has_its_bit() {
        for bits in 0..=u8::MAX {
            let values = std::array::from_fn(|at| if bits >> at & 1 == 1 { 7 } else { 9 });
            assert_eq!((equal(&values, 7), equal(&values, 9), equal(&values, 8)), (bits, !bits, 0));
            let set: Vec<_> = (0..LINE).filter(|at| bits >> at & 1 == 1).collect();
            assert_eq!(places(bits).collect::<Vec<_>>(), set);
        }
    }

    #[test]
    fn numbers_are_found_until_they_are_removed() {
        check(|number| mix(u64::from(number)), 1);
        check(|number| mix(u64::from(number)), 50);
        check(|number| mix(u64::from(number)), 30_000);
    }

    #[test]
    fn hashes_that_crowd_lose_nothing() {
        // Patterns: all in one corner of the directory, all at its end, many equal, all equal.
        check(|number| mix(u64::from(number)) >> 12, 6_000);
        check(|number| !(mix(u64::from(number)) >> 20), 6_000);
        check(|number| mix(u64::from(number) / 64), 6_000);
        check(u64::from, 1_500);
        check(|number| !u64::from(number), 1_500);
    }

    /// Names can be chosen so that their hashes collide. A search then reads the lines filled with
    /// collisions, and calls `is_same` only for numbers with exactly this hash.
    #[test]
    fn a_search_reads_no_more_than_the_lines_of_what_collides() {
        let far = |number: u32| mix(u64::from(number));
        let near = |number: u32| u64::from(number) << 32 | u64::from(u32::MAX / 2) << 50;
        let hashes: [&dyn Fn(u32) -> u64; 3] = [&far, &near, &|_| far(7)];
        for (hash, lines_max, asked_max) in
            [(hashes[0], 5, 1), (hashes[1], 90, 1), (hashes[2], 90, 600)]
        {
            let mut table = Numbers::default();
            (0..600).for_each(|number| assert!(table.insert(hash(number), number, |_| false)));
            for number in 0..700 {
                let short = short(hash(number));
                let sub = &table.subs[table.sub(short).expect("a sub-table")];
                let lines = sub.lines[sub.home(short)..].iter();
                let lines = lines.take_while(|line| line.is_full()).count() + 1;
                assert!(lines <= lines_max, "{lines} lines for {number}");
                let asked = std::cell::Cell::new(0);
                let is_same = |at| {
                    asked.set(asked.get() + 1);
                    at == number
                };
                assert_eq!(table.find(hash(number), is_same).is_some(), number < 600);
                assert!(asked.get() <= asked_max, "{} asked for {number}", asked.get());
            }
        }
    }

    #[test]
    fn an_empty_sub_table_can_be_touched() {
        let mut table = Numbers::default();
        let hash = |number: u32| mix(u64::from(number));
        (0..8_000).for_each(|number| assert!(table.insert(hash(number), number, |_| false)));
        (1..8_000).for_each(|number| assert!(table.remove(hash(number), number)));
        (0..8_000).for_each(|number| table.touch(hash(number)));
        let there = (0..8_000).filter(|&at| table.find(hash(at), |number| number == at).is_some());
        assert_eq!(there.collect::<Vec<_>>(), [0], "the one that is left");
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
        let early = after[2];
        let late = after[19];
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
