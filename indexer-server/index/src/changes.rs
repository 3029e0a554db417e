//! What changed of a rank since its last image.
//!
//! Blocks that a rank holds plainly are noted by page of 64 slots, all others by name. The next
//! image reads these pages and names again. Storing a chain notes one number for 64 blocks.

use crate::limits::ChangeLimits;
use crate::slots::{PAGE_SLOTS, Page, Slot, page_of};
use crate::table::SplitMap;
use kvasir_proto::types::BlockName;

/// What the next image of a rank is to read again.
#[derive(Debug)]
pub(crate) struct Changes {
    limits: ChangeLimits,
    /// Pages in which what the rank plainly holds changed. The bits are the slots of the page that
    /// the rank released and that stayed in use.
    pages: SplitMap<Page, u64>,
    /// The page noted last, which is not among the others yet, with its slots: events go along pages.
    last: Option<(Page, u64)>,
    /// Names whose records changed, came or went.
    names: SplitMap<BlockName, ()>,
    /// Whether something changed that an image records of the rank besides blocks.
    heading: bool,
}

impl Changes {
    fn new(limits: ChangeLimits) -> Self {
        let pages = SplitMap::default();
        let names = SplitMap::default();
        Self { limits, pages, last: None, names, heading: false }
    }

    const fn is_empty(&self) -> bool {
        !self.heading && self.last.is_none() && self.pages.is_empty() && self.names.is_empty()
    }

    /// Notes the pages of consecutive slots; false if they are too many.
    fn note_slots(&mut self, slot: Slot, len: u32) -> bool {
        (page_of(slot)..=page_of(slot + len - 1)).all(|page| self.note_page(page, 0))
    }

    /// Notes a page and released slots of it; false if there is no room for it.
    fn note_page(&mut self, page: Page, released: u64) -> bool {
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
    fn flush(&mut self) -> bool {
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
    fn note_name(&mut self, name: BlockName) -> bool {
        let is_known = self.names.contains(name);
        let has_room = self.names.len() < self.limits.names_max;
        if !is_known && has_room {
            self.names.insert(name, ());
        }
        is_known || has_room
    }

    /// Adds earlier notes; false if that is too much.
    fn merge(&mut self, mut earlier: Self) -> bool {
        let has_room = self.flush() && earlier.flush();
        if earlier.pages.len() + earlier.names.len() > self.pages.len() + self.names.len() {
            std::mem::swap(self, &mut earlier);
        }
        self.heading |= earlier.heading;
        has_room
            && earlier.pages.iter().all(|&(page, released)| self.put(page, released))
            && earlier.names.iter().all(|&(name, ())| self.note_name(name))
    }

    // === what a cut reads ===

    /// One part of the noted pages; none past the last part.
    pub(crate) fn pages(&self, part: usize) -> Option<impl Iterator<Item = Page>> {
        debug_assert!(self.last.is_none(), "a cut reads flushed notes");
        self.pages.part(part).map(|pages| pages.map(|&(page, _)| page))
    }

    /// One part of the noted names; none past the last part.
    pub(crate) fn names(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        self.names.part(part).map(|names| names.map(|&(name, ())| name))
    }

    /// Slots of a page that the rank released and that stayed in use, one bit each.
    pub(crate) fn released(&self, page: Page) -> u64 {
        self.pages.get(page).copied().unwrap_or(0)
    }
}

/// The notes of a rank; none once anything may have changed, because there were too many notes or
/// there was no image yet.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog(Option<Box<Changes>>);

impl ChangeLog {
    /// What the rank plainly holds of consecutive slots changed.
    pub(crate) fn note_slots(&mut self, slot: Slot, len: u32) {
        self.note(|changes| changes.note_slots(slot, len));
    }

    /// A record changed.
    pub(crate) fn note_name(&mut self, name: BlockName) {
        self.note(|changes| changes.note_name(name));
    }

    /// The rank released a slot that stayed in use.
    pub(crate) fn note_released(&mut self, slot: Slot) {
        self.note(|changes| changes.note_page(page_of(slot), 1 << (slot % PAGE_SLOTS)));
    }

    /// Something besides blocks changed.
    pub(crate) fn note_heading(&mut self) {
        self.note(|changes| {
            changes.heading = true;
            true
        });
    }

    #[inline]
    fn note(&mut self, has_room: impl FnOnce(&mut Changes) -> bool) {
        if self.0.as_mut().is_some_and(|changes| !has_room(changes)) {
            self.forget();
        }
    }

    /// Notes nothing until the next image, which is to be complete.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }

    /// Whether anything changed, or may have.
    pub(crate) fn has_changes(&self) -> bool {
        self.0.as_ref().is_none_or(|changes| !changes.is_empty())
    }

    /// Whether all changes were noted; then they can be taken.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.note(Changes::flush);
        self.0.is_some()
    }

    /// Takes the notes for an image, and begins new ones if there are limits for them.
    pub(crate) fn take(&mut self, limits: Option<ChangeLimits>) -> Option<Box<Changes>> {
        std::mem::replace(&mut self.0, limits.map(|limits| Box::new(Changes::new(limits))))
    }

    /// Takes back the notes of an image that was abandoned.
    pub(crate) fn give_back(&mut self, earlier: Option<Box<Changes>>) {
        // Without notes the next image is complete anyway. The rank may even be another worker's.
        match earlier {
            Some(earlier) => self.note(|changes| changes.merge(*earlier)),
            None => self.forget(),
        }
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.0.as_deref().map_or(0, |changes| {
            size_of::<Changes>() + changes.pages.bytes() + changes.names.bytes()
        })
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.0.as_ref().is_none_or(|at| at.pages.is_counted() && at.names.is_counted())
    }
}
