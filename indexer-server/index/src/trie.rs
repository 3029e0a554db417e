//! Positions and who holds them: slots linked into segments, segments into a trie.

use crate::segments::{Segment, SegmentId, Segments};
use crate::sets::{HolderIndex, SetId, Sets, TierSets};
use crate::slots::{NONE, Slot, Slots, adjacent};
use crate::table::{SplitTable, mix};
use kvasir_proto::types::{BlockName, LocalHash, StoredBlock, Tier};

/// What a new slot is created with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewSlot {
    /// Slot that it is a child of; [`NONE`] for first blocks.
    pub(crate) parent: Slot,
    /// Its content and the name it was announced under.
    pub(crate) block: StoredBlock,
    /// Who holds it, and where.
    pub(crate) holder: HolderIndex,
    pub(crate) tier: Tier,
    /// How many slots its chain is about to need, this one included.
    pub(crate) wanted: usize,
}

/// All positions of an index.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    pub(crate) slots: Slots,
    pub(crate) segments: Segments,
    pub(crate) sets: Sets,
    /// First blocks, and children that are no segment's `first_child`, by parent and local hash.
    branches: SplitTable<Slot>,
    /// Slots by their own name, where no other slot had the name first.
    names: SplitTable<Slot>,
}

fn branch_hash(parent: Slot, local: LocalHash) -> u64 {
    mix(local.0 ^ mix(u64::from(parent)))
}

// === questions ===

impl Trie {
    pub(crate) fn segment_of(&self, slot: Slot) -> &Segment {
        self.segments.get(self.slots.segment(slot))
    }

    /// Slot that `slot` is a child of, or [`NONE`].
    pub(crate) fn parent(&self, slot: Slot) -> Slot {
        let segment = self.segment_of(slot);
        if slot == segment.head { segment.parent } else { slot - 1 }
    }

    /// Depth of a slot, 1 for first blocks; 0 for [`NONE`].
    pub(crate) fn depth(&self, slot: Slot) -> usize {
        if slot == NONE {
            return 0;
        }
        let segment = self.segment_of(slot);
        (segment.depth + slot - segment.head) as usize
    }

    /// The child of `parent` (or the first block, under [`NONE`]) with this content.
    pub(crate) fn child(&self, parent: Slot, local: LocalHash) -> Option<Slot> {
        if parent == NONE {
            return self.branch(parent, local);
        }
        let segment = self.segment_of(parent);
        if parent == segment.tail() {
            return self.child_of_segment(segment, local);
        }
        Some(parent + 1).filter(|&next| self.slots.local(next) == local)
    }

    /// The child of a segment's last slot with this content.
    pub(crate) fn child_of_segment(&self, segment: &Segment, local: LocalHash) -> Option<Slot> {
        let first = segment.first_child;
        if first != NONE && self.slots.local(first) == local {
            return Some(first);
        }
        if segment.children > u32::from(first != NONE) {
            return self.branch(segment.tail(), local);
        }
        None
    }

    pub(crate) fn branch(&self, parent: Slot, local: LocalHash) -> Option<Slot> {
        let is_it = |&slot: &Slot| {
            self.slots.local(slot) == local && self.segment_of(slot).parent == parent
        };
        self.branches.find(branch_hash(parent, local), is_it).copied()
    }

    /// The slot whose own name this is.
    pub(crate) fn named(&self, name: BlockName) -> Option<Slot> {
        self.names.find(mix(name.0), |&slot| self.slots.name(slot) == name).copied()
    }

    pub(crate) fn holds(&self, slot: Slot, holder: HolderIndex, tier: Tier) -> bool {
        self.sets.contains(self.set(slot, tier), holder)
    }

    pub(crate) fn set(&self, slot: Slot, tier: Tier) -> SetId {
        let [device, host, disk] = self.segment_of(slot).sets;
        match tier {
            Tier::Device => device,
            Tier::Host => host,
            Tier::Disk => disk,
        }
    }

    /// The name under which the parent of `slot` was first stored; none for first blocks.
    pub(crate) fn parent_name(&self, slot: Slot) -> Option<BlockName> {
        let parent = self.parent(slot);
        (parent != NONE).then(|| self.slots.name(parent))
    }

    pub(crate) fn branch_slots(&self) -> impl Iterator<Item = &Slot> {
        self.branches.iter()
    }

    pub(crate) fn name_slots(&self) -> impl Iterator<Item = &Slot> {
        self.names.iter()
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
            + self.segments.bytes()
            + self.sets.bytes()
            + self.branches.bytes()
            + self.names.bytes()
    }
}

// === growing ===

impl Trie {
    /// Adds a position that does not exist, held by one rank in one tier. Its name goes to the
    /// name table unless another slot has it.
    pub(crate) fn create(&mut self, new: NewSlot) -> Slot {
        let NewSlot { parent, block, holder, tier, wanted } = new;
        debug_assert!(self.child(parent, block.local).is_none(), "the position is new");
        let slot = self.slots.allocate(parent, wanted, block.local, block.name);
        if self.named(block.name).is_none() {
            let slots = &self.slots;
            self.names.insert(mix(block.name.0), slot, |&at| mix(slots.name(at).0));
            self.slots.set_named(slot);
        }
        let mut sets: TierSets = [SetId::EMPTY; Tier::COUNT];
        if let Some(set) = sets.get_mut(tier.index()) {
            *set = SetId::single(holder);
        }
        if !self.extend_parent(parent, slot, &sets) {
            self.begin_segment(parent, slot, sets);
        }
        slot
    }

    /// Makes a new slot the last one of its parent's segment, where nothing speaks against it.
    fn extend_parent(&mut self, parent: Slot, slot: Slot, sets: &TierSets) -> bool {
        if parent == NONE || !adjacent(parent, slot) {
            return false;
        }
        let id = self.slots.segment(parent);
        let segment = self.segments.get_mut(id);
        let fits = segment.tail() == parent && segment.children == 0 && segment.sets == *sets;
        if fits {
            segment.len += 1;
            self.slots.set_segment(slot, 1, id);
        }
        fits
    }

    fn begin_segment(&mut self, parent: Slot, slot: Slot, sets: TierSets) {
        let mut depth = 1;
        let mut in_table = true;
        if parent != NONE {
            self.split_after(parent);
            let id = self.slots.segment(parent);
            let above = self.segments.get_mut(id);
            depth = above.depth + above.len;
            above.children += 1;
            if above.first_child == NONE {
                above.first_child = slot;
                in_table = false;
            }
        }
        let id = self.segments.add(Segment {
            head: slot,
            len: 1,
            parent,
            first_child: NONE,
            children: 0,
            depth,
            sets,
        });
        self.slots.set_segment(slot, 1, id);
        if in_table {
            self.insert_branch(parent, slot);
        }
    }

    fn insert_branch(&mut self, parent: Slot, slot: Slot) {
        let hash = branch_hash(parent, self.slots.local(slot));
        let (slots, segments) = (&self.slots, &self.segments);
        self.branches.insert(hash, slot, |&at| {
            branch_hash(segments.get(slots.segment(at)).parent, slots.local(at))
        });
    }

    fn remove_branch(&mut self, parent: Slot, slot: Slot) {
        let hash = branch_hash(parent, self.slots.local(slot));
        let (slots, segments) = (&self.slots, &self.segments);
        self.branches.remove(
            hash,
            |&at| at == slot,
            |&at| branch_hash(segments.get(slots.segment(at)).parent, slots.local(at)),
        );
    }
}

// === cutting and joining segments ===

impl Trie {
    /// Makes `slot` the last one of its segment.
    fn split_after(&mut self, slot: Slot) {
        let id = self.slots.segment(slot);
        let segment = *self.segments.get(id);
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
        segment.first_child = rest.head;
        segment.children = 1;
    }

    /// Joins a segment with its only child, if that is the same stretch with the same holders.
    fn merge_with_child(&mut self, id: SegmentId) {
        let segment = *self.segments.get(id);
        if segment.children != 1 || !adjacent(segment.tail(), segment.first_child) {
            return;
        }
        let child_id = self.slots.segment(segment.first_child);
        let child = *self.segments.get(child_id);
        if child.sets != segment.sets {
            return;
        }
        for set in child.sets {
            self.sets.release(set);
        }
        self.segments.remove(child_id);
        self.slots.set_segment(child.head, child.len, id);
        let segment = self.segments.get_mut(id);
        segment.len += child.len;
        segment.first_child = child.first_child;
        segment.children = child.children;
    }

    fn merge_around(&mut self, id: SegmentId) {
        self.merge_with_child(id);
        let segment = self.segments.get(id);
        if adjacent(segment.parent, segment.head) {
            let above = self.slots.segment(segment.parent);
            if self.segments.get(above).first_child == segment.head {
                self.merge_with_child(above);
            }
        }
    }
}

// === holding ===

impl Trie {
    /// Lets a rank hold `len` consecutive slots of one segment in a tier.
    pub(crate) fn hold(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) {
        self.change(slot, len, tier, |sets, set| sets.with(set, holder));
    }

    /// Ends it. Positions that nobody holds and that lead to none that is held go.
    pub(crate) fn unhold(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) {
        if self.cut_tail(slot, len, holder, tier) {
            return;
        }
        self.change(slot, len, tier, |sets, set| sets.without(set, holder));
    }

    /// The common end of a chain: its only holder lets go of its last slots.
    fn cut_tail(&mut self, slot: Slot, len: u32, holder: HolderIndex, tier: Tier) -> bool {
        let id = self.slots.segment(slot);
        let segment = self.segments.get(id);
        let mut alone: TierSets = [SetId::EMPTY; Tier::COUNT];
        if let Some(set) = alone.get_mut(tier.index()) {
            *set = SetId::single(holder);
        }
        let is_tail = slot > segment.head && slot + len - 1 == segment.tail();
        if !is_tail || segment.children > 0 || segment.sets != alone {
            return false;
        }
        self.segments.get_mut(id).len -= len;
        self.free_slots(slot, len);
        true
    }

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
        if slot != self.segment_of(slot).head {
            self.split_after(slot - 1);
        }
        self.split_after(slot + len - 1);
        let id = self.slots.segment(slot);
        let segment = self.segments.get_mut(id);
        debug_assert!((segment.head, segment.len) == (slot, len), "one segment was asked for");
        if let Some(set) = segment.sets.get_mut(tier.index()) {
            *set = after;
        }
        self.sets.release(before);
        if self.segments.get(id).is_unheld() && self.segments.get(id).children == 0 {
            self.free_upwards(id);
        } else {
            self.merge_around(id);
        }
    }

    /// Frees an unheld segment without children, and every ancestor that becomes one.
    fn free_upwards(&mut self, mut id: SegmentId) {
        loop {
            let segment = *self.segments.get(id);
            self.detach(&segment);
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

    fn detach(&mut self, segment: &Segment) {
        if segment.parent == NONE {
            self.remove_branch(NONE, segment.head);
            return;
        }
        let above = self.slots.segment(segment.parent);
        let above = self.segments.get_mut(above);
        above.children -= 1;
        if above.first_child == segment.head {
            above.first_child = NONE;
        } else {
            self.remove_branch(segment.parent, segment.head);
        }
    }

    fn free_slots(&mut self, slot: Slot, len: u32) {
        for at in slot..slot + len {
            if self.slots.is_named(at) {
                let slots = &self.slots;
                let hash = mix(slots.name(at).0);
                self.names.remove(hash, |&other| other == at, |&other| mix(slots.name(other).0));
            }
        }
        self.slots.free(slot, len);
    }
}
