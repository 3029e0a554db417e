//! Slab allocator: numbered items in pages of 64. Growing does not move items, and empty pages are freed.
#![expect(clippy::indexing_slicing, reason = "numbers are handed out by this file only")]

use crate::table::index_u32;
use std::ops::{Index, IndexMut};

/// Stands for "no number".
pub(super) const NONE: u32 = u32::MAX;
const PAGE_ITEMS: usize = 64;

#[derive(Debug)]
struct Page<T> {
    /// Bitmap of the items in use.
    used: u64,
    previous: u32,
    next: u32,
    /// [`PAGE_ITEMS`] items; empty while the page's number is free.
    items: Box<[T]>,
}

/// Items by number. Items added consecutively are adjacent on fresh pages.
#[derive(Debug)]
pub(super) struct Pages<T> {
    pages: Vec<Page<T>>,
    /// Numbers of freed pages.
    free: Vec<u32>,
    /// First page of the list of pages with free items.
    open: u32,
    used: usize,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: Vec::new(), open: NONE, used: 0 }
    }
}

const fn place(number: u32) -> (usize, usize) {
    (number as usize / PAGE_ITEMS, number as usize % PAGE_ITEMS)
}

impl<T> Index<u32> for Pages<T> {
    type Output = T;

    fn index(&self, number: u32) -> &T {
        let (page, item) = place(number);
        &self.pages[page].items[item]
    }
}

impl<T> IndexMut<u32> for Pages<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        let (page, item) = place(number);
        &mut self.pages[page].items[item]
    }
}

impl<T: Default> Pages<T> {
    /// Stores an item in a page with room, and returns its number.
    pub(super) fn add(&mut self, item: T) -> u32 {
        if self.open == NONE {
            self.new_page();
        }
        let at = self.open as usize;
        let page = &mut self.pages[at];
        let offset = page.used.trailing_ones();
        page.used |= 1 << offset;
        page.items[offset as usize] = item;
        if page.used == u64::MAX {
            self.close(index_u32(at));
        }
        self.used += 1;
        index_u32(at * PAGE_ITEMS) + offset
    }

    /// Removes an item, and frees its page after the last item.
    pub(super) fn remove(&mut self, number: u32) -> T {
        let (at, item) = place(number);
        let page = &mut self.pages[at];
        debug_assert!(page.used & 1 << item != 0, "number {number} is in use");
        let full = page.used == u64::MAX;
        page.used &= !(1 << item);
        let removed = std::mem::take(&mut page.items[item]);
        let empty = page.used == 0;
        self.used -= 1;
        if self.used == 0 {
            *self = Self::default();
            return removed;
        }
        let at = index_u32(at);
        if full {
            self.link(at);
        }
        if empty {
            self.close(at);
            self.pages[at as usize].items = Box::default();
            self.free.push(at);
        }
        removed
    }

    /// Adds an empty page to the list of pages with room. Reuses a freed page, if there is one.
    fn new_page(&mut self) {
        let items = (0..PAGE_ITEMS).map(|_| T::default()).collect();
        let page = Page { used: 0, previous: NONE, next: NONE, items };
        let at = match self.free.pop() {
            Some(at) => {
                self.pages[at as usize] = page;
                at
            }
            None => {
                self.pages.push(page);
                index_u32(self.pages.len() - 1)
            }
        };
        self.link(at);
    }

    /// Inserts a page at the front of the list of pages with free items.
    fn link(&mut self, at: u32) {
        let next = std::mem::replace(&mut self.open, at);
        let page = &mut self.pages[at as usize];
        (page.previous, page.next) = (NONE, next);
        if next != NONE {
            self.pages[next as usize].previous = at;
        }
    }

    /// Removes a page from the list of pages with free items.
    fn close(&mut self, at: u32) {
        let Page { previous, next, .. } = self.pages[at as usize];
        if previous == NONE {
            self.open = next;
        } else {
            self.pages[previous as usize].next = next;
        }
        if next != NONE {
            self.pages[next as usize].previous = previous;
        }
    }
}

impl<T> Pages<T> {
    pub(super) const fn used(&self) -> usize {
        self.used
    }

    /// The item with the next number, if it is on the same page; a default if it is unused.
    pub(super) fn behind(&self, number: u32) -> Option<&T> {
        let (page, item) = place(number);
        self.pages[page].items.get(item + 1)
    }

    /// Upper bound of all numbers in use, exclusive.
    pub(super) const fn numbers(&self) -> usize {
        self.pages.len() * PAGE_ITEMS
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.pages.iter().enumerate().flat_map(|(at, page)| {
            let used = page.items.iter().enumerate();
            let used = used.filter(|(item, _)| page.used & 1 << item != 0);
            used.map(move |(item, value)| (index_u32(at * PAGE_ITEMS + item), value))
        })
    }

    /// Bytes allocated, without memory that the items own.
    pub(super) fn bytes(&self) -> usize {
        let pages = self.pages.len() - self.free.len();
        pages * PAGE_ITEMS * size_of::<T>()
            + self.pages.capacity() * size_of::<Page<T>>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Checks that the list contains exactly the pages with free items, once each, and that the counts are
    /// correct.
    pub(super) fn validate(&self) -> Result<(), String> {
        let mut listed = vec![false; self.pages.len()];
        let mut at = self.open;
        let mut previous = NONE;
        while at != NONE {
            let page = &self.pages[at as usize];
            if page.previous != previous || std::mem::replace(&mut listed[at as usize], true) {
                return Err(format!("page {at} is linked wrongly"));
            }
            (previous, at) = (at, page.next);
        }
        let mut used = 0;
        for (at, (page, listed)) in self.pages.iter().zip(listed).enumerate() {
            let given_back = page.items.is_empty();
            let room = !given_back && page.used != u64::MAX;
            if listed != room || given_back != (page.used == 0) {
                return Err(format!("page {at} has room {room}, listed {listed}"));
            }
            used += page.used.count_ones() as usize;
        }
        if used != self.used {
            return Err(format!("{used} items are used, {} counted", self.used));
        }
        Ok(())
    }
}
