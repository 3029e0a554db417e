use super::super::told::Told;
use super::*;
use kvasir_proto::convert::{StorageBlock, WorkerAddress};
use kvasir_proto::types::{PartitionKey, SequenceHash, WorkerId};
use std::collections::BTreeMap;

const HALF_LIFE: Duration = Duration::from_secs(60);

fn rules() -> Rules {
    Rules {
        order: ["host", "disk", "volume"].map(str::to_owned).into(),
        hot_uses: 3.0,
        cold_after: Duration::from_secs(600),
        copies_max: 2,
        advice_max: 10,
    }
}

fn place(tree: &mut Tree, worker: &str, location: &str) -> PlaceId {
    let partition = PartitionKey::new("m", "t").expect("names");
    let address = WorkerAddress { partition, worker: WorkerId::new(worker).expect("a name") };
    tree.place(&address, location).expect("room")
}

/// One block of a chain: each block continues the previous one, from 1.
fn block(sequence: u64) -> StorageBlock {
    let prefix = (sequence > 1).then(|| SequenceHash(sequence - 1));
    StorageBlock { sequence: SequenceHash(sequence), prefix, bytes: 10, metadata: BTreeMap::new() }
}

fn brief(advice: &[Advice]) -> Vec<(AdviceReason, &str, &str, Option<&str>)> {
    let brief = advice.iter().map(|at| {
        let hash = at.sequence_hash.trim_start_matches('0');
        (at.reason, hash, &*at.from, at.to.as_deref())
    });
    brief.collect()
}

#[test]
fn a_hot_block_is_brought_up_with_its_prefix() {
    let mut tree = Tree::new(100, HALF_LIFE);
    let host = place(&mut tree, "w", "host");
    let disk = place(&mut tree, "w", "disk");
    let now = Duration::from_secs(100);
    tree.store(host, &block(1), now);
    (2..=3).for_each(|at| tree.store(disk, &block(at), now));
    assert_eq!(advise(&tree, &rules(), now), []);
    // Each return of the block stores it again.
    for _ in 0..2 {
        tree.remove(disk, 3);
        tree.store(disk, &block(3), now);
    }
    let told = advise(&tree, &rules(), now);
    let to = Some("host");
    let expected = [(AdviceReason::Hot, "2", "disk", to), (AdviceReason::Hot, "3", "disk", to)];
    assert_eq!(brief(&told[..1]), expected[..1], "{told:?}");
    let line = serde_json::to_string(&told[0]).expect("JSON");
    let begins = r#"{"kind":"promotion","reason":"hot","model":"m","tenant":"t","worker":"w","from":"disk","to":"host","sequence_hash":"0000000000000002","prefix_hash":"0000000000000001","block_bytes":10,"#;
    assert!(line.starts_with(begins), "{line}");
    let later = now + HALF_LIFE * 4;
    assert_eq!(advise(&tree, &rules(), later), [], "uses of long ago count no more");
}

#[test]
fn cold_leaves_go_down_least_recently_used_first() {
    let mut tree = Tree::new(100, HALF_LIFE);
    let host = place(&mut tree, "w", "host");
    let volume = place(&mut tree, "w", "volume:v");
    let at = Duration::from_secs;
    (1..=3).for_each(|sequence| tree.store(host, &block(sequence), at(sequence)));
    tree.store(host, &StorageBlock { prefix: None, ..block(9) }, at(1));
    tree.store(volume, &StorageBlock { prefix: None, ..block(20) }, at(0));
    let told = advise(&tree, &rules(), at(700));
    let to = Some("disk");
    let expected = [(AdviceReason::Cold, "9", "host", to), (AdviceReason::Cold, "3", "host", to)];
    assert_eq!(brief(&told), expected, "2 has a continuation, and nothing is below the volume");
    assert_eq!((told[0].idle_s, told[0].copies), (699, 1));
}

#[test]
fn blocks_out_of_reach_and_needless_copies_are_compacted() {
    let mut tree = Tree::new(100, HALF_LIFE);
    let now = Duration::from_secs(1);
    let hosts = ["a", "b", "c"].map(|worker| place(&mut tree, worker, "host"));
    let volumes = ["a", "b"].map(|worker| place(&mut tree, worker, "volume:v"));
    hosts[..2].iter().for_each(|host| tree.restore(*host, &block(1), now));
    tree.restore(hosts[0], &block(5), now);
    let told = advise(&tree, &rules(), now);
    assert_eq!(brief(&told), [(AdviceReason::Orphan, "5", "host", None)]);
    volumes.iter().for_each(|volume| tree.restore(*volume, &block(1), now));
    tree.remove(hosts[0], 5);
    let told = advise(&tree, &rules(), now);
    assert_eq!(brief(&told), [(AdviceReason::Copies, "1", "volume:v", None)]);
    assert_eq!(told[0].copies, 3, "a volume is one place");
    tree.forget(hosts[1]);
    assert_eq!(advise(&tree, &rules(), now), []);
}

#[test]
fn the_same_advice_is_not_repeated_for_a_while() {
    let mut tree = Tree::new(100, HALF_LIFE);
    let host = place(&mut tree, "w", "host");
    tree.restore(host, &block(5), Duration::ZERO);
    let mut told = Told::default();
    let at = Duration::from_secs;
    let mut new = |now| {
        let advice = advise(&tree, &rules(), now);
        told.new_only(advice, now, at(60)).len()
    };
    assert_eq!((new(at(0)), new(at(59)), new(at(60))), (1, 0, 1));
}
