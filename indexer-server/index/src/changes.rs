//! What changed of a rank since its last image.
//!
//! Blocks that a rank holds plainly are noted by page of 64 slots, all others by name: the next
//! image says how these are by then. A chain that is stored costs a number for 64 blocks.

use crate::limits::ChangeLimits;
use crate::slots::{Page, Slot, page_of};
use crate::table::SplitMap;
use kvasir_proto::types::BlockName;

/// Places that the next image is to read again.
#[derive(Debug)]
pub(crate) struct Changes {
    limits: ChangeLimits,
    /// Pages in which what the rank plainly holds changed, each with the slots that the rank has let
    /// go of and that stayed in use, one bit each.
    pub(crate) pages: SplitMap<Page, u64>,
    /// The page noted last, which is not among the others yet, with its slots: events go along pages.
    last: Option<(Page, u64)>,
    /// Names whose records changed, came or went.
    pub(crate) names: SplitMap<BlockName, ()>,
    /// Something that an image says of the rank besides blocks.
    pub(crate) heading: bool,
}

impl Changes {
    pub(crate) fn new(limits: ChangeLimits) -> Self {
        Self {
            limits,
            pages: SplitMap::default(),
            last: None,
            names: SplitMap::default(),
            heading: false,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        !self.heading && self.last.is_none() && self.pages.is_empty() && self.names.is_empty()
    }

    /// Notes the pages of consecutive slots; false if they are too many.
    pub(crate) fn note_slots(&mut self, slot: Slot, len: u32) -> bool {
        (page_of(slot)..=page_of(slot + len - 1)).all(|page| self.note_page(page, 0))
    }

    /// Notes a page and slots of it that were let go of; false if there is no room for it.
    pub(crate) fn note_page(&mut self, page: Page, released: u64) -> bool {
        if let Some((last, slots)) = &mut self.last
            && *last == page
        {
            *slots |= released;
            return true;
        }
        let has_room = self.flush();
        self.last = Some((page, released));
        has_room
    }

    /// Puts the page noted last among the others; false if there is no room for it.
    pub(crate) fn flush(&mut self) -> bool {
        self.last.take().is_none_or(|(page, released)| self.put(page, released))
    }

    fn put(&mut self, page: Page, released: u64) -> bool {
        if let Some(noted) = self.pages.get_mut(page) {
            *noted |= released;
            return true;
        }
        let has_room = self.pages.len() < self.limits.pages_max;
        if has_room {
            self.pages.insert(page, released);
        }
        has_room
    }

    /// Notes a name; false if there is no room for it.
    pub(crate) fn note_name(&mut self, name: BlockName) -> bool {
        let is_known = self.names.contains(name);
        let has_room = self.names.len() < self.limits.names_max;
        if !is_known && has_room {
            self.names.insert(name, ());
        }
        is_known || has_room
    }

    /// Adds what was noted before; false if that is too much.
    pub(crate) fn merge(&mut self, mut earlier: Self) -> bool {
        let has_room = self.flush() && earlier.flush();
        if earlier.pages.len() + earlier.names.len() > self.pages.len() + self.names.len() {
            std::mem::swap(self, &mut earlier);
        }
        self.heading |= earlier.heading;
        has_room
            && earlier.pages.iter().all(|&(page, released)| self.put(page, released))
            && earlier.names.iter().all(|&(name, ())| self.note_name(name))
    }

    /// Bytes allocated, itself included.
    pub(crate) const fn bytes(&self) -> usize {
        size_of::<Self>() + self.pages.bytes() + self.names.bytes()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.pages.is_counted() && self.names.is_counted()
    }
}
