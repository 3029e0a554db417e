//! Segments: runs of consecutive slots, each the only child of the previous one, all with the same holders. A
//! segment does not cross chunks of slots. Only its last slot has children in other segments.
#![expect(clippy::indexing_slicing, reason = "segment numbers are handed out by this file only")]

use crate::sets::{SetId, TierSets};
use crate::slots::Slot;
use crate::table::index_u32;

/// Number of a segment.
pub(crate) type SegmentId = u32;
/// Stands for "no segment": no child, or the end of the free list.
pub(crate) const NO_SEGMENT: SegmentId = u32::MAX;

const CHUNK_SEGMENTS: usize = 1_024;
/// Initial capacity of the first chunk, in segments: many models have few blocks.
const FIRST_SEGMENTS: usize = 32;
const SEGMENT_BYTES: usize = size_of::<Segment>() + size_of::<Slot>();

/// One segment, 40 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    /// First slot.
    pub(crate) head: Slot,
    /// Number of slots, 1–4,096; 0 marks a free segment.
    pub(crate) len: u32,
    /// Parent slot of `head`; [`NONE`](crate::slots::NONE) for first blocks. In a free segment, the next free
    /// one.
    pub(crate) parent: Slot,
    /// A child of the last slot, found without a table; [`NO_SEGMENT`] if there is none.
    pub(crate) first_child: SegmentId,
    /// Number of children of the last slot. All except `first_child` are in the branch table.
    pub(crate) children: u32,
    /// Depth of `head`: 1 for first blocks.
    pub(crate) depth: u32,
    /// Holders by tier.
    pub(crate) sets: TierSets,
    /// When a rank last stored one of the slots, by the trie's clock.
    pub(crate) stored: u32,
}

impl Segment {
    /// Last slot.
    pub(crate) const fn tail(&self) -> Slot {
        self.head + self.len - 1
    }

    /// Whether no rank holds the segment.
    pub(crate) fn is_unheld(&self) -> bool {
        self.sets.iter().all(|&set| set == SetId::EMPTY)
    }
}

/// All segments of an index.
#[derive(Debug)]
pub(crate) struct Segments {
    chunks: Vec<Vec<Segment>>,
    /// Copies of the first slots, close together: a walk finds the next hashes without waiting for the
    /// segment itself.
    heads: Vec<Box<[Slot; CHUNK_SEGMENTS]>>,
    free: SegmentId,
    used: usize,
}

impl Default for Segments {
    fn default() -> Self {
        Self { chunks: Vec::new(), heads: Vec::new(), free: NO_SEGMENT, used: 0 }
    }
}

impl Segments {
    pub(crate) const fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn get(&self, id: SegmentId) -> &Segment {
        &self.chunks[id as usize / CHUNK_SEGMENTS][id as usize % CHUNK_SEGMENTS]
    }

    pub(crate) fn get_mut(&mut self, id: SegmentId) -> &mut Segment {
        &mut self.chunks[id as usize / CHUNK_SEGMENTS][id as usize % CHUNK_SEGMENTS]
    }

    /// First slot of a segment.
    pub(crate) fn head(&self, id: SegmentId) -> Slot {
        self.heads[id as usize / CHUNK_SEGMENTS][id as usize % CHUNK_SEGMENTS]
    }

    /// Moves the head of a segment to the adjacent slot before it, or to a later one of its slots.
    pub(crate) fn move_head(&mut self, id: SegmentId, head: Slot) {
        let segment = self.get_mut(id);
        segment.len = segment.head + segment.len - head;
        segment.depth = segment.depth + head - segment.head;
        (segment.head, segment.parent) = (head, head - 1);
        self.set_head(id, head);
    }

    fn set_head(&mut self, id: SegmentId, head: Slot) {
        self.heads[id as usize / CHUNK_SEGMENTS][id as usize % CHUNK_SEGMENTS] = head;
    }

    /// Stores a segment under a free id, or under a new one.
    pub(crate) fn add(&mut self, segment: Segment) -> SegmentId {
        debug_assert!(segment.len > 0, "a segment has slots");
        self.used += 1;
        if self.free != NO_SEGMENT {
            let id = self.free;
            self.free = self.get(id).parent;
            *self.get_mut(id) = segment;
            self.set_head(id, segment.head);
            return id;
        }
        if self.chunks.last().is_none_or(|chunk| chunk.len() == CHUNK_SEGMENTS) {
            let is_first = self.chunks.is_empty();
            let capacity = if is_first { FIRST_SEGMENTS } else { CHUNK_SEGMENTS };
            self.chunks.push(Vec::with_capacity(capacity));
            self.heads.push(Box::new([0; CHUNK_SEGMENTS]));
        }
        let last = self.chunks.len() - 1;
        self.chunks[last].push(segment);
        let id = index_u32(last * CHUNK_SEGMENTS + self.chunks[last].len() - 1);
        self.set_head(id, segment.head);
        id
    }

    /// Frees an id: it becomes the head of the list of free ids. After the last one, frees all memory.
    pub(crate) fn remove(&mut self, id: SegmentId) {
        let free = self.free;
        let segment = self.get_mut(id);
        debug_assert!(segment.len > 0, "segment {id} is in use");
        segment.len = 0;
        segment.parent = free;
        self.free = id;
        self.used -= 1;
        if self.used == 0 {
            *self = Self::default();
        }
    }

    /// Number of segment ids in use or free.
    pub(crate) fn numbers(&self) -> SegmentId {
        let last = self.chunks.last().map_or(0, Vec::len);
        index_u32(self.chunks.len().saturating_sub(1) * CHUNK_SEGMENTS + last)
    }

    /// Bytes of allocated but unused segments.
    pub(crate) fn free_bytes(&self) -> usize {
        (self.chunks.len() * CHUNK_SEGMENTS - self.used) * SEGMENT_BYTES - self.missing_bytes()
    }

    /// All segments in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        let all = self.chunks.iter().flatten().enumerate();
        all.filter(|(_, segment)| segment.len > 0).map(|(id, segment)| (index_u32(id), segment))
    }

    /// Bytes of the first chunk that are not yet allocated.
    fn missing_bytes(&self) -> usize {
        let first = self.chunks.first().map_or(CHUNK_SEGMENTS, Vec::capacity);
        CHUNK_SEGMENTS.saturating_sub(first) * size_of::<Segment>()
    }

    /// Bytes allocated.
    pub(crate) fn bytes(&self) -> usize {
        self.chunks.len() * CHUNK_SEGMENTS * SEGMENT_BYTES - self.missing_bytes()
            + self.chunks.capacity() * size_of::<Vec<Segment>>()
            + self.heads.capacity() * size_of::<Box<[Slot; CHUNK_SEGMENTS]>>()
    }
}
