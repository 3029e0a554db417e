use super::AppendError;
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{DpRank, KvEvent, StoredBlock};
use std::mem::size_of;
use std::sync::Arc;

/// Maximum bytes of a batch and of an event on the wire, besides their blocks.
pub(super) const BATCH_OVERHEAD_BYTES: usize = 32;
pub(super) const EVENT_OVERHEAD_BYTES: usize = 40;
/// Bytes of a stored block and of a name on the wire.
const BLOCK_WIRE_BYTES: usize = 16;
const NAME_WIRE_BYTES: usize = 8;
/// Memory of a batch in the ring besides its events: a pointer with its two counts.
const SHARED_BYTES: usize = size_of::<Arc<Batch>>() + 2 * size_of::<usize>();

/// A numbered batch of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    sequence: u64,
    rank: DpRank,
    events: Box<[KvEvent]>,
}

impl Batch {
    /// Checks that no event has too many blocks. Leaves out events without blocks, because they change nothing.
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

    /// Creates a published batch.
    #[must_use]
    pub const fn new(sequence: u64, rank: DpRank, events: Box<[KvEvent]>) -> Self {
        Self { sequence, rank, events }
    }

    /// Number of the batch within its incarnation.
    #[must_use]
    pub const fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Rank that holds the blocks.
    #[must_use]
    pub const fn rank(&self) -> DpRank {
        self.rank
    }

    /// Events in order, at most [`BATCH_EVENTS_MAX`](kvasir_proto::limits::BATCH_EVENTS_MAX).
    #[must_use]
    pub const fn events(&self) -> &[KvEvent] {
        &self.events
    }

    /// Maximum bytes of the batch on the wire.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        wire_bytes(&self.events)
    }

    /// Bytes of memory that the batch uses, without the allocator's overhead.
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

/// Maximum bytes of an event on the wire.
pub(super) fn event_bytes(event: &KvEvent) -> usize {
    match event {
        KvEvent::Cleared | KvEvent::ClearedTier(_) => EVENT_OVERHEAD_BYTES,
        KvEvent::Stored { .. }
        | KvEvent::StoredNames { .. }
        | KvEvent::Removed { .. }
        | KvEvent::Gone { .. } => EVENT_OVERHEAD_BYTES + event.operations() * block_bytes(event),
    }
}

/// Bytes of each block of an event on the wire.
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
