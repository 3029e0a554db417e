//! Adds and removes holders of slots. Splits segments where holders differ, and merges them where they are
//! equal again.

use crate::segments::{NO_SEGMENT, Segment, SegmentId};
use crate::sets::{HolderIndex, SetId, Sets, TierSets};
use crate::slots::{NONE, Slot, adjacent};
use crate::trie::{Trie, alone};
use kvasir_proto::types::Tier;

// === cutting and joining segments ===

impl Trie {
    /// Makes `slot` the last one of its segment.
    pub(crate) fn split_after(&mut self, slot: Slot) {
        let id = self.slots.segment(slot);
        let segment = *self.segments.get(id);
        debug_assert!((segment.head..=segment.tail()).contains(&slot), "slot {slot} is in {id}");
        if slot == segment.tail() {
            return;
        }
        let first = slot - segment.head + 1;
        for set in segment.sets {
            self.sets.retain(set);
        }
        let rest = Segment {
            head: slot + 1,
            len: segment.len - first,
            parent: slot,
            depth: segment.depth + first,
            ..segment
        };
        let rest_id = self.segments.add(rest);
        self.slots.set_segment(rest.head, rest.len, rest_id);
        let segment = self.segments.get_mut(id);
        segment.len = first;
        segment.first_child = rest_id;
        segment.children = 1;
    }

    /// Merges a segment with its only child, if slots are adjacent and holders equal.
    fn merge_with_child(&mut self, id: SegmentId) {
        let segment = *self.segments.get(id);
        if segment.children != 1 || segment.first_child == NO_SEGMENT {
            return;
        }
        let child_id = segment.first_child;
        let child = *self.segments.get(child_id);
        if child.sets != segment.sets || !adjacent(segment.tail(), child.head) {
            return;
        }
        for set in child.sets {
            self.sets.release(set);
        }
        self.segments.remove(child_id);
        self.slots.set_segment(child.head, child.len, id);
        let segment = self.segments.get_mut(id);
        segment.len += child.len;
        segment.stored = segment.stored.max(child.stored);
        segment.first_child = child.first_child;
        segment.children = child.children;
    }

    /// Merges a segment with its child and with its parent, where both are consecutive and have the same holders.
    fn merge_around(&mut self, id: SegmentId) {
        self.merge_with_child(id);
        let segment = self.segments.get(id);
        if adjacent(segment.parent, segment.head) {
            let above = self.slots.segment(segment.parent);
            if self.segments.get(above).first_child == id {
                self.merge_with_child(above);
            }
        }
    }

    /// Moves one end of a segment to its neighbour on that side, if the neighbour is adjacent and already has
    /// the target holders. This is the usual case when a rank joins or leaves a shared chain block by block.
    /// Returns whether it moved.
    fn move_boundary(&mut self, slot: Slot, len: u32, sets: &TierSets) -> bool {
        let id = self.slots.segment(slot);
        let segment = *self.segments.get(id);
        if len == segment.len {
            return false;
        }
        if slot == segment.head && adjacent(segment.parent, slot) {
            let above_id = self.slots.segment(segment.parent);
            let above = self.segments.get_mut(above_id);
            if above.children == 1 && above.first_child == id && above.sets == *sets {
                above.len += len;
                above.stored = above.stored.max(segment.stored);
                self.segments.move_head(id, slot + len);
                self.slots.set_segment(slot, len, above_id);
                return true;
            }
        }
        let child_id = segment.first_child;
        if slot + len - 1 == segment.tail() && segment.children == 1 && child_id != NO_SEGMENT {
            let child = self.segments.get_mut(child_id);
            if child.sets == *sets && adjacent(segment.tail(), child.head) {
                child.stored = child.stored.max(segment.stored);
                self.segments.move_head(child_id, slot);
                self.segments.get_mut(id).len -= len;
                self.slots.set_segment(slot, len, child_id);
                return true;
            }
        }
        false
    }
}

// === holding ===

impl Trie {
    /// Adds a rank as holder of `len` consecutive slots of one segment in a tier.
    pub(crate) fn add_holder(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) {
        self.change(slot, len, tier, |sets, set| sets.with(set, holder));
        self.mark_stored(slot);
    }

    /// Removes a rank as holder of consecutive slots in a tier. Frees positions that no rank needs any more.
    pub(crate) fn remove_holder(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) {
        if self.cut_tail(slot, len, holder, tier) {
            return;
        }
        self.change(slot, len, tier, |sets, set| sets.without(set, holder));
    }

    /// Fast path at the end of a chain: its only holder drops its last slots. Returns whether it applied.
    fn cut_tail(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) -> bool {
        let id = self.slots.segment(slot);
        let segment = self.segments.get(id);
        let is_tail = slot > segment.head && slot + len - 1 == segment.tail();
        if !is_tail || segment.children > 0 || segment.sets != alone(holder, tier) {
            return false;
        }
        self.segments.get_mut(id).len -= len;
        self.free_slots(slot, len);
        true
    }

    /// Replaces the holders of consecutive slots of one segment in a tier by `edit`. First tries to move the boundary
    /// to a neighbour segment that already has the new holders. Otherwise splits the segment, then frees or merges
    /// the part.
    fn change(
        &mut self,
        slot: Slot,
        len: u32,
        tier: Tier,
        edit: impl FnOnce(&mut Sets, SetId) -> SetId,
    ) {
        let before = self.set(slot, tier);
        let after = edit(&mut self.sets, before);
        if after == before {
            self.sets.release(after);
            return;
        }
        let mut sets = self.segment_of(slot).sets;
        if let Some(set) = sets.get_mut(tier.index()) {
            *set = after;
        }
        if self.move_boundary(slot, len, &sets) {
            self.sets.release(after);
            return;
        }
        if slot != self.segment_of(slot).head {
            self.split_after(slot - 1);
        }
        self.split_after(slot + len - 1);
        let id = self.slots.segment(slot);
        let segment = self.segments.get_mut(id);
        debug_assert!((segment.head, segment.len) == (slot, len), "the slots are one segment");
        segment.sets = sets;
        self.sets.release(before);
        if self.segments.get(id).is_unheld() && self.segments.get(id).children == 0 {
            self.free_upwards(id);
        } else {
            self.merge_around(id);
        }
    }

    /// Frees the segment of a slot if neither it nor its descendants are held.
    pub(crate) fn prune(&mut self, slot: Slot) {
        let id = self.slots.segment(slot);
        let segment = self.segments.get(id);
        if segment.is_unheld() && segment.children == 0 {
            self.free_upwards(id);
        }
    }

    /// Frees an unheld segment without children, and each ancestor that becomes one.
    fn free_upwards(&mut self, mut id: SegmentId) {
        loop {
            let segment = *self.segments.get(id);
            self.detach(id, segment.parent);
            self.free_slots(segment.head, segment.len);
            self.segments.remove(id);
            if segment.parent == NONE {
                return;
            }
            id = self.slots.segment(segment.parent);
            let above = self.segments.get(id);
            if !above.is_unheld() || above.children > 0 {
                self.merge_with_child(id);
                return;
            }
        }
    }

    /// Removes a segment from its parent's children. A root segment is only in the branch table; the first child of a
    /// segment is stored in the parent.
    fn detach(&mut self, id: SegmentId, parent: Slot) {
        if parent == NONE {
            self.remove_branch(id);
            return;
        }
        let above = self.slots.segment(parent);
        let above = self.segments.get_mut(above);
        above.children -= 1;
        if above.first_child == id {
            above.first_child = NO_SEGMENT;
        } else {
            self.remove_branch(id);
        }
    }
}
