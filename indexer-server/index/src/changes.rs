//! What changed of a rank since its last image.
//!
//! Blocks that a rank holds plainly are noted by page of 64 slots, all others by name: the next
//! image says how these are by then. A chain that is stored costs a number for 64 blocks.

use crate::holder::{Holder, Page};
use crate::limits::ChangeLimits;
use crate::slots::{Slot, page_of};
use crate::table::{MapKey, SplitMap};
use crate::trie::Trie;
use kvasir_proto::types::BlockName;

/// Places that the next image is to read again.
#[derive(Debug)]
pub(crate) struct Changes {
    limits: ChangeLimits,
    /// Pages in which what the rank plainly holds changed.
    pub(crate) pages: SplitMap<Page, ()>,
    /// The page noted last: events go along pages.
    page: Option<Page>,
    /// Names whose records changed, came or went.
    pub(crate) names: SplitMap<BlockName, ()>,
    /// Slots that the rank let go of while it held a block below.
    pub(crate) released: SplitMap<Slot, ()>,
    /// Something that an image says of the rank besides blocks.
    pub(crate) heading: bool,
}

impl Changes {
    pub(crate) fn new(limits: ChangeLimits) -> Self {
        Self {
            limits,
            pages: SplitMap::default(),
            page: None,
            names: SplitMap::default(),
            released: SplitMap::default(),
            heading: false,
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        !self.heading && self.pages.is_empty() && self.names.is_empty() && self.released.is_empty()
    }

    /// Notes the pages of consecutive slots; false if they are too many.
    fn note_slots(&mut self, slot: Slot, len: u32) -> bool {
        (page_of(slot)..=page_of(slot + len - 1)).all(|page| {
            self.page == Some(page) || {
                self.page = Some(page);
                note(&mut self.pages, page, self.limits.pages_max)
            }
        })
    }

    /// Adds what was noted before; false if that is too much.
    pub(crate) fn merge(&mut self, mut earlier: Self) -> bool {
        if earlier.pages.len() + earlier.names.len() > self.pages.len() + self.names.len() {
            std::mem::swap(self, &mut earlier);
        }
        self.heading |= earlier.heading;
        let ChangeLimits { pages_max, names_max, released_max } = self.limits;
        let all = |&(key, ()): &(_, ())| note(&mut self.pages, key, pages_max);
        earlier.pages.iter().all(all)
            && earlier.names.iter().all(|&(key, ())| note(&mut self.names, key, names_max))
            && earlier.released.iter().all(|&(key, ())| note(&mut self.released, key, released_max))
    }

    /// Bytes allocated, itself included.
    pub(crate) const fn bytes(&self) -> usize {
        size_of::<Self>() + self.pages.bytes() + self.names.bytes() + self.released.bytes()
    }

    pub(crate) fn is_counted(&self) -> bool {
        self.pages.is_counted() && self.names.is_counted() && self.released.is_counted()
    }
}

/// Adds a key; false if there is no room for it.
fn note<K: MapKey>(set: &mut SplitMap<K, ()>, key: K, most: usize) -> bool {
    if set.contains(key) {
        return true;
    }
    if set.len() >= most {
        return false;
    }
    set.insert(key, ());
    true
}

impl Holder {
    /// Notes for the next image that what it plainly holds of consecutive slots changed.
    pub(crate) fn change_slots(&mut self, slot: Slot, len: u32) {
        if self.changes.as_mut().is_some_and(|changes| !changes.note_slots(slot, len)) {
            self.changes = None;
        }
    }

    /// Notes for the next image that a record changed.
    pub(crate) fn change_name(&mut self, name: BlockName) {
        let noted =
            |changes: &mut Box<Changes>| note(&mut changes.names, name, changes.limits.names_max);
        if self.changes.as_mut().is_some_and(|changes| !noted(changes)) {
            self.changes = None;
        }
    }

    /// Notes for the next image that it has let go of a slot, if there may be a block below that it
    /// holds: that block's place is known by this slot.
    pub(crate) fn release(&mut self, trie: &Trie, slot: Slot) {
        let index = self.index;
        let Some(changes) = self.changes.as_mut().filter(|_| trie.slots.is_used(slot)) else {
            return;
        };
        let leads_on = trie.may_have_child(slot, |child| trie.holds_any(child, index));
        if leads_on && !note(&mut changes.released, slot, changes.limits.released_max) {
            self.changes = None;
        }
    }

    /// Notes for the next image that something besides blocks changed.
    pub(crate) fn change_heading(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.heading = true;
        }
    }

    /// Whether the next image has anything to say of it.
    pub(crate) fn has_changed(&self) -> bool {
        self.changes.as_ref().is_none_or(|changes| !changes.is_empty())
    }
}
