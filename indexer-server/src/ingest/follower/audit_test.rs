use super::*;
use kvasir_proto::types::{LocalHash, StoredBlock};

fn batch(sequence: u64, blocks: u64) -> PublishedBatch {
    let block = |name| StoredBlock { name: BlockName(name), local: LocalHash(name) };
    let blocks = (0..blocks).map(block).collect();
    let events = vec![KvEvent::Stored { parent: None, tier: Tier::Device, blocks }];
    PublishedBatch { sequence, rank: 0, events }
}

fn text(due: &Due) -> String {
    match due {
        Due::Nothing => "nothing".to_owned(),
        Due::Compare(digest) => format!("compare {digest}"),
        Due::Follow(held) => format!("follow {}", held.batch.sequence),
        Due::Check(_) => "look".to_owned(),
        Due::Abandon => "abandon".to_owned(),
    }
}

fn due(audit: &mut Audit, applied: Option<u64>) -> String {
    text(&audit.next_action(applied, true))
}

fn answered(watermark: Option<u64>) -> Stage {
    Stage::Answered { watermark, answer: Answer::Digests(BTreeMap::new()) }
}

#[test]
fn a_digest_is_compared_at_the_batch_that_it_is_of() {
    let mut audit = Audit::default();
    assert_eq!(due(&mut audit, Some(3)), "nothing");
    audit.announce(Some(5), Some(77));
    assert_eq!(due(&mut audit, Some(4)), "nothing", "it is on its way");
    assert_eq!(text(&audit.next_action(Some(5), false)), "nothing", "it is not exact now");
    assert_eq!(due(&mut audit, Some(5)), "compare 77");
    assert_eq!(due(&mut audit, Some(5)), "nothing", "once");
    audit.announce(Some(6), Some(78));
    audit.announce(Some(7), None);
    assert_eq!(due(&mut audit, Some(7)), "nothing", "6 is over, and of 7 nothing was said");
    audit.announce(None, Some(0));
    assert_eq!(due(&mut audit, None), "compare 0", "before the first batch");
    audit.announce(Some(8), Some(79));
    audit.forget_announced();
    assert_eq!(due(&mut audit, Some(8)), "nothing", "a new stream has other batches");
    audit.announce(Some(9), Some(1));
    audit.announce(Some(10), Some(2));
    assert_eq!(due(&mut audit, Some(10)), "compare 2", "the newest");
}

#[test]
fn what_is_held_back_is_applied_up_to_the_batch_of_the_answer() {
    let mut audit = Audit { stage: answered(Some(6)), ..Audit::default() };
    for sequence in 5..=7 {
        audit.hold_back(0, batch(sequence, 10), None);
    }
    assert_eq!(audit.held_operations, 30);
    assert_eq!(due(&mut audit, Some(4)), "follow 5");
    assert_eq!(due(&mut audit, Some(5)), "follow 6");
    assert_eq!(due(&mut audit, Some(6)), "look");
    assert!(audit.holds(), "7 waits until it was looked at");
    assert_eq!((audit.held.len(), audit.held_operations), (1, 10));
    assert_eq!(due(&mut audit, Some(6)), "nothing");

    let mut late = Audit { stage: answered(Some(6)), ..Audit::default() };
    assert_eq!(due(&mut late, Some(5)), "nothing", "6 is on its way");
    assert_eq!(due(&mut late, Some(7)), "abandon", "the moment is over");
    let mut torn = Audit { stage: answered(Some(6)), ..Audit::default() };
    assert_eq!(text(&torn.next_action(Some(5), false)), "abandon");
}

#[test]
fn what_is_held_back_is_bounded() {
    let mut audit = Audit { stage: answered(Some(u64::MAX)), ..Audit::default() };
    for sequence in 0..HELD_BATCHES_MAX as u64 - 1 {
        audit.hold_back(0, batch(sequence, 1), None);
        assert!(!audit.is_full());
    }
    audit.hold_back(0, batch(u64::MAX, 1), None);
    assert_eq!(due(&mut audit, None), "abandon");
    let mut audit = Audit { stage: answered(Some(u64::MAX)), ..Audit::default() };
    audit.hold_back(0, batch(0, HELD_OPERATIONS_MAX as u64), None);
    assert_eq!(due(&mut audit, None), "abandon");
}

#[test]
fn of_a_name_the_last_word_counts() {
    let held = |name, local| HeldBlock {
        name: BlockName(name),
        parent: None,
        local: Some(LocalHash(local)),
        copies: [1, 0, 0],
    };
    let bucket = |at: &HeldBlock| digest_bucket(block_digest(at.name, at.local));
    let one = held(1, 1);
    let other = held(1, 2);
    let buckets: RankBuckets = [(0, vec![bucket(&one)])].into();
    let mut blocks = Blocks::new();
    put_block(&mut blocks, &buckets, 0, one);
    put_block(&mut blocks, &buckets, 1, one);
    assert_eq!(blocks.len(), 1, "of rank 1 nothing is wanted");
    put_block(&mut blocks, &buckets, 0, other);
    assert_ne!(bucket(&one), bucket(&other));
    assert!(blocks.is_empty(), "it is in another bucket now");
    put_block(&mut blocks, &buckets, 0, one);
    put_block(&mut blocks, &buckets, 0, HeldBlock { copies: [0; 3], local: None, ..one });
    assert!(blocks.is_empty(), "it is gone");
}
