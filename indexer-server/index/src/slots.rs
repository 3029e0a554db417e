//! Slots: positions of the trie, in pages of 64.
//!
//! A slot keeps the local hash of its block, the name under which it was first stored, and the
//! segment it belongs to. Local hashes of a page lie together, apart from what a lookup does not
//! read. Pages are kept in lists by the longest run of free slots they have, so that chains get
//! consecutive slots and freed slots are found again; a page's occupancy bitmap merges neighbours
//! by itself. 20 bytes a slot, plus 40 a page.
#![expect(clippy::indexing_slicing, reason = "slots and pages are handed out by this file only")]

use crate::table::index_u32;
use kvasir_proto::types::{BlockName, LocalHash};

/// Number of a slot.
pub(crate) type Slot = u32;
/// "No slot": the parent of first blocks, and the end of lists.
pub(crate) const NONE: u32 = u32::MAX;

/// Slots of a page.
pub(crate) const PAGE_SLOTS: u32 = 64;
const PAGE_BITS: u32 = 6;
const CHUNK_PAGES: usize = 64;
/// Lists of pages by longest free run: 1, 2–3, 4–7, 8–15, 16–31, 32–63, 64. Full pages are in none.
const CLASSES: usize = 7;
const FULL: u8 = u8::MAX;
/// Once more than one slot in this many is free, short free runs are used up before pages are added.
const SPARSE_FRACTION: usize = 4;

#[derive(Debug, Clone)]
struct Page {
    /// One bit a slot: in use.
    used: u64,
    /// One bit a slot: its name stands in the name table.
    named: u64,
    class: u8,
    previous: u32,
    next: u32,
    locals: [LocalHash; PAGE_SLOTS as usize],
    names: [BlockName; PAGE_SLOTS as usize],
    segments: [u32; PAGE_SLOTS as usize],
}

const EMPTY_PAGE: Page = Page {
    used: 0,
    named: 0,
    class: FULL,
    previous: NONE,
    next: NONE,
    locals: [LocalHash(0); PAGE_SLOTS as usize],
    names: [BlockName(0); PAGE_SLOTS as usize],
    segments: [NONE; PAGE_SLOTS as usize],
};

/// All slots of an index.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Chunks of [`CHUNK_PAGES`] pages; growing copies pointers only.
    chunks: Vec<Box<[Page]>>,
    heads: [u32; CLASSES],
    used: usize,
}

impl Default for Slots {
    fn default() -> Self {
        Self { chunks: Vec::new(), heads: [NONE; CLASSES], used: 0 }
    }
}

const fn offset(slot: Slot) -> usize {
    (slot & (PAGE_SLOTS - 1)) as usize
}

const fn bit(slot: Slot) -> u64 {
    1 << offset(slot)
}

/// Whether `next` is the slot after `slot`, in the same page.
pub(crate) const fn adjacent(slot: Slot, next: Slot) -> bool {
    slot != NONE && slot + 1 == next && next & (PAGE_SLOTS - 1) != 0
}

/// Class of a page: floor of log2 of its longest run of free slots.
const fn class_of(used: u64) -> u8 {
    let mut runs = !used;
    if runs == 0 {
        return FULL;
    }
    let mut class = 0;
    while class < 6 {
        let longer = runs & (runs >> (1 << class));
        if longer == 0 {
            break;
        }
        runs = longer;
        class += 1;
    }
    class
}

impl Slots {
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    fn page(&self, page: u32) -> &Page {
        &self.chunks[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    fn page_mut(&mut self, page: u32) -> &mut Page {
        &mut self.chunks[page as usize / CHUNK_PAGES][page as usize % CHUNK_PAGES]
    }

    const fn page_number(slot: Slot) -> u32 {
        slot >> PAGE_BITS
    }

    pub(crate) fn local(&self, slot: Slot) -> LocalHash {
        self.page(Self::page_number(slot)).locals[offset(slot)]
    }

    /// Local hashes of `len` consecutive slots of one page.
    pub(crate) fn locals(&self, slot: Slot, len: u32) -> &[LocalHash] {
        &self.page(Self::page_number(slot)).locals[offset(slot)..offset(slot) + len as usize]
    }

    /// Names of `len` consecutive slots of one page.
    pub(crate) fn names(&self, slot: Slot, len: u32) -> &[BlockName] {
        &self.page(Self::page_number(slot)).names[offset(slot)..offset(slot) + len as usize]
    }

    pub(crate) fn name(&self, slot: Slot) -> BlockName {
        self.page(Self::page_number(slot)).names[offset(slot)]
    }

    pub(crate) fn is_named(&self, slot: Slot) -> bool {
        self.page(Self::page_number(slot)).named & bit(slot) != 0
    }

    pub(crate) fn set_named(&mut self, slot: Slot) {
        self.page_mut(Self::page_number(slot)).named |= bit(slot);
    }

    pub(crate) fn segment(&self, slot: Slot) -> u32 {
        self.page(Self::page_number(slot)).segments[offset(slot)]
    }

    /// Says that `len` consecutive slots belong to a segment.
    pub(crate) fn set_segment(&mut self, slot: Slot, len: u32, segment: u32) {
        let page = self.page_mut(Self::page_number(slot));
        page.segments[offset(slot)..offset(slot) + len as usize].fill(segment);
    }

    pub(crate) fn is_used(&self, slot: Slot) -> bool {
        let page = Self::page_number(slot);
        (page as usize / CHUNK_PAGES) < self.chunks.len() && self.page(page).used & bit(slot) != 0
    }

    /// Takes a slot: the one after `after` if it is free, else one with `wanted` free slots
    /// behind it where there is such a place.
    pub(crate) fn allocate(
        &mut self,
        after: Slot,
        wanted: usize,
        local: LocalHash,
        name: BlockName,
    ) -> Slot {
        let slot = self.place(after, wanted);
        let page = self.page_mut(Self::page_number(slot));
        debug_assert!(page.used & bit(slot) == 0, "slot {slot} is free");
        page.used |= bit(slot);
        page.named &= !bit(slot);
        page.locals[offset(slot)] = local;
        page.names[offset(slot)] = name;
        self.used += 1;
        self.reclass(Self::page_number(slot));
        slot
    }

    fn place(&mut self, after: Slot, wanted: usize) -> Slot {
        if after != NONE && adjacent(after, after + 1) {
            let page = self.page(Self::page_number(after));
            if page.used & bit(after + 1) == 0 {
                return after + 1;
            }
        }
        let wanted = wanted.clamp(1, PAGE_SLOTS as usize);
        let class = wanted.next_power_of_two().trailing_zeros() as usize;
        let roomy = self.heads[class..].iter().find(|&&head| head != NONE).copied();
        if let Some(page) = roomy {
            return Self::run(page, self.page(page).used, wanted);
        }
        let capacity = self.chunks.len() * CHUNK_PAGES * PAGE_SLOTS as usize;
        if (capacity - self.used) * SPARSE_FRACTION > capacity {
            let best = self.heads.iter().enumerate().rev().find(|(_, head)| **head != NONE);
            if let Some((class, &page)) = best {
                return Self::run(page, self.page(page).used, 1 << class);
            }
        }
        self.grow();
        self.heads[CLASSES - 1] << PAGE_BITS
    }

    /// First slot of `page` that begins a run of `wanted` free slots; there is one.
    const fn run(page: u32, used: u64, wanted: usize) -> Slot {
        let mut starts = !used;
        let mut have = 1;
        while have < wanted {
            let step = if have < wanted - have { have } else { wanted - have };
            starts &= starts >> step;
            have += step;
        }
        (page << PAGE_BITS) | starts.trailing_zeros()
    }

    fn grow(&mut self) {
        let first = self.chunks.len() * CHUNK_PAGES;
        self.chunks.push(vec![EMPTY_PAGE; CHUNK_PAGES].into_boxed_slice());
        for page in (first..first + CHUNK_PAGES).rev() {
            self.reclass(index_u32(page));
        }
    }

    /// Gives back `len` consecutive slots of one page.
    pub(crate) fn free(&mut self, slot: Slot, len: u32) {
        let page = self.page_mut(Self::page_number(slot));
        let mask = (u64::MAX >> (PAGE_SLOTS - len)) << offset(slot);
        debug_assert!(page.used & mask == mask, "freed slots are in use");
        page.used &= !mask;
        page.named &= !mask;
        self.used -= len as usize;
        self.reclass(Self::page_number(slot));
        if self.used == 0 {
            *self = Self::default();
        }
    }

    /// Moves a page to the list of its class.
    fn reclass(&mut self, number: u32) {
        let page = self.page(number);
        let (class, previous, next) = (page.class, page.previous, page.next);
        let now = class_of(page.used);
        if class == now {
            return;
        }
        if class != FULL {
            if previous == NONE {
                self.heads[class as usize] = next;
            } else {
                self.page_mut(previous).next = next;
            }
            if next != NONE {
                self.page_mut(next).previous = previous;
            }
        }
        let head = if now == FULL { NONE } else { self.heads[now as usize] };
        let page = self.page_mut(number);
        (page.class, page.previous, page.next) = (now, NONE, head);
        if head != NONE {
            self.page_mut(head).previous = number;
        }
        if now != FULL {
            self.heads[now as usize] = number;
        }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_PAGES * size_of::<Page>()
            + self.chunks.capacity() * size_of::<Box<[Page]>>()
    }

    /// Every slot in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let pages = self.chunks.iter().flat_map(|chunk| chunk.iter()).enumerate();
        pages.flat_map(|(number, page)| {
            let first = index_u32(number) << PAGE_BITS;
            (0..PAGE_SLOTS).filter(|at| page.used & (1 << at) != 0).map(move |at| first + at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(slots: &mut Slots, after: Slot, wanted: usize) -> Slot {
        slots.allocate(after, wanted, LocalHash(1), BlockName(1))
    }

    #[test]
    fn class_is_the_longest_free_run() {
        for (used, class) in [
            (u64::MAX, FULL),
            (0, 6),
            (1, 5),
            (1 << 32, 5),
            (!(0b11 << 7), 1),
            (!(0b1111 << 60), 2),
            (!0b1_0101, 0),
            (0x8000_8000_8000_8000, 3),
        ] {
            assert_eq!(class_of(used), class, "{used:016x}");
        }
    }

    #[test]
    fn chains_get_consecutive_slots_and_freed_ones_are_used_again() {
        let mut slots = Slots::default();
        let first = take(&mut slots, NONE, 16);
        let mut last = first;
        for at in 1..64 {
            last = take(&mut slots, last, 64 - at);
        }
        assert_eq!(last, first + 63);
        slots.free(first + 8, 16);
        assert_eq!(take(&mut slots, NONE, 16), first + 8, "the freed run");
        let bytes = slots.bytes();
        slots.free(first + 8, 1);
        slots.free(first, 8);
        slots.free(first + 24, 40);
        assert_eq!((slots.used(), slots.bytes() < bytes), (0, true), "nothing remains");
    }
}
