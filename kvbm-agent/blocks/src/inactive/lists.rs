//! Intrusive linked lists of slots in one table: every operation is O(1) and allocation-free.

#![expect(
    clippy::indexing_slicing,
    reason = "slots and classes are below the numbers it was made with"
)]

use crate::identity::SlotId;

/// No slot.
const NONE: u32 = u32::MAX;
const WORD_BITS: usize = u64::BITS as usize;

#[derive(Debug, Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
    /// The class that contains the slot, or [`NONE`].
    class: u32,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    front: u32,
    back: u32,
}

/// One FIFO queue for each class. A slot is in at most one queue.
#[derive(Debug)]
pub(crate) struct ClassLists {
    links: Vec<Link>,
    ends: Vec<Ends>,
    /// Bit set of the non-empty classes.
    filled: Vec<u64>,
    len: usize,
}

impl ClassLists {
    /// Creates empty queues for `slots` slots and `classes` classes.
    pub(crate) fn new(slots: u32, classes: u32) -> Self {
        let unlinked = Link { before: NONE, after: NONE, class: NONE };
        let classes = classes as usize;
        Self {
            links: vec![unlinked; slots as usize],
            ends: vec![Ends { front: NONE, back: NONE }; classes],
            filled: vec![0; classes.div_ceil(WORD_BITS)],
            len: 0,
        }
    }

    /// Number of slots in all queues.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The class that contains a slot.
    pub(crate) fn class_of(&self, slot: SlotId) -> Option<u32> {
        let class = self.links[slot.index()].class;
        (class != NONE).then_some(class)
    }

    /// Appends a slot, which must be in no queue, to a class.
    pub(crate) fn push_back(&mut self, class: u32, slot: SlotId) {
        debug_assert_eq!(self.class_of(slot), None, "{slot:?} is in one queue at most");
        let at = class as usize;
        let last = self.ends[at].back;
        self.links[slot.index()] = Link { before: last, after: NONE, class };
        match last {
            NONE => self.ends[at].front = slot.0,
            last => self.links[last as usize].after = slot.0,
        }
        self.ends[at].back = slot.0;
        self.filled[at / WORD_BITS] |= 1 << (at % WORD_BITS);
        self.len += 1;
    }

    /// Removes a slot from its queue. Returns whether it was in one.
    pub(crate) fn remove(&mut self, slot: SlotId) -> bool {
        let Link { before, after, class } = self.links[slot.index()];
        if class == NONE {
            return false;
        }
        let at = class as usize;
        match before {
            NONE => self.ends[at].front = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.ends[at].back = before,
            after => self.links[after as usize].before = before,
        }
        self.links[slot.index()] = Link { before: NONE, after: NONE, class: NONE };
        if self.ends[at].front == NONE {
            self.filled[at / WORD_BITS] &= !(1 << (at % WORD_BITS));
        }
        self.len -= 1;
        true
    }

    /// The lowest non-empty class.
    pub(crate) fn lowest(&self) -> Option<u32> {
        let word = self.filled.iter().position(|word| *word != 0)?;
        let class = word * WORD_BITS + self.filled[word].trailing_zeros() as usize;
        u32::try_from(class).ok()
    }

    /// The slot that was added to a class first.
    pub(crate) fn front(&self, class: u32) -> Option<SlotId> {
        let front = self.ends[class as usize].front;
        (front != NONE).then_some(SlotId(front))
    }

    /// The slot that was added to a class last.
    pub(crate) fn last_slot(&self, class: u32) -> Option<SlotId> {
        let back = self.ends[class as usize].back;
        (back != NONE).then_some(SlotId(back))
    }

    /// Removes the slot that was added to a class last.
    pub(crate) fn pop_back(&mut self, class: u32) -> Option<SlotId> {
        let slot = self.last_slot(class)?;
        self.remove(slot);
        Some(slot)
    }
}
