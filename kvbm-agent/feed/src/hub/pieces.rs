use kvasir_proto::limits::{BATCH_EVENTS_MAX, EVENT_BLOCKS_MAX, GRPC_MESSAGE_BYTES_MAX};
use kvasir_proto::types::KvEvent;
use std::mem;

/// Most block operations that the journal is given at once, beside one event's.
const OPERATIONS_MAX: usize = 3 * EVENT_BLOCKS_MAX;
/// A stored block and what an event adds, in bytes on the wire.
const BLOCK_BYTES: usize = 16;
const EVENT_BYTES: usize = 40;
const _: () = assert!(
    (OPERATIONS_MAX + EVENT_BLOCKS_MAX) * BLOCK_BYTES + BATCH_EVENTS_MAX * EVENT_BYTES
        < GRPC_MESSAGE_BYTES_MAX
);

/// Events of at most [`EVENT_BLOCKS_MAX`] blocks, in pieces that the journal takes. Engines send an event for each block that
/// they remove: removals in a row become one event.
pub(super) fn pieces(events: Vec<KvEvent>) -> Vec<Vec<KvEvent>> {
    let mut pieces = Vec::new();
    let (mut piece, mut operations): (Vec<KvEvent>, usize) = (Vec::new(), 0);
    for event in events {
        let added = event.operations();
        let Some(event) = apart(&mut piece, event) else {
            operations += added;
            continue;
        };
        if piece.len() >= BATCH_EVENTS_MAX
            || (operations + added > OPERATIONS_MAX && operations > 0)
        {
            pieces.push(mem::take(&mut piece));
            operations = 0;
        }
        piece.push(event);
        operations += added;
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// Puts removals to those before them; else returns the event.
fn apart(piece: &mut [KvEvent], event: KvEvent) -> Option<KvEvent> {
    match (piece.last_mut(), event) {
        (
            Some(KvEvent::Removed { tier: before, names: all }),
            KvEvent::Removed { tier, mut names },
        ) if *before == tier && all.len() + names.len() <= EVENT_BLOCKS_MAX => {
            all.append(&mut names);
            None
        }
        (_, event) => Some(event),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::{BlockName, LocalHash, StoredBlock, Tier};

    fn removed(tier: Tier, names: std::ops::Range<u64>) -> KvEvent {
        KvEvent::Removed { tier, names: names.map(BlockName).collect() }
    }

    fn stored(names: std::ops::Range<u64>) -> KvEvent {
        let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks: names.map(block).collect() }
    }

    #[test]
    fn removals_in_a_row_are_one_event() {
        let events = vec![
            removed(Tier::Device, 0..1),
            removed(Tier::Device, 1..3),
            removed(Tier::Host, 3..4),
            stored(0..1),
            removed(Tier::Host, 4..5),
        ];
        let expected = vec![
            removed(Tier::Device, 0..3),
            removed(Tier::Host, 3..4),
            stored(0..1),
            removed(Tier::Host, 4..5),
        ];
        assert_eq!(pieces(events), [expected]);
        assert!(pieces(Vec::new()).is_empty());
    }

    #[test]
    fn a_piece_has_so_many_events_and_blocks() {
        let count = 2 * BATCH_EVENTS_MAX as u64 + 1;
        let many: Vec<_> = (0..count).map(|name| stored(name..name + 1)).collect();
        let lengths =
            |pieces: Vec<Vec<KvEvent>>| -> Vec<usize> { pieces.iter().map(Vec::len).collect() };
        assert_eq!(lengths(pieces(many)), [BATCH_EVENTS_MAX, BATCH_EVENTS_MAX, 1]);
        let largest = || stored(0..EVENT_BLOCKS_MAX as u64);
        assert_eq!(lengths(pieces((0..7).map(|_| largest()).collect())), [3, 3, 1]);
        let removals = (0..3).map(|_| removed(Tier::Device, 0..EVENT_BLOCKS_MAX as u64));
        assert_eq!(lengths(pieces(removals.collect())), [3]);
    }
}
