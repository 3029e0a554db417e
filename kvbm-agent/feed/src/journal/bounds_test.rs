//! The journal at its limits.

use super::{
    AppendError, DigestError, DumpAbort, DumpError, DumpStep, Journal, JournalConfig, RangeError,
};
use kvasir_proto::limits::{
    BATCH_EVENTS_MAX, DUMP_DIRTY_NAMES_MAX, EVENT_BLOCKS_MAX, WORKER_RANKS_MAX,
};
use kvasir_proto::types::{BlockName, CopyMode, HeldBlock, KvEvent, Tier};
use std::collections::BTreeSet;

use super::model_test::*;

#[test]
fn the_ring_is_bounded_by_bytes_and_keeps_the_newest_batch() {
    let config = JournalConfig { bytes_max: 64 << 10, ..JournalConfig::DEFAULT };
    let mut journal = Journal::new(INCARNATION, 0, config);
    for round in 0..200_u64 {
        journal.append(0, vec![stored(None, round * 100..round * 100 + 64)]).expect("a batch");
        let status = journal.status();
        assert!(status.batch_bytes <= config.bytes_max, "{status:?}");
        assert_eq!(status.head, Some(round));
    }
    // 64 blocks of 16 bytes each, with overhead.
    let batches = journal.status().batches;
    assert!((50..=60).contains(&batches), "{batches}");
    // A batch larger than the ring's limit.
    journal.append(0, vec![stored(None, 0..10_000)]).expect("a large batch");
    let status = journal.status();
    assert_eq!((status.batches, status.oldest, status.head), (1, Some(200), Some(200)));
    journal.append(0, vec![stored(None, 0..1)]).expect("a small batch");
    assert_eq!(journal.status().oldest, Some(201));
}

#[test]
fn a_batch_beyond_a_limit_changes_nothing() {
    let mut journal = journal(CopyMode::Set);
    let check = |journal: &mut Journal, rank, events, expected: &str| {
        let before = journal.status();
        let error = journal.append(rank, events).expect_err(expected);
        assert_eq!(error.to_string(), expected);
        assert_eq!(journal.status(), before);
    };
    let many = u64::try_from(EVENT_BLOCKS_MAX).expect("small");
    check(
        &mut journal,
        0,
        vec![KvEvent::Cleared, stored(None, 0..many + 1)],
        "events[1] has 65537 blocks, the limit is 65536: cut it into several",
    );
    for rank in 0..u32::try_from(WORKER_RANKS_MAX).expect("small") {
        journal.append(rank, vec![stored(None, 0..1)]).expect("a rank");
    }
    check(
        &mut journal,
        5_000,
        vec![stored(None, 0..1)],
        "rank 5000 is refused: the worker has 1024 ranks, the maximum",
    );
    // A cleared rank makes room for another.
    journal.append(3, vec![KvEvent::Cleared]).expect("a rank");
    journal.append(5_000, vec![stored(None, 0..1)]).expect("a rank");
    // Events without blocks are left out, and never refused.
    let sequence = journal.append(0, vec![stored(None, []), removed([])]).expect("an empty batch");
    let range = journal.range(INCARNATION, sequence..=sequence, 1).expect("the newest");
    assert!(range.batches[0].events().is_empty());
}

#[test]
fn the_last_number_ends_an_incarnation_and_a_new_one_begins_empty() {
    let mut journal = Journal::new(INCARNATION, u64::MAX - 1, config(CopyMode::Set));
    assert_eq!(journal.append(0, vec![stored(None, 0..3)]), Ok(u64::MAX - 1));
    assert_eq!(journal.append(0, vec![stored(None, 3..5)]), Ok(u64::MAX));
    assert_eq!(journal.append(0, vec![stored(None, 5..6)]), Err(AppendError::Exhausted));
    assert_eq!(journal.status().held_blocks, 5);
    let id = journal.begin_dump(None).expect("a dump");
    journal.begin_incarnation(OTHER, 3);
    let aborted = DumpError::Aborted(DumpAbort::NewIncarnation);
    assert_eq!(journal.step_dump(id, 1), Err(aborted));
    let status = journal.status();
    assert_eq!((status.incarnation, status.first, status.head), (OTHER, 3, None));
    assert_eq!((status.held_blocks, status.batches, status.batch_bytes), (0, 0, 0));
    assert_eq!(journal.append(0, vec![]), Ok(3));
    let wrong = RangeError::WrongIncarnation { present: OTHER };
    assert_eq!(journal.range(INCARNATION, 0..=9, 9), Err(wrong));
    let wrong = DumpError::WrongIncarnation { present: OTHER };
    assert_eq!(journal.begin_dump(Some(INCARNATION)), Err(wrong));
}

#[test]
fn an_empty_dump_is_no_failed_dump() {
    let mut journal = journal(CopyMode::Set);
    let (model, cut) = dump(&mut journal, 10);
    assert_eq!((model.held.len(), cut.watermark, cut.incomplete), (0, None, vec![]));
    journal.append(0, vec![stored(None, 0..3)]).expect("a batch");
    journal.append(0, vec![removed(0..3)]).expect("a batch");
    let (model, cut) = dump(&mut journal, 10);
    assert_eq!((model.held.len(), cut.watermark), (0, Some(1)));
}

#[test]
fn dumps_follow_one_another_and_end_once() {
    let mut journal = journal(CopyMode::Set);
    journal.append(0, vec![stored(None, 0..3)]).expect("a batch");
    let first = journal.begin_dump(None).expect("the first");
    assert_eq!(journal.begin_dump(None), Err(DumpError::Busy));
    assert!(matches!(journal.step_dump(first, 1), Ok(DumpStep::Records { .. })));
    journal.cancel_dump(first);
    assert_eq!(journal.step_dump(first, 1), Err(DumpError::Over));
    let second = journal.begin_dump(None).expect("the second");
    // Cancelling an aborted dump does not end another one.
    journal.cancel_dump(first);
    let mut loaded = Model::new(CopyMode::Set);
    finish(&mut journal, second, &mut loaded);
    assert_eq!(loaded.held.len(), 3);
    assert_eq!(journal.step_dump(second, 1), Err(DumpError::Over));
}

#[test]
fn too_many_changes_cut_a_dump_off() {
    let mut journal = journal(CopyMode::Set);
    let names = u64::try_from(DUMP_DIRTY_NAMES_MAX).expect("small") + 1;
    for chunk in 0..=names / 10_000 {
        let chunk = chunk * 10_000..(chunk * 10_000 + 10_000).min(names);
        journal.append(0, vec![stored(None, chunk)]).expect("a batch");
    }
    let id = journal.begin_dump(None).expect("a dump");
    let mut read = 0;
    while read < names {
        let Ok(DumpStep::Records { records, .. }) = journal.step_dump(id, 1_000) else {
            panic!("cut after {read} records");
        };
        read += records.len() as u64;
    }
    journal.append(0, vec![removed(0..names - 1)]).expect("a batch");
    assert_eq!(journal.begin_dump(None), Err(DumpError::Busy), "as many as are noted");
    let host = KvEvent::StoredNames { tier: Tier::Host, names: vec![BlockName(names - 1)] };
    journal.append(0, vec![host]).expect("a batch");
    let aborted = DumpError::Aborted(DumpAbort::TooManyChanges);
    assert_eq!(journal.step_dump(id, 1), Err(aborted));
    let (model, _) = dump(&mut journal, 10);
    assert_eq!(model.held.len(), 1);
}

#[test]
fn parents_come_before_children_where_they_are_held() {
    let mut journal = journal(CopyMode::Set);
    // Stores children first, then the chain that leads to them, then makes holes that other blocks fill.
    journal.append(0, vec![stored(Some(499), 500..900)]).expect("a batch");
    journal.append(0, vec![stored(None, 0..500)]).expect("a batch");
    journal.append(0, vec![removed((0..900).step_by(7))]).expect("a batch");
    journal.append(0, vec![stored(Some(899), 10_000..10_400)]).expect("a batch");
    let check = |records: &[HeldBlock]| {
        let held: BTreeSet<BlockName> = records.iter().map(|record| record.name).collect();
        let mut seen = BTreeSet::new();
        for record in records {
            let parent = record.parent.filter(|parent| held.contains(parent));
            assert!(parent.is_none_or(|parent| seen.contains(&parent)), "{record:?}");
            seen.insert(record.name);
        }
    };
    let id = journal.begin_dump(None).expect("a dump");
    let mut records = Vec::new();
    let mut changed = false;
    let cut = loop {
        match journal.step_dump(id, 13).expect("nothing is cleared") {
            DumpStep::Records { records: some, .. } => records.extend(some),
            DumpStep::Cut(cut) => break cut,
        }
        // The dump has read these blocks by then.
        if records.len() > 700 && !changed {
            let names = (1..5).map(BlockName).collect();
            let host = KvEvent::StoredNames { tier: Tier::Host, names };
            journal.append(0, vec![host]).expect("a batch");
            changed = true;
        }
    };
    check(&records);
    assert_eq!(records.len(), 771 + 400);
    assert_eq!(cut.records.len(), 1);
    assert_eq!(cut.records[0].1.len(), 4);
    check(&cut.records[0].1);
}

#[test]
fn many_copies_are_counted() {
    let mut journal = journal(CopyMode::Counted);
    let copies = |journal: &mut Journal| {
        let (model, _) = dump(journal, 10);
        model.held.get(&(0, BlockName(1))).map_or(0, |held| held.copies[Tier::Device.index()])
    };
    let store = vec![stored(None, [1]); 300];
    journal.append(0, store).expect("a batch");
    assert_eq!(copies(&mut journal), 300);
    for expected in [254, 100, 0] {
        let gone = copies(&mut journal) - expected;
        journal.append(0, vec![removed([1]); gone as usize]).expect("a batch");
        assert_eq!(copies(&mut journal), expected);
    }
    assert_eq!(journal.status().held_blocks, 0);
    // New content under a held name is one more copy. Under a removed name, it has none of the old copies.
    journal.append(0, vec![stored(None, [1]); 300]).expect("a batch");
    journal.append(0, vec![stored(Some(5), [1])]).expect("a batch");
    assert_eq!(copies(&mut journal), 301);
    journal.append(0, vec![removed([1]); 301]).expect("a batch");
    journal.append(0, vec![stored(Some(5), [1])]).expect("a batch");
    assert_eq!(copies(&mut journal), 1);
    journal.append(0, vec![removed([1])]).expect("a batch");
    assert_eq!(journal.status().held_blocks, 0);
}

#[test]
fn names_beyond_the_limit_are_missing_and_the_journal_is_incomplete() {
    let config = JournalConfig { held_blocks_max: 10, ..JournalConfig::DEFAULT };
    let mut journal = Journal::new(INCARNATION, 0, config);
    journal.append(0, vec![stored(None, 0..8)]).expect("a batch");
    journal.append(1, vec![stored(None, 0..2)]).expect("a batch");
    assert!(!journal.status().incomplete);
    journal.append(1, vec![stored(None, 0..3)]).expect("a batch");
    let (model, cut) = dump(&mut journal, 10);
    assert_eq!((model.held.len(), cut.incomplete), (10, vec![1]));
    assert_eq!(
        (journal.digest(), journal.digests(INCARNATION)),
        (None, Err(DigestError::Incomplete))
    );
    let other = Err(DigestError::WrongIncarnation { present: INCARNATION });
    assert_eq!(journal.digests(OTHER), other);
    // Freed room does not restore refused blocks. After a clear, no block is missing.
    journal.append(0, vec![KvEvent::Cleared]).expect("a batch");
    assert!(journal.status().incomplete);
    journal.append(1, vec![KvEvent::Cleared, stored(None, 0..3)]).expect("a batch");
    let (model, cut) = dump(&mut journal, 10);
    assert_eq!((model.held.len(), cut.incomplete), (3, vec![]));
}

/// 8,192 prompt tokens in each of 20 steps a second, in blocks of 16. Each block evicts another, with one event per
/// removal, as in vLLM.
#[test]
fn the_default_keeps_a_minute_of_a_busy_engine() {
    const STEPS: u64 = 60 * 20;
    const STEP_BLOCKS: u64 = 512;
    let mut journal = journal(CopyMode::Set);
    for step in 0..STEPS {
        let first = step * STEP_BLOCKS;
        let mut events: Vec<_> =
            (first..first + STEP_BLOCKS).map(|name| removed([name.wrapping_sub(20_000)])).collect();
        events.push(stored(None, first..first + STEP_BLOCKS));
        journal.append(0, events).expect("a batch");
    }
    let status = journal.status();
    let each = status.batch_bytes / status.batches;
    println!("{each} bytes a batch, {} bytes a minute", status.batch_bytes);
    assert_eq!(status.oldest, Some(0), "{status:?}");
}

/// The limit is 64 bytes per held name, at every size: also just after a table has grown, and after most names were
/// removed.
#[test]
fn a_held_name_takes_little_memory() {
    const NAMES_MAX: u64 = 400_000;
    // Spread over all 64 bits, like engines' names.
    let name = |index: u64| (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let chunk = |from: u64| from..from + 4_000;
    let mut journal = journal(CopyMode::Set);
    let mut worst = 0;
    let mut look = |journal: &Journal| {
        let status = journal.status();
        if status.held_blocks >= 40_000 {
            worst = worst.max(status.inventory_bytes * 10 / status.held_blocks);
        }
    };
    for from in (0..NAMES_MAX).step_by(4_000) {
        journal.append(0, vec![stored(None, chunk(from).map(name))]).expect("a batch");
        look(&journal);
    }
    let full = journal.status();
    for from in (0..NAMES_MAX - 40_000).step_by(4_000) {
        journal.append(0, vec![removed(chunk(from).map(name))]).expect("a batch");
    }
    let shrunk = journal.status();
    assert_eq!((full.held_blocks, shrunk.held_blocks), (400_000, 40_000));
    let each = |status: super::JournalStatus| status.inventory_bytes / status.held_blocks;
    println!(
        "bytes a name: {} with 400,000; at worst {}.{}; {} with 40,000 left",
        each(full),
        worst / 10,
        worst % 10,
        each(shrunk)
    );
    assert!(worst < 480, "{worst}");
    assert!(each(shrunk) <= 80, "{shrunk:?}");
    let (model, _) = dump(&mut journal, 1_000);
    assert_eq!(model.held.len(), 40_000);
}

/// Repeated copies at a rank are published up to a limit. A large image becomes several batches.
#[test]
fn an_image_is_cut_where_batches_are() {
    let mut journal = journal(CopyMode::Counted);
    for _ in 0..300 {
        journal.append(0, vec![stored(None, [1])]).expect("a small batch");
    }
    for first in 0..10 {
        let names = (10 + first * 10_000)..(10 + (first + 1) * 10_000);
        journal.append(1, vec![stored(None, names)]).expect("a chain");
    }
    journal.republish(OTHER);
    let range = journal.range(OTHER, 0..=u64::MAX, usize::MAX).expect("all of it is kept");
    let mut received = Model::new(CopyMode::Counted);
    for batch in &range.batches {
        assert!(batch.wire_bytes() <= 512 << 10 && batch.events().len() <= BATCH_EVENTS_MAX);
        batch.events().iter().for_each(|event| received.apply(batch.rank(), event));
    }
    assert_eq!(received.held.len(), 100_001);
    assert_eq!(received.held[&(0, BlockName(1))].copies, [255, 0, 0]);
    assert_eq!(received.held[&(1, BlockName(10_010))].parent, None);
    assert_eq!(received.held[&(1, BlockName(10_009))].parent, Some(BlockName(10_008)));
}
