use super::split::split;
use super::{Batch, DumpStep, Journal, JournalConfig};
use kvasir_proto::convert::publish_batch;
use kvasir_proto::limits::{BATCH_EVENTS_MAX, BATCH_WIRE_BYTES_MAX, EVENT_BLOCKS_MAX};
use kvasir_proto::types::{
    BlockName, CopyMode, HeldBlock, Incarnation, KvEvent, LocalHash, StoredBlock, Tier,
};
use proptest::prelude::*;
use prost::Message;
use std::collections::BTreeMap;

const INCARNATION: Incarnation = Incarnation(7);

/// Blocks that a journal holds after some batches.
fn held(copy_mode: CopyMode, batches: &[Box<[KvEvent]>]) -> BTreeMap<BlockName, HeldBlock> {
    let config = JournalConfig { copy_mode, ..JournalConfig::DEFAULT };
    let mut journal = Journal::new(INCARNATION, 0, config);
    for batch in batches {
        journal.append(0, batch.to_vec()).expect("a batch");
    }
    held_by(&mut journal)
}

fn held_by(journal: &mut Journal) -> BTreeMap<BlockName, HeldBlock> {
    let id = journal.begin_dump(None).expect("a dump");
    let mut held = BTreeMap::new();
    loop {
        match journal.step_dump(id, 1_000).expect("nothing else goes on") {
            DumpStep::Records { records, .. } => {
                held.extend(records.into_iter().map(|record| (record.name, record)));
            }
            DumpStep::Cut(_) => return held,
        }
    }
}

fn encoded_bytes(events: &[KvEvent]) -> usize {
    publish_batch(u64::MAX, u32::MAX, events).encoded_len()
}

fn name() -> impl Strategy<Value = BlockName> {
    // Some names are long on the wire, and their number is small.
    prop_oneof![0..8u64, u64::MAX - 8..u64::MAX].prop_map(BlockName)
}

fn event() -> impl Strategy<Value = KvEvent> {
    let tier = || prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk)];
    let names = || prop::collection::vec(name(), 1..40);
    let block =
        (name(), 0..4u64).prop_map(|(name, local)| StoredBlock { name, local: LocalHash(local) });
    prop_oneof![
        4 => (prop::option::of(name()), tier(), prop::collection::vec(block, 1..40))
            .prop_map(|(parent, tier, blocks)| KvEvent::Stored { parent, tier, blocks }),
        1 => (tier(), names()).prop_map(|(tier, names)| KvEvent::StoredNames { tier, names }),
        2 => (tier(), names()).prop_map(|(tier, names)| KvEvent::Removed { tier, names }),
        1 => (tier(), names()).prop_map(|(tier, names)| KvEvent::Gone { tier, names }),
        1 => Just(KvEvent::Cleared),
    ]
}

proptest! {
    #[test]
    fn pieces_do_what_the_whole_does(
        events in prop::collection::vec(event(), 0..12),
        bytes_max in 100..2_000usize,
        counted: bool,
    ) {
        let copy_mode = if counted { CopyMode::Counted } else { CopyMode::Set };
        let pieces = split(events.clone(), bytes_max);
        for piece in &pieces {
            let bytes = encoded_bytes(piece);
            prop_assert!(bytes <= bytes_max, "{bytes} of {bytes_max}: {piece:?}");
            prop_assert!(!piece.is_empty() || events.is_empty());
        }
        let operations = |events: &[KvEvent]| events.iter().map(KvEvent::operations).sum::<usize>();
        let all: usize = pieces.iter().map(|piece| operations(piece)).sum();
        prop_assert_eq!(all, operations(&events));
        let whole = held(copy_mode, &[events.into_boxed_slice()]);
        prop_assert_eq!(held(copy_mode, &pieces), whole);
    }

    /// Even a limit that fits no event.
    #[test]
    fn any_limit_comes_to_an_end(
        events in prop::collection::vec(event(), 0..4),
        bytes_max in 0..120usize,
    ) {
        let whole = held(CopyMode::Set, &[events.clone().into_boxed_slice()]);
        prop_assert_eq!(held(CopyMode::Set, &split(events, bytes_max)), whole);
    }
}

/// The largest event exceeds one message.
#[test]
fn a_large_batch_has_several_numbers() {
    let chain = |from: u64| {
        let names = from..from + EVENT_BLOCKS_MAX as u64;
        let blocks = names
            .map(|name| StoredBlock { name: BlockName(name | 1 << 63), local: LocalHash(!name) });
        KvEvent::Stored { parent: None, tier: Tier::Device, blocks: blocks.collect() }
    };
    let mut journal = Journal::new(INCARNATION, 5, JournalConfig::DEFAULT);
    let events = vec![chain(0), KvEvent::Cleared, chain(1 << 32), chain(2 << 32)];
    assert_eq!(journal.append(0, events), Ok(11), "six times 512 KiB and what is around them");
    let range = journal.range(INCARNATION, 0..=u64::MAX, 100).expect("it is kept");
    let sequences: Vec<u64> = range.batches.iter().map(|batch| batch.sequence()).collect();
    assert_eq!(sequences, [5, 6, 7, 8, 9, 10, 11]);
    for batch in &range.batches {
        let bytes = encoded_bytes(batch.events());
        assert!(bytes <= batch.wire_bytes() && batch.wire_bytes() <= BATCH_WIRE_BYTES_MAX);
    }
    let held = held_by(&mut journal);
    assert_eq!(held.len(), 2 * EVENT_BLOCKS_MAX);
    // Only the first block of each chain is a root.
    assert_eq!(held.values().filter(|record| record.parent.is_none()).count(), 2);
    let next = journal.append(0, vec![]).expect("a batch of nothing has a number too");
    assert_eq!(next, 12);
}

#[test]
fn a_batch_has_so_many_events() {
    let event = KvEvent::Removed { tier: Tier::Device, names: vec![BlockName(1)] };
    let pieces = split(vec![event; 2 * BATCH_EVENTS_MAX + 1], BATCH_WIRE_BYTES_MAX);
    let lengths: Vec<usize> = pieces.iter().map(|piece| piece.len()).collect();
    assert_eq!(lengths, [BATCH_EVENTS_MAX, BATCH_EVENTS_MAX, 1]);
}

#[test]
fn pieces_that_no_number_is_left_for_change_nothing() {
    let names: Vec<BlockName> = (0..EVENT_BLOCKS_MAX as u64).map(BlockName).collect();
    let large = vec![KvEvent::Removed { tier: Tier::Device, names }; 2];
    let mut journal = Journal::new(INCARNATION, u64::MAX, JournalConfig::DEFAULT);
    journal.append(0, large).expect_err("two numbers are wanted, one is left");
    assert_eq!((journal.head(), journal.status().held_blocks), (None, 0));
    assert_eq!(journal.append(0, vec![]), Ok(u64::MAX));
    let batch = Batch::new(0, 0, Box::new([]));
    assert!(encoded_bytes(batch.events()) <= batch.wire_bytes());
}
