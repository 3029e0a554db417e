use super::AppendError;
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{DpRank, KvEvent, StoredBlock};
use std::mem::size_of;
use std::sync::Arc;

/// What a batch and an event take on the wire at most, besides their blocks.
pub(super) const BATCH_OVERHEAD_BYTES: usize = 32;
pub(super) const EVENT_OVERHEAD_BYTES: usize = 40;
/// A stored block and a name on the wire.
const BLOCK_WIRE_BYTES: usize = 16;
const NAME_WIRE_BYTES: usize = 8;
/// What the ring holds for a batch besides its events: a pointer with its two counts.
const SHARED_BYTES: usize = size_of::<Arc<Batch>>() + 2 * size_of::<usize>();

/// A numbered batch of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    sequence: u64,
    rank: DpRank,
    events: Box<[KvEvent]>,
}

impl Batch {
    /// Checks that no event has too many blocks, and leaves out those that name none: they change nothing.
    pub(super) fn checked(mut events: Vec<KvEvent>) -> Result<Vec<KvEvent>, AppendError> {
        events.retain(|event| event.operations() > 0);
        for (index, event) in events.iter().enumerate() {
            let count = event.operations();
            let limit = EVENT_BLOCKS_MAX;
            if count > limit {
                return Err(AppendError::TooManyBlocks { index, count, limit });
            }
        }
        Ok(events)
    }

    /// A batch as it was published.
    #[must_use]
    pub const fn new(sequence: u64, rank: DpRank, events: Box<[KvEvent]>) -> Self {
        Self { sequence, rank, events }
    }

    /// Its number within the incarnation.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The rank that holds the blocks.
    #[must_use]
    pub const fn rank(&self) -> DpRank {
        self.rank
    }

    /// What happened, in order; at most [`BATCH_EVENTS_MAX`](kvasir_proto::limits::BATCH_EVENTS_MAX) events.
    #[must_use]
    pub const fn events(&self) -> &[KvEvent] {
        &self.events
    }

    /// Bytes on the wire, at most.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        wire_bytes(&self.events)
    }

    /// Bytes of memory, without what the allocator adds.
    pub(super) fn memory_bytes(&self) -> usize {
        let lists = self.events.iter().map(|event| match event {
            KvEvent::Stored { blocks, .. } => blocks.capacity() * size_of::<StoredBlock>(),
            KvEvent::StoredNames { names, .. }
            | KvEvent::Removed { names, .. }
            | KvEvent::Gone { names, .. } => names.capacity() * NAME_WIRE_BYTES,
            KvEvent::Cleared | KvEvent::ClearedTier(_) => 0,
        });
        SHARED_BYTES + size_of::<Self>() + size_of_val(&*self.events) + lists.sum::<usize>()
    }
}

fn wire_bytes(events: &[KvEvent]) -> usize {
    BATCH_OVERHEAD_BYTES + events.iter().map(event_bytes).sum::<usize>()
}

/// Bytes of an event on the wire, at most.
pub(super) fn event_bytes(event: &KvEvent) -> usize {
    match event {
        KvEvent::Cleared | KvEvent::ClearedTier(_) => EVENT_OVERHEAD_BYTES,
        KvEvent::Stored { .. }
        | KvEvent::StoredNames { .. }
        | KvEvent::Removed { .. }
        | KvEvent::Gone { .. } => EVENT_OVERHEAD_BYTES + event.operations() * block_bytes(event),
    }
}

/// Bytes of each of its blocks.
pub(super) const fn block_bytes(event: &KvEvent) -> usize {
    match event {
        KvEvent::Stored { .. } => BLOCK_WIRE_BYTES,
        KvEvent::StoredNames { .. }
        | KvEvent::Removed { .. }
        | KvEvent::Gone { .. }
        | KvEvent::Cleared
        | KvEvent::ClearedTier(_) => NAME_WIRE_BYTES,
    }
}
