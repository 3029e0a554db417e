//! Slots: storage for positions of the trie, in chunks of 4,096.
//!
//! A slot has the local hash of its block, the name under which it was first stored, and its segment. Each is
//! in a separate array. A lookup therefore reads only local hashes, and a chain in consecutive slots is read
//! as one run. 20 bytes per slot.
//!
//! A chain should be able to grow at its end while others grow beside it. The allocation of new slots
//! therefore depends on the chain's current length. It begins at an empty page, and the next pages are
//! reserved, as many as the chain already has (up to [`RESERVED_PAGES_MAX`]). Once more than one slot in
//! [`SPARSE_FRACTION`] is free, reserved pages and half-filled pages are used before memory grows.
#![expect(clippy::indexing_slicing, reason = "slots and pages are handed out by this file only")]

use crate::prefetch::prefetch;
use crate::runs::{RunLists, first_run};
use crate::table::index_u32;
use kvasir_proto::types::{BlockName, LocalHash};
use std::hint::black_box;
use std::mem;

/// Number of a slot.
pub type Slot = u32;
/// Number of a page of slots.
pub(crate) type Page = u32;
/// Stands for "no slot": the parent of first blocks, and the end of lists.
pub(crate) const NONE: u32 = u32::MAX;

/// Slots per page.
pub const PAGE_SLOTS: u32 = 64;
const CHUNK_PAGES: u32 = 64;
/// Slots per chunk; the maximum length of a segment.
const CHUNK_SLOTS: u32 = CHUNK_PAGES * PAGE_SLOTS;
/// Maximum number of pages reserved for one chain at a time, including the first page.
const RESERVED_PAGES_MAX: u32 = 8;
/// Maximum number of chunks prepared for a worker, 20 MiB.
const PREPARED_CHUNKS_MAX: usize = 256;
/// Smallest memory page size of operating systems.
const MEMORY_PAGE_BYTES: usize = 4 << 10;
/// Initial capacity of the first chunk, in slots: many models have few blocks.
const FIRST_SLOTS: usize = (RESERVED_PAGES_MAX * PAGE_SLOTS) as usize;
/// If more than one slot in this many is free, short free runs are used before chunks are added.
const SPARSE_FRACTION: usize = 8;

/// Contents of the slots of a chunk; empty after the chunk's memory was freed. The first chunk's contents
/// grow. Three power-of-two arrays, because allocators round up, of zeroed memory, which costs nothing until
/// it is written.
#[derive(Debug, Default)]
struct Content {
    locals: Box<[u64]>,
    names: Box<[u64]>,
    segments: Box<[u32]>,
}

impl Content {
    const SLOT_BYTES: usize = 20;

    fn new(slots: usize) -> Self {
        Self { locals: zeros(slots), names: zeros(slots), segments: zeros(slots) }
    }

    /// Reallocates memory for at least `slots` slots.
    fn grow(&mut self, slots: usize) {
        let before = mem::replace(self, Self::new(slots.next_power_of_two()));
        let len = before.locals.len();
        self.locals[..len].copy_from_slice(&before.locals);
        self.names[..len].copy_from_slice(&before.names);
        self.segments[..len].copy_from_slice(&before.segments);
    }
}

/// Memory for a chunk that the system has already cleared. The system clears each page of newly allocated
/// memory at its first write, which takes a third of a restore. Created by another thread than the index's
/// writer.
#[derive(Debug)]
pub(crate) struct PreparedChunk(Content);

impl PreparedChunk {
    pub(crate) fn new() -> Self {
        let mut content = Content::new(CHUNK_SLOTS as usize);
        let Content { locals, names, segments } = &mut content;
        for number in locals.iter_mut().chain(names).step_by(MEMORY_PAGE_BYTES / size_of::<u64>()) {
            *number = black_box(0);
        }
        for number in segments.iter_mut().step_by(MEMORY_PAGE_BYTES / size_of::<u32>()) {
            *number = black_box(0);
        }
        Self(content)
    }

    /// Prepares the chunks that `slots` slots fill, at most [`PREPARED_CHUNKS_MAX`].
    pub(crate) fn for_slots(slots: usize) -> Vec<Self> {
        let chunks = (slots / CHUNK_SLOTS as usize).min(PREPARED_CHUNKS_MAX);
        (0..chunks).map(|_| Self::new()).collect()
    }
}

fn zeros<T: Clone + Default>(len: usize) -> Box<[T]> {
    vec![T::default(); len].into_boxed_slice()
}

/// Bitmaps of a chunk's slots.
#[derive(Debug)]
struct Chunk {
    /// Slots in use: one word per page.
    used: [u64; CHUNK_PAGES as usize],
    /// Slots whose name is in the name table: one word per page.
    named: [u64; CHUNK_PAGES as usize],
    /// Pages without used slots.
    empty: u64,
    /// Pages reserved for the chain that ends before them.
    reserved: u64,
}

const EMPTY_CHUNK: Chunk = Chunk {
    used: [0; CHUNK_PAGES as usize],
    named: [0; CHUNK_PAGES as usize],
    empty: u64::MAX,
    reserved: 0,
};

/// All slots of an index.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    contents: Vec<Content>,
    #[expect(clippy::vec_box, reason = "growing copies pointers only")]
    chunks: Vec<Box<Chunk>>,
    used: usize,
    /// Chunks by their longest run of empty, unreserved pages.
    chunk_runs: RunLists,
    /// Pages by their longest run of free slots.
    page_runs: RunLists,
    /// Number of reserved pages.
    reserved: usize,
    /// Chunk at which to look next for reserved pages.
    release: usize,
    /// Chunks whose contents were freed.
    absent: Vec<u32>,
    /// Number of other chunks without used slots.
    spare: usize,
    /// Memory lent by a restore for one slice.
    prepared: Vec<PreparedChunk>,
}

/// Number of unused chunks that keep their contents for later allocations: one, plus one in this many chunks.
/// A workload of steady size therefore never frees chunks.
const SPARE_FRACTION: usize = 8;

const fn chunk_of(slot: Slot) -> usize {
    (slot / CHUNK_SLOTS) as usize
}

const fn in_chunk(slot: Slot) -> usize {
    (slot % CHUNK_SLOTS) as usize
}

const fn in_page(slot: Slot) -> u32 {
    slot % PAGE_SLOTS
}

/// Number of a slot's page.
pub(crate) const fn page_of(slot: Slot) -> Page {
    slot / PAGE_SLOTS
}

const fn page_in_chunk(slot: Slot) -> usize {
    (slot / PAGE_SLOTS % CHUNK_PAGES) as usize
}

const fn bit(slot: Slot) -> u64 {
    1 << in_page(slot)
}

/// `len` (1–64) bits from `first` on.
const fn bits(first: u32, len: u32) -> u64 {
    (u64::MAX >> (64 - len)) << first
}

/// Whether `next` is the slot after `slot` in the same chunk, so that one segment can contain both.
pub(crate) const fn adjacent(slot: Slot, next: Slot) -> bool {
    slot != NONE && slot + 1 == next && !next.is_multiple_of(CHUNK_SLOTS)
}

impl Slots {
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn local(&self, slot: Slot) -> LocalHash {
        LocalHash(self.contents[chunk_of(slot)].locals[in_chunk(slot)])
    }

    /// Local hashes of `len` consecutive slots of one segment.
    pub(crate) fn locals(&self, slot: Slot, len: u32) -> &[u64] {
        &self.contents[chunk_of(slot)].locals[in_chunk(slot)..][..len as usize]
    }

    /// Names of `len` consecutive slots of one segment.
    pub(crate) fn names(&self, slot: Slot, len: u32) -> &[u64] {
        &self.contents[chunk_of(slot)].names[in_chunk(slot)..][..len as usize]
    }

    pub(crate) fn name(&self, slot: Slot) -> BlockName {
        BlockName(self.contents[chunk_of(slot)].names[in_chunk(slot)])
    }

    /// Prefetches the name and the segment of a slot.
    pub(crate) fn touch(&self, slot: Slot) {
        let contents = &self.contents[chunk_of(slot)];
        prefetch(&contents.names[in_chunk(slot)]);
        prefetch(&contents.segments[in_chunk(slot)]);
    }

    pub(crate) fn is_named(&self, slot: Slot) -> bool {
        self.chunks[chunk_of(slot)].named[page_in_chunk(slot)] & bit(slot) != 0
    }

    pub(crate) fn set_named(&mut self, slot: Slot) {
        self.chunks[chunk_of(slot)].named[page_in_chunk(slot)] |= bit(slot);
    }

    pub(crate) fn segment(&self, slot: Slot) -> u32 {
        self.contents[chunk_of(slot)].segments[in_chunk(slot)]
    }

    /// Assigns `len` consecutive slots to a segment.
    pub(crate) fn set_segment(&mut self, slot: Slot, len: u32, segment: u32) {
        self.contents[chunk_of(slot)].segments[in_chunk(slot)..][..len as usize].fill(segment);
    }

    /// Sets the content of a slot.
    pub(crate) fn fill(&mut self, slot: Slot, local: LocalHash, name: BlockName) {
        let content = &mut self.contents[chunk_of(slot)];
        content.locals[in_chunk(slot)] = local.0;
        content.names[in_chunk(slot)] = name.0;
    }

    pub(crate) fn is_used(&self, slot: Slot) -> bool {
        let chunk = self.chunks.get(chunk_of(slot));
        chunk.is_some_and(|chunk| chunk.used[page_in_chunk(slot)] & bit(slot) != 0)
    }

    /// Allocates up to `len` consecutive slots, at least one: those after `after` if they are free, else at a
    /// place with `room` for the chain, if possible.
    pub(crate) fn allocate(&mut self, after: Slot, len: u32, room: u32) -> (Slot, u32) {
        let continues = after != NONE && adjacent(after, after + 1) && !self.is_used(after + 1);
        let slot = if continues { after + 1 } else { self.place(len, room) };
        (slot, self.mark_used(slot, len))
    }

    /// Marks the free slots from `slot` on as used, up to `len`. Returns their number.
    fn mark_used(&mut self, slot: Slot, len: u32) -> u32 {
        let mut taken = 0;
        while taken < len {
            let at = slot + taken;
            if at != slot && !adjacent(at - 1, at) {
                break;
            }
            let used = self.chunks[chunk_of(at)].used[page_in_chunk(at)];
            let free = (!used >> in_page(at)).trailing_ones().min(len - taken);
            if free == 0 {
                break;
            }
            self.set_used(page_of(at), used | bits(in_page(at), free));
            taken += free;
            if in_page(at) + free < PAGE_SLOTS {
                break;
            }
        }
        debug_assert!(taken > 0, "slot {slot} is free");
        self.used += taken as usize;
        let content = &mut self.contents[chunk_of(slot)];
        let end = in_chunk(slot) + taken as usize;
        if content.locals.len() < end {
            content.grow(end);
        }
        taken
    }

    /// Sets the used slots of a page, and updates the lists.
    fn set_used(&mut self, page: u32, used: u64) {
        let chunk = &mut self.chunks[(page / CHUNK_PAGES) as usize];
        let at = page % CHUNK_PAGES;
        chunk.used[at as usize] = used;
        self.page_runs.update(page, !used);
        let empty = used == 0;
        let mask = 1 << at;
        if empty == (chunk.empty & mask != 0) {
            return;
        }
        self.spare -= usize::from(chunk.empty == u64::MAX);
        chunk.empty ^= mask;
        self.reserved -= usize::from(chunk.reserved & mask != 0);
        chunk.reserved &= !mask;
        self.chunk_runs.update(page / CHUNK_PAGES, chunk.empty & !chunk.reserved);
        if chunk.empty == u64::MAX {
            self.vacate(page / CHUNK_PAGES);
        }
    }

    /// Counts a chunk that has become empty. Frees contents while there are too many spare chunks.
    fn vacate(&mut self, number: u32) {
        let chunk = &mut self.chunks[number as usize];
        self.reserved -= chunk.reserved.count_ones() as usize;
        chunk.reserved = 0;
        self.chunk_runs.update(number, u64::MAX);
        self.spare += 1;
        while self.spare > 1 + (self.chunks.len() - self.absent.len()) / SPARE_FRACTION
            && let Some(number) = self.chunk_runs.fitting(CHUNK_PAGES)
        {
            self.give_back(number);
        }
    }

    /// Frees the memory of an empty chunk. Its number can be reused.
    fn give_back(&mut self, number: u32) {
        self.contents[number as usize] = Content::default();
        self.absent.push(number);
        self.spare -= 1;
        self.chunk_runs.update(number, 0);
        for page in 0..CHUNK_PAGES {
            self.page_runs.update(number * CHUNK_PAGES + page, 0);
        }
    }

    /// Number of slots of all chunks with contents.
    const fn capacity(&self) -> usize {
        (self.chunks.len() - self.absent.len()) * CHUNK_SLOTS as usize
    }

    /// A free slot followed by free ones, for a chain that needs `len` slots now and probably `room` later.
    fn place(&mut self, len: u32, room: u32) -> Slot {
        let pages = room.max(len).div_ceil(PAGE_SLOTS).clamp(1, RESERVED_PAGES_MAX);
        if let Some(slot) = self.begin_pages(pages) {
            return slot;
        }
        let capacity = self.capacity();
        if (capacity - self.used) * SPARSE_FRACTION > capacity {
            self.release_pages();
            if let Some(slot) = self.begin_pages(1) {
                return slot;
            }
            let wanted = len.min(PAGE_SLOTS);
            let fitting = self.page_runs.fitting(wanted).map(|page| (page, wanted));
            if let Some((page, wanted)) = fitting.or_else(|| self.page_runs.longest()) {
                let used =
                    self.chunks[(page / CHUNK_PAGES) as usize].used[(page % CHUNK_PAGES) as usize];
                return page * PAGE_SLOTS + first_run(!used, wanted);
            }
        }
        self.grow();
        self.begin_pages(pages).unwrap_or_default()
    }

    /// First slot of `pages` empty pages. Reserves all except the first.
    fn begin_pages(&mut self, pages: u32) -> Option<Slot> {
        let number = self.chunk_runs.fitting(pages)?;
        let chunk = &mut self.chunks[number as usize];
        let first = first_run(chunk.empty & !chunk.reserved, pages);
        if pages > 1 {
            chunk.reserved |= bits(first + 1, pages - 1);
            self.reserved += (pages - 1) as usize;
            self.chunk_runs.update(number, chunk.empty & !chunk.reserved);
        }
        Some(number * CHUNK_SLOTS + first * PAGE_SLOTS)
    }

    /// Cancels the reservations of one chunk, if there are any.
    fn release_pages(&mut self) {
        if self.reserved == 0 {
            return;
        }
        for _ in 0..self.chunks.len() {
            self.release = (self.release + 1) % self.chunks.len();
            let chunk = &mut self.chunks[self.release];
            if chunk.reserved != 0 {
                self.reserved -= chunk.reserved.count_ones() as usize;
                chunk.reserved = 0;
                self.chunk_runs.update(index_u32(self.release), chunk.empty);
                return;
            }
        }
    }

    /// Swaps the prepared chunks, which are used first as memory for new chunks. Swap again at the end of the
    /// slice: [`bytes`](Self::bytes) does not count them.
    pub(crate) fn swap_prepared(&mut self, prepared: &mut Vec<PreparedChunk>) {
        mem::swap(&mut self.prepared, prepared);
    }

    fn grow(&mut self) {
        let is_first = self.chunks.is_empty();
        let slots = if is_first { FIRST_SLOTS } else { CHUNK_SLOTS as usize };
        let prepared = self.prepared.pop().map(|PreparedChunk(content)| content);
        let content = prepared.unwrap_or_else(|| Content::new(slots));
        let number = if let Some(number) = self.absent.pop() {
            self.contents[number as usize] = content;
            number
        } else {
            self.contents.push(content);
            self.chunks.push(Box::new(EMPTY_CHUNK));
            index_u32(self.chunks.len() - 1)
        };
        self.spare += 1;
        self.chunk_runs.update(number, u64::MAX);
        for page in 0..CHUNK_PAGES {
            self.page_runs.update(number * CHUNK_PAGES + page, u64::MAX);
        }
    }

    /// Frees `len` consecutive slots.
    pub(crate) fn free(&mut self, slot: Slot, len: u32) {
        let mut at = slot;
        while at < slot + len {
            let here = (slot + len - at).min(PAGE_SLOTS - in_page(at));
            let mask = bits(in_page(at), here);
            let chunk = &mut self.chunks[chunk_of(at)];
            let used = chunk.used[page_in_chunk(at)];
            debug_assert!(used & mask == mask, "freed slots are in use");
            chunk.named[page_in_chunk(at)] &= !mask;
            self.set_used(page_of(at), used & !mask);
            at += here;
        }
        self.used -= len as usize;
        if self.used == 0 {
            *self = Self::default();
        }
    }

    /// Number of slots with allocated memory.
    fn memory(&self) -> usize {
        let first = self.contents.first().map_or(0, |content| content.locals.len());
        let missing = if first == 0 { 0 } else { CHUNK_SLOTS as usize - first };
        self.capacity() - missing
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.memory() * Content::SLOT_BYTES
            + self.chunks.len() * size_of::<Chunk>()
            + self.absent.capacity() * size_of::<u32>()
            + self.contents.capacity() * size_of::<Content>()
            + self.chunks.capacity() * size_of::<Box<Chunk>>()
            + self.chunk_runs.bytes()
            + self.page_runs.bytes()
    }

    /// Bytes of allocated but unused slots.
    pub(crate) fn free_bytes(&self) -> usize {
        (self.memory() - self.used) * Content::SLOT_BYTES
    }

    /// All slots in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Slot> + '_ {
        let pages = self.chunks.iter().flat_map(|chunk| chunk.used).enumerate();
        pages.flat_map(|(page, used)| {
            let first = index_u32(page) * PAGE_SLOTS;
            (0..PAGE_SLOTS).filter(move |at| used & (1 << at) != 0).map(move |at| first + at)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_get_consecutive_slots_and_freed_ones_are_used_again() {
        let mut slots = Slots::default();
        let (first, taken) = slots.allocate(NONE, 200, 200);
        assert_eq!((first % CHUNK_SLOTS, taken), (0, 200), "over pages");
        let (second, _) = slots.allocate(NONE, 16, 16);
        assert_eq!(second, 256, "another chain begins at an empty page");
        assert_eq!(slots.allocate(first + 199, 100, 0), (first + 200, 56), "up to the next chain");
        assert_eq!(slots.allocate(second + 15, 16, 32), (second + 16, 16), "and continues there");
        slots.free(first + 8, 100);
        assert_eq!(slots.allocate(first + 7, 300, 0), (first + 8, 100), "the freed run");
        let bytes = slots.bytes();
        slots.free(first, 256);
        slots.free(second, 32);
        assert_eq!((slots.used(), slots.bytes() < bytes), (0, true), "nothing remains");
    }

    #[test]
    fn the_first_chunk_takes_memory_as_it_fills() {
        let mut slots = Slots::default();
        let mut end = NONE;
        for len in 1..=CHUNK_SLOTS {
            let (slot, taken) = slots.allocate(end, 1, len);
            assert_eq!((slot, taken), (len - 1, 1));
            slots.fill(slot, LocalHash(len.into()), BlockName((!len).into()));
            slots.set_segment(slot, 1, len + 7);
            end = slot;
            let room = (len as usize).next_power_of_two().max(FIRST_SLOTS);
            assert_eq!(slots.memory(), room, "{len} slots");
        }
        for slot in slots.iter() {
            let local = LocalHash((slot + 1).into());
            let name = BlockName((!(slot + 1)).into());
            assert_eq!((slots.local(slot), slots.name(slot)), (local, name));
            assert_eq!(slots.segment(slot), slot + 8);
        }
        assert_eq!(slots.free_bytes(), 0);
    }

    #[test]
    fn new_chunks_are_prepared_ones_as_long_as_there_are_any() {
        let mut slots = Slots::default();
        let mut prepared = PreparedChunk::for_slots(3 * CHUNK_SLOTS as usize - 1);
        slots.swap_prepared(&mut prepared);
        slots.allocate(NONE, 64, 64);
        slots.swap_prepared(&mut prepared);
        assert_eq!((prepared.len(), slots.memory()), (1, CHUNK_SLOTS as usize), "the first");
        slots.swap_prepared(&mut prepared);
        let chains = (0..2 * CHUNK_PAGES).map(|_| slots.allocate(NONE, 64, 64).1);
        assert_eq!(chains.sum::<u32>(), 2 * CHUNK_SLOTS);
        slots.swap_prepared(&mut prepared);
        assert_eq!((prepared.len(), slots.memory()), (0, 3 * CHUNK_SLOTS as usize));
        assert!(slots.iter().all(|slot| slots.local(slot).0 == 0));
    }

    #[test]
    fn chains_that_grow_side_by_side_stay_in_long_runs() {
        let mut slots = Slots::default();
        let mut ends = vec![NONE; 8];
        let mut breaks = 0;
        for step in 0..32 {
            for end in &mut ends {
                let mut left = 16;
                while left > 0 {
                    let (slot, len) = slots.allocate(*end, left, step * 16);
                    breaks += u32::from(!adjacent(*end, slot));
                    *end = slot + len - 1;
                    left -= len;
                }
            }
        }
        assert_eq!(slots.used(), 8 * 512);
        assert!(breaks <= 8 * 4, "512 slots in at most four runs: {breaks} for 8 chains");
    }

    #[test]
    fn empty_chunks_are_given_back_and_come_again() {
        let mut slots = Slots::default();
        let chains = |slots: &mut Slots| -> Vec<Slot> {
            (0..80).map(|_| slots.allocate(NONE, 256, 256).0).collect()
        };
        let all = chains(&mut slots);
        let full = slots.bytes();
        all.iter().skip(3).for_each(|&slot| slots.free(slot, 256));
        let left = slots.bytes();
        assert!(left < full / 2, "{left} of {full} bytes: one chunk and a spare one of five");
        assert!(slots.iter().all(|slot| slots.local(slot).0 == 0));
        let again = chains(&mut slots);
        assert_eq!(again.iter().filter(|at| all[..3].contains(at)).count(), 0);
        assert_eq!((slots.used(), slots.iter().count()), (83 * 256, 83 * 256));
        assert!(slots.bytes() < full * 3 / 2, "{} bytes, {full} before", slots.bytes());
        all.iter().take(3).chain(&again).for_each(|&slot| slots.free(slot, 256));
        assert_eq!((slots.used(), slots.bytes()), (0, Slots::default().bytes()));
    }

    #[test]
    fn what_was_set_aside_is_used_before_memory_grows() {
        let mut slots = Slots::default();
        // Each allocation reserves seven pages that it never uses.
        for _ in 0..8 {
            slots.allocate(NONE, 64, 512);
        }
        let bytes = slots.bytes();
        for _ in 0..56 {
            slots.allocate(NONE, 64, 64);
        }
        assert_eq!((slots.used(), slots.bytes()), (CHUNK_SLOTS as usize, bytes));
        slots.free(0, 10);
        slots.free(20, 10);
        assert!(slots.bytes() == bytes);
    }
}
