use super::*;
use kvasir_proto::types::{LocalHash, PartitionKey, WorkerId};
use std::time::Duration;

fn outbox() -> Outbox {
    let partition = PartitionKey::new("m", "").expect("names");
    let address = WorkerAddress { partition, worker: WorkerId::new("w").expect("a name") };
    let volume_name = Some("shared".to_owned());
    let config = StorageConfig { interval: Duration::from_secs(10), volume_name };
    Outbox::new(address, Incarnation(1), 4_096, [BlockTier::Host, BlockTier::Volume], &config)
}

fn chain(blocks: u64) -> Vec<BlockIdentity> {
    BlockIdentity::chain(&(0..blocks).map(LocalHash).collect::<Vec<_>>()).collect()
}

fn brief(batches: &[StorageBatch]) -> Vec<(&str, u64)> {
    batches.iter().map(|at| (at.location.as_str(), at.sequence)).collect()
}

#[test]
fn each_location_has_numbers_of_its_own() {
    let mut outbox = outbox();
    let chain = chain(2);
    let event = |change, tier, block: usize| BlockEvent {
        number: 1,
        change,
        registration: Registration { tier, identity: chain[block] },
    };
    let batches = outbox.changes(&[
        event(Change::Register, BlockTier::Volume, 0),
        event(Change::Register, BlockTier::Host, 1),
        event(Change::Remove, BlockTier::Volume, 0),
        event(Change::Register, BlockTier::Disk, 0),
    ]);
    assert_eq!(brief(&batches), [("host", 1), ("volume:shared", 1)]);
    let StorageContent::Changes(changes) = &batches[0].content else { panic!("changes") };
    let [StorageChange::Store(block)] = &changes[..] else { panic!("one is stored") };
    assert_eq!((block.sequence, block.prefix), (chain[1].sequence, Some(chain[0].sequence)));
    assert_eq!((block.bytes, &*block.metadata["position"]), (4_096, "1"));
    let StorageContent::Changes(changes) = &batches[1].content else { panic!("changes") };
    assert!(matches!(changes[..], [StorageChange::Store(_), StorageChange::Remove(_)]));
    let again = outbox.changes(&[event(Change::Remove, BlockTier::Host, 1)]);
    assert_eq!(brief(&again), [("host", 2)]);
}

#[test]
fn a_silent_location_gives_a_sign_of_life() {
    let mut outbox = outbox();
    assert_eq!(brief(&outbox.signs_of_life()), [("host", 1), ("volume:shared", 1)]);
    let identity = chain(1)[0];
    let registration = Registration { tier: BlockTier::Host, identity };
    outbox.changes(&[BlockEvent { number: 1, change: Change::Register, registration }]);
    assert_eq!(brief(&outbox.signs_of_life()), [("volume:shared", 2)]);
    assert_eq!(brief(&outbox.signs_of_life()), [("host", 3), ("volume:shared", 3)]);
}

#[test]
fn an_image_has_a_first_and_a_last_part_in_each_location() {
    for blocks in [0, 1, STORAGE_BATCH_EVENTS_MAX, STORAGE_BATCH_EVENTS_MAX + 1] {
        let mut outbox = outbox();
        let registered = |identity| Registration { tier: BlockTier::Host, identity };
        let registrations = chain(blocks as u64).into_iter().map(registered).collect();
        let image = Image { watermark: 0, registrations };
        let batches: Vec<_> = outbox.image(&image).collect();
        let part = |batch: &StorageBatch| match &batch.content {
            StorageContent::Image(part) => (part.begins, part.ends, part.blocks.len()),
            StorageContent::Changes(_) => panic!("an image"),
        };
        let (host, volume): (Vec<_>, Vec<_>) = batches.iter().partition(|at| at.location == "host");
        let host: Vec<_> = host.into_iter().map(part).collect();
        assert_eq!(host.iter().map(|(_, _, count)| count).sum::<usize>(), blocks);
        let positions = 0..host.len();
        assert!(positions.clone().all(|at| host[at].0 == (at == 0)));
        assert!(positions.clone().all(|at| host[at].1 == (at + 1 == host.len())), "{host:?}");
        assert_eq!(volume.into_iter().map(part).collect::<Vec<_>>(), [(true, true, 0)]);
    }
}
