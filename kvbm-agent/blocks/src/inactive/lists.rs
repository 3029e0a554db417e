//! Queues of slots, linked through one table: every step is O(1), and none allocates.

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
    /// The class that the slot is in, or [`NONE`].
    class: u32,
}

#[derive(Debug, Clone, Copy)]
struct Ends {
    front: u32,
    back: u32,
}

/// A queue for each class. A slot is in one of them or in none.
#[derive(Debug)]
pub(crate) struct ClassLists {
    links: Vec<Link>,
    ends: Vec<Ends>,
    /// A bit for each class that is not empty.
    filled: Vec<u64>,
    len: usize,
}

impl ClassLists {
    /// Empty queues. `slots` and `classes` are the numbers of either.
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

    /// Slots in all queues.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// The class that a slot is in.
    pub(crate) fn class_of(&self, slot: SlotId) -> Option<u32> {
        let class = self.links[slot.index()].class;
        (class != NONE).then_some(class)
    }

    /// Puts a slot, which must be in no queue, at the end of one.
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

    /// Takes a slot out of its queue. Whether it was in one.
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

    /// The lowest class that is not empty.
    pub(crate) fn lowest(&self) -> Option<u32> {
        let word = self.filled.iter().position(|word| *word != 0)?;
        let class = word * WORD_BITS + self.filled[word].trailing_zeros() as usize;
        u32::try_from(class).ok()
    }

    /// The slot that has been in a class for longest.
    pub(crate) fn front(&self, class: u32) -> Option<SlotId> {
        let front = self.ends[class as usize].front;
        (front != NONE).then_some(SlotId(front))
    }

    /// The slot that came last into a class.
    pub(crate) fn back(&self, class: u32) -> Option<SlotId> {
        let back = self.ends[class as usize].back;
        (back != NONE).then_some(SlotId(back))
    }

    /// Takes the slot that came last into a class.
    pub(crate) fn pop_back(&mut self, class: u32) -> Option<SlotId> {
        let slot = self.back(class)?;
        self.remove(slot);
        Some(slot)
    }
}
