//! The prefix trie: positions and their holders. Slots form segments, and segments form the trie.

use crate::numbers::Numbers;
use crate::prefetch::prefetch;
use crate::segments::{NO_SEGMENT, Segment, SegmentId, Segments};
use crate::sets::{HolderIndex, SetId, Sets, TierSets};
use crate::slots::{NONE, Slot, Slots, adjacent};
use crate::table::mix;
use kvasir_proto::types::{BlockName, LocalHash, StoredBlock, Tier};
use smallvec::SmallVec;
use std::hint::black_box;

/// Parent of a new run of positions, and its holders: one rank, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NewRun {
    /// Parent slot of the first position; [`NONE`] for first blocks.
    pub(crate) parent: Slot,
    pub(crate) sets: TierSets,
}

impl NewRun {
    /// A run held by one rank in one tier.
    pub(crate) fn held(parent: Slot, holder: HolderIndex, tier: Tier) -> Self {
        Self { parent, sets: alone(holder, tier) }
    }

    /// A run without holders: add the blocks below it immediately.
    pub(crate) const fn unheld(parent: Slot) -> Self {
        Self { parent, sets: [SetId::EMPTY; Tier::COUNT] }
    }
}

/// All positions of an index.
#[derive(Debug, Default)]
pub(crate) struct Trie {
    pub(crate) slots: Slots,
    pub(crate) segments: Segments,
    pub(crate) sets: Sets,
    /// Segments of first blocks, and of children that are not a segment's `first_child`, by the parent slot
    /// and the local hash of their head.
    branches: Numbers,
    /// Slots by their own name. If several slots have a name, only the first is here.
    names: Numbers,
    /// Number of store events.
    stores: u64,
}

/// Store events per tick of the trie's clock, as a power of two.
const TICK_BITS: u32 = 8;

fn branch_hash(parent: Slot, local: LocalHash) -> u64 {
    mix(local.0 ^ mix(u64::from(parent)))
}

// === reading ===

impl Trie {
    pub(crate) fn segment_of(&self, slot: Slot) -> &Segment {
        self.segments.get(self.slots.segment(slot))
    }

    /// Parent slot of `slot`, or [`NONE`].
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

    /// The child of `parent` with this content. Under [`NONE`], the first block.
    pub(crate) fn child(&self, parent: Slot, local: LocalHash) -> Option<Slot> {
        let head = |id| self.segments.head(id);
        if parent == NONE {
            return self.branch(parent, local).map(head);
        }
        let segment = self.segment_of(parent);
        if parent == segment.tail() {
            return self.child_of_segment(segment, local).map(head);
        }
        Some(parent + 1).filter(|&next| self.slots.local(next) == local)
    }

    /// The child segment after a segment's last slot with this content.
    pub(crate) fn child_of_segment(
        &self,
        segment: &Segment,
        local: LocalHash,
    ) -> Option<SegmentId> {
        let first = segment.first_child;
        if first != NO_SEGMENT && self.slots.local(self.segments.head(first)) == local {
            return Some(first);
        }
        if segment.children > u32::from(first != NO_SEGMENT) {
            return self.branch(segment.tail(), local);
        }
        None
    }

    /// The segment below `parent` that begins with this content, according to the branch table.
    pub(crate) fn branch(&self, parent: Slot, local: LocalHash) -> Option<SegmentId> {
        self.branches.find(branch_hash(parent, local), |id| {
            self.slots.local(self.segments.head(id)) == local
                && self.segments.get(id).parent == parent
        })
    }

    /// The slot with this own name.
    pub(crate) fn named(&self, name: BlockName) -> Option<Slot> {
        self.names.find(mix(name.0), |slot| self.slots.name(slot) == name)
    }

    /// Whether a slot is in use and is the one found by this own name.
    pub(crate) fn is_named(&self, slot: Slot, name: BlockName) -> bool {
        self.slots.is_used(slot) && self.slots.is_named(slot) && self.slots.name(slot) == name
    }

    /// Whether a child of a slot may satisfy `is_such`. Children in the branch table are not read: with any
    /// of them, the answer is `true`.
    pub(crate) fn may_have_child(&self, slot: Slot, is_such: impl Fn(Slot) -> bool) -> bool {
        let segment = self.segment_of(slot);
        if slot != segment.tail() {
            return is_such(slot + 1);
        }
        match (segment.children, segment.first_child) {
            (0, _) => false,
            (1, only) if only != NO_SEGMENT => is_such(self.segments.head(only)),
            _ => true,
        }
    }

    /// Whether a rank holds a slot in any tier.
    pub(crate) fn holds_any(&self, slot: Slot, holder: HolderIndex) -> bool {
        self.segment_of(slot).sets.iter().any(|&set| self.sets.contains(set, holder))
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

    /// The own name of the parent of `slot`; `None` for first blocks.
    pub(crate) fn parent_name(&self, slot: Slot) -> Option<BlockName> {
        let parent = self.parent(slot);
        (parent != NONE).then(|| self.slots.name(parent))
    }

    /// Number of segments in the branch table, and of slots in the name table.
    pub(crate) const fn tabled(&self) -> (usize, usize) {
        (self.branches.len(), self.names.len())
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.bytes()
            + self.segments.bytes()
            + self.sets.bytes()
            + self.branches.bytes()
            + self.names.bytes()
    }

    /// The trie's clock: number of store events, coarsely.
    fn now(&self) -> u32 {
        u32::try_from(self.stores >> TICK_BITS).unwrap_or(u32::MAX)
    }

    /// Advances the clock by one store event.
    pub(crate) const fn tick(&mut self) {
        self.stores += 1;
    }

    /// Records the time at which a rank stored a slot.
    pub(crate) fn mark_stored(&mut self, slot: Slot) {
        let id = self.slots.segment(slot);
        let now = self.now();
        self.segments.get_mut(id).stored = now;
    }
}

// === growing ===

impl Trie {
    /// Adds a position, which must not exist yet. Its name enters the name table, unless another slot has it.
    /// `wanted`: number of slots that the chain is about to need, including this one.
    pub(crate) fn create(&mut self, new: NewRun, block: StoredBlock, wanted: usize) -> Slot {
        debug_assert!(self.child(new.parent, block.local).is_none(), "the position is new");
        let room = self.room(new.parent, wanted);
        let (slot, _) = self.slots.allocate(new.parent, 1, room);
        self.slots.fill(slot, block.local, block.name);
        if self.insert_name(slot, block.name) {
            self.slots.set_named(slot);
        }
        self.attach(new, slot, 1);
        slot
    }

    /// Adds positions for the leading blocks that `is_new` accepts and whose names are new to the name table, each the
    /// parent of the next. The first position must not exist yet. Returns the first slot and the number of blocks,
    /// limited to consecutive slots.
    pub(crate) fn create_run(
        &mut self,
        new: NewRun,
        blocks: &[StoredBlock],
        is_new: impl Fn(&StoredBlock) -> bool,
    ) -> (Slot, u32) {
        if blocks.is_empty() {
            return (NONE, 0);
        }
        self.touch_names(blocks.iter().map(|block| block.name));
        let wanted = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let room = self.room(new.parent, blocks.len());
        let (first, len) = self.slots.allocate(new.parent, wanted, room);
        let mut filled = 0;
        for (slot, block) in (first..first + len).zip(blocks) {
            self.slots.fill(slot, block.local, block.name);
            if !is_new(block) || !self.insert_name(slot, block.name) {
                self.slots.free(slot, first + len - slot);
                break;
            }
            self.slots.set_named(slot);
            filled += 1;
        }
        if filled == 0 {
            return (NONE, 0);
        }
        self.attach(new, first, filled);
        (first, filled)
    }

    /// Number of slots to look for, for a chain that ends at `parent` and needs `wanted` more. Long chains
    /// are expected to double.
    fn room(&self, parent: Slot, wanted: usize) -> u32 {
        u32::try_from(self.depth(parent).max(wanted)).unwrap_or(u32::MAX)
    }

    /// Adds a name to the name table. Returns `false` if it already belongs to another slot.
    fn insert_name(&mut self, slot: Slot, name: BlockName) -> bool {
        let slots = &self.slots;
        self.names.insert(mix(name.0), slot, |at| slots.name(at) == name)
    }

    /// Prefetches the lines of the name table for all `names` concurrently.
    pub(crate) fn touch_names(&self, names: impl Iterator<Item = BlockName>) {
        names.for_each(|name| self.names.touch(mix(name.0)));
    }

    /// Prefetches the name table's lines of the names of consecutive slots.
    pub(crate) fn touch_run(&self, slot: Slot, len: u32) {
        self.touch_names(self.slots.names(slot, len).iter().map(|&name| BlockName(name)));
    }

    /// Loads a segment and its first local hashes into the cache.
    pub(crate) fn touch_segment(&self, id: SegmentId) {
        let local = self.slots.local(self.segments.head(id));
        black_box(u64::from(self.segments.get(id).len) ^ local.0);
    }

    /// Prefetches the slots of these names and their segments, each stage for all names together. Call
    /// [`touch_names`](Self::touch_names) before.
    pub(crate) fn touch_slots(&self, names: &[BlockName]) {
        if names.len() < 2 {
            return;
        }
        // Comparing the slot's name would wait for memory. The first slot with the hash is nearly always the
        // right one.
        let probable = |name: &BlockName| self.names.find(mix(name.0), |_| true);
        let slots: SmallVec<[Slot; 32]> = names.iter().filter_map(probable).collect();
        slots.iter().for_each(|&slot| self.slots.touch(slot));
        slots.iter().for_each(|&slot| prefetch(self.segment_of(slot)));
    }

    /// Attaches a new run of slots below its parent: extends the parent's segment if possible, else adds a
    /// segment.
    fn attach(&mut self, new: NewRun, slot: Slot, len: u32) {
        let NewRun { parent, sets } = new;
        let stored = self.now();
        if parent != NONE && adjacent(parent, slot) {
            let id = self.slots.segment(parent);
            let segment = self.segments.get_mut(id);
            if segment.tail() == parent && segment.children == 0 && segment.sets == sets {
                segment.len += len;
                segment.stored = stored;
                self.slots.set_segment(slot, len, id);
                return;
            }
        }
        if parent != NONE {
            self.split_after(parent);
        }
        let above = (parent != NONE).then(|| self.slots.segment(parent));
        let depth = above.map_or(1, |id| {
            let above = self.segments.get(id);
            above.depth + above.len
        });
        let first_child = NO_SEGMENT;
        let id = self.segments.add(Segment {
            head: slot,
            len,
            parent,
            first_child,
            children: 0,
            depth,
            sets,
            stored,
        });
        self.slots.set_segment(slot, len, id);
        let mut in_table = true;
        if let Some(above) = above {
            let above = self.segments.get_mut(above);
            above.children += 1;
            if above.first_child == NO_SEGMENT {
                above.first_child = id;
                in_table = false;
            }
        }
        if in_table {
            self.insert_branch(id);
        }
    }

    fn insert_branch(&mut self, id: SegmentId) {
        self.branches.insert(self.hash_of_branch(id), id, |_| false);
    }

    pub(crate) fn remove_branch(&mut self, id: SegmentId) {
        let found = self.branches.remove(self.hash_of_branch(id), id);
        debug_assert!(found, "segment {id} is in the branch table");
    }

    /// Frees slots, with their names. Call [`touch_names`](Self::touch_names) or [`touch_run`](Self::touch_run) before.
    pub(crate) fn free_slots(&mut self, slot: Slot, len: u32) {
        for at in slot..slot + len {
            if self.slots.is_named(at) {
                let found = self.names.remove(mix(self.slots.name(at).0), at);
                debug_assert!(found, "the name of slot {at} is in the name table");
            }
        }
        self.slots.free(slot, len);
    }

    fn hash_of_branch(&self, id: SegmentId) -> u64 {
        let segment = self.segments.get(id);
        branch_hash(segment.parent, self.slots.local(segment.head))
    }
}

/// The sets of a segment whose only holder is one rank in one tier.
pub(crate) fn alone(holder: HolderIndex, tier: Tier) -> TierSets {
    let mut sets: TierSets = [SetId::EMPTY; Tier::COUNT];
    if let Some(set) = sets.get_mut(tier.index()) {
        *set = SetId::single(holder);
    }
    sets
}
