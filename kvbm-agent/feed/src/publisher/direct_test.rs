use super::*;
use crate::feed::{Feed, SourceConfig};
use crate::hub::{Hub, HubConfig};
use crate::journal::JournalConfig;
use kvasir_proto::convert::WorkerAddress;
use kvasir_proto::hash::{Namespace, local_hashes, tokens_le};
use kvasir_proto::types::{
    BlockName, CopyMode, Incarnation, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use std::sync::Arc;
use std::thread;

const INCARNATION: Incarnation = Incarnation(1);
const NAMES: [BlockName; 2] = [BlockName(5), BlockName(6)];

fn hub() -> Arc<Hub> {
    let partition = PartitionKey::new("m", "").expect("a name");
    let feed = Feed::new(SourceConfig {
        address: WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") },
        name: "agent".to_owned(),
        block_size: 4,
        incarnation: INCARNATION,
        first_sequence: 0,
        journal: JournalConfig::DEFAULT,
    });
    let feed = Arc::new(feed.expect("a valid source"));
    Arc::new(Hub::new(feed, HubConfig::DEFAULT).expect("one source"))
}

fn open(hub: &Arc<Hub>) -> KvEventPublisher {
    KvEventPublisher::open(hub, "engine", CopyMode::Set, 0).expect("the first")
}

fn stored(content: Content<'_>) -> NewBlocks<'_> {
    NewBlocks { parent: None, names: &NAMES, content, tier: Tier::Device }
}

#[test]
fn events_are_journalled_under_ids_of_their_rank() {
    let hub = hub();
    let publisher = open(&hub);
    let tokens: Vec<u32> = (1..=8).collect();
    let namespace = Namespace { lora_name: "lora", cache_salt: "salt" };
    let content = Content::Tokens { tokens: &tokens, namespace, multimodal: &[] };
    let parent = Some(BlockName(4));
    let blocks = NewBlocks { parent, tier: Tier::Host, ..stored(content) };
    assert_eq!(publisher.publish_stored(&blocks), Ok(0));
    assert_eq!(publisher.publish_stored(&stored(Content::Known)), Ok(1));
    assert_eq!(publisher.at_rank(7).publish_removed(&NAMES, Tier::Disk), Ok(0));
    assert_eq!(publisher.publish_all_cleared(), Ok(2));

    let mut locals = Vec::new();
    local_hashes(&tokens_le(&tokens), 4, namespace.seed(), &[], &mut locals);
    let blocks = NAMES.iter().zip(locals).map(|(&name, local)| StoredBlock { name, local });
    let blocks = blocks.collect();
    let expected = [
        (0, KvEvent::Stored { parent, tier: Tier::Host, blocks }),
        (0, KvEvent::StoredNames { tier: Tier::Device, names: NAMES.to_vec() }),
        (7, KvEvent::Removed { tier: Tier::Disk, names: NAMES.to_vec() }),
        (0, KvEvent::Cleared),
    ];
    let published =
        hub.feed().range(INCARNATION, 0..=9, 10).expect("the present incarnation").batches;
    let published: Vec<_> =
        published.iter().map(|batch| (batch.rank(), batch.events()[0].clone())).collect();
    assert_eq!(published, expected);
}

#[test]
fn what_does_not_fit_is_named_and_uses_no_id() {
    let hub = hub();
    let publisher = open(&hub);
    let long = "x".repeat(257);
    let namespace = Namespace { lora_name: "", cache_salt: &long };
    for (blocks, expected) in [
        (stored(Content::tokens(&[1; 9])), "9 tokens are given for 2 blocks of 4: give 8"),
        (
            stored(Content::Locals(&[LocalHash(1)])),
            "1 local hashes are given for 2 blocks: give one for each",
        ),
        (NewBlocks { names: &[], ..stored(Content::tokens(&[])) }, "names must not be empty"),
        (
            NewBlocks { parent: Some(BlockName(1)), ..stored(Content::Known) },
            "parent must not be set for blocks without tokens or local hashes",
        ),
        (
            stored(Content::Tokens { tokens: &[1; 8], namespace, multimodal: &[] }),
            "cache_salt has 257 bytes, the limit is 256",
        ),
    ] {
        let error = publisher.publish_stored(&blocks).expect_err(expected);
        assert_eq!(error.to_string(), expected);
    }
    let many = vec![BlockName(1); 65_537];
    let error = publisher.publish_removed(&many, Tier::Device).expect_err("too many");
    assert!(error.to_string().contains("65537 blocks, the limit is 65536"), "{error}");
    assert_eq!(publisher.publish_removed(&NAMES, Tier::Device), Ok(0));
}

#[test]
fn shut_down_it_holds_nothing_and_takes_nothing() {
    let hub = hub();
    let publisher = open(&hub);
    let other = publisher.at_rank(1);
    let locals = [LocalHash(1), LocalHash(2)];
    for publisher in [&publisher, &other] {
        publisher.publish_stored(&stored(Content::Locals(&locals))).expect("published");
    }
    assert_eq!(hub.feed().status().held_blocks, 4);
    publisher.shutdown();
    publisher.shutdown();
    assert_eq!(hub.feed().status().held_blocks, 0);
    assert_eq!(other.publish_all_cleared(), Err(PublishError::ShutDown));
    // The engine may return.
    assert_eq!(open(&hub).publish_all_cleared(), Ok(0));
}

#[test]
fn threads_share_a_publisher() {
    let hub = hub();
    let publisher = open(&hub);
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let publisher = publisher.clone();
            thread::spawn(move || {
                (0..250).map(|_| publisher.publish_all_cleared().expect("published")).collect()
            })
        })
        .collect();
    let mut all: Vec<u64> = Vec::new();
    for thread in threads {
        let ids: Vec<u64> = thread.join().expect("no panic");
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        all.extend(ids);
    }
    all.sort_unstable();
    assert_eq!(all, (0..1_000).collect::<Vec<_>>());
}
