//! Records a rank's changes since its last image, for incremental images.
//!
//! Changes of plain blocks are noted by page of 64 slots, all others by name. The next image reads these
//! pages and names again. Storing a chain notes one number per 64 blocks.

use crate::limits::ChangeLimits;
use crate::slots::{PAGE_SLOTS, Page, Slot, page_of};
use crate::table::SplitMap;
use kvasir_proto::types::BlockName;

/// Pages and names that the next image of a rank must read again.
#[derive(Debug)]
pub(crate) struct Changes {
    limits: ChangeLimits,
    /// Pages with changed plain blocks. The bits are the slots of the page that the rank released and that
    /// stayed in use.
    pages: SplitMap<Page, u64>,
    /// The page noted last, with its slots, not yet in `pages`: consecutive events usually concern the same
    /// page.
    last: Option<(Page, u64)>,
    /// Names whose records were changed, added or removed.
    names: SplitMap<BlockName, ()>,
    /// Whether other data of the rank changed that an image contains.
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

    /// Notes the pages of consecutive slots. Returns `false` beyond the limit.
    fn note_slots(&mut self, slot: Slot, len: u32) -> bool {
        (page_of(slot)..=page_of(slot + len - 1)).all(|page| self.note_page(page, 0))
    }

    /// Notes a page and its released slots. Returns `false` beyond the limit.
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

    /// Adds the page noted last to `pages`. Returns `false` beyond the limit.
    fn flush(&mut self) -> bool {
        self.last.take().is_none_or(|(page, released)| self.add_page(page, released))
    }

    /// Adds a page with its released slots. Returns `false` beyond the limit.
    fn add_page(&mut self, page: Page, released: u64) -> bool {
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

    /// Notes a name. Returns `false` beyond the limit.
    fn note_name(&mut self, name: BlockName) -> bool {
        let is_known = self.names.contains(name);
        let has_room = self.names.len() < self.limits.names_max;
        if !is_known && has_room {
            self.names.insert(name, ());
        }
        is_known || has_room
    }

    /// Adds earlier notes. Returns `false` beyond the limit.
    fn merge(&mut self, mut earlier: Self) -> bool {
        let has_room = self.flush() && earlier.flush();
        if earlier.pages.len() + earlier.names.len() > self.pages.len() + self.names.len() {
            std::mem::swap(self, &mut earlier);
        }
        self.heading |= earlier.heading;
        has_room
            && earlier.pages.iter().all(|&(page, released)| self.add_page(page, released))
            && earlier.names.iter().all(|&(name, ())| self.note_name(name))
    }

    // === what a cut reads ===

    /// One part of the noted pages; `None` after the last part.
    pub(crate) fn pages(&self, part: usize) -> Option<impl Iterator<Item = Page>> {
        debug_assert!(self.last.is_none(), "a cut reads flushed notes");
        self.pages.part(part).map(|pages| pages.map(|&(page, _)| page))
    }

    /// One part of the noted names; `None` after the last part.
    pub(crate) fn names(&self, part: usize) -> Option<impl Iterator<Item = BlockName>> {
        self.names.part(part).map(|names| names.map(|&(name, ())| name))
    }

    /// Slots of a page that the rank released and that stayed in use, one bit per slot.
    pub(crate) fn released(&self, page: Page) -> u64 {
        self.pages.get(page).copied().unwrap_or(0)
    }
}

/// The notes of a rank. `None` means that anything may have changed: there were too many notes, or there is
/// no image yet.
#[derive(Debug, Default)]
pub(crate) struct ChangeLog(Option<Box<Changes>>);

impl ChangeLog {
    /// Notes changed plain blocks in consecutive slots.
    pub(crate) fn note_slots(&mut self, slot: Slot, len: u32) {
        self.record_change(|changes| changes.note_slots(slot, len));
    }

    /// Notes a changed record.
    pub(crate) fn note_name(&mut self, name: BlockName) {
        self.record_change(|changes| changes.note_name(name));
    }

    /// Notes that the rank released a slot that stayed in use.
    pub(crate) fn note_released(&mut self, slot: Slot) {
        self.record_change(|changes| changes.note_page(page_of(slot), 1 << (slot % PAGE_SLOTS)));
    }

    /// Notes that data other than blocks changed.
    pub(crate) fn note_heading(&mut self) {
        self.record_change(|changes| {
            changes.heading = true;
            true
        });
    }

    #[inline]
    fn record_change(&mut self, has_room: impl FnOnce(&mut Changes) -> bool) {
        if self.0.as_mut().is_some_and(|changes| !has_room(changes)) {
            self.discard_notes();
        }
    }

    /// Stops noting until the next image, which must be complete.
    pub(crate) fn discard_notes(&mut self) {
        self.0 = None;
    }

    /// Whether anything changed, or may have changed.
    pub(crate) fn has_changes(&self) -> bool {
        self.0.as_ref().is_none_or(|changes| !changes.is_empty())
    }

    /// Whether all changes were noted, so that they can be taken.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.record_change(Changes::flush);
        self.0.is_some()
    }

    /// Takes the notes for an image. Starts new ones if there are `limits`.
    pub(crate) fn take_notes(&mut self, limits: Option<ChangeLimits>) -> Option<Box<Changes>> {
        std::mem::replace(&mut self.0, limits.map(|limits| Box::new(Changes::new(limits))))
    }

    /// Returns the notes of an abandoned image.
    pub(crate) fn give_back(&mut self, earlier: Option<Box<Changes>>) {
        // Without notes the next image is complete anyway. The rank may even belong to another worker now.
        match earlier {
            Some(earlier) => self.record_change(|changes| changes.merge(*earlier)),
            None => self.discard_notes(),
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
