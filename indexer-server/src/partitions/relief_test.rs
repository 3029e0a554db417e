use super::*;
use crate::partitions::{Bytes, HOLD_OPERATIONS_MAX, IndexConfig, Partition};
use kvasir_index::{Limits, SourceId};
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, PartitionKey, StoredBlock, Tier, WorkerId,
};
use std::num::NonZeroUsize;

const LIMIT: usize = 4 << 20;
const CHAIN_BLOCKS: u64 = 64;
/// Maximum bytes allocated by the new blocks of one hold: a chunk of slots, one of segments and splits of tables.
const HOLD_BYTES: usize = 256 << 10;

/// A partition with one worker, written as a writer thread does it.
struct Flood {
    shard: Arc<Shard>,
    source: SourceId,
    partition: Arc<Partition>,
    stored: u64,
}

impl Flood {
    fn new(partitions: &Partitions, model: &str) -> Self {
        let key = PartitionKey::new(model, "").expect("a short name");
        let partition = partitions.get_or_create(&key, 16).expect("a new partition");
        let worker = WorkerId::new("w").expect("a short name");
        let shard = Arc::clone(partition.shard_of(&worker));
        let added = shard.write(|index| index.add_source(&worker, "s", 0, CopyMode::Set));
        Self { shard, source: added.expect("a new source"), partition, stored: 0 }
    }

    /// Stores as many new chains as fit into a hold, after room was made for them.
    fn hold(&mut self, relief: &mut Relief) {
        relief.make_room(&self.shard, |_| ());
        self.shard.write(|index| {
            for _ in 0..HOLD_OPERATIONS_MAX as u64 / CHAIN_BLOCKS {
                let first = self.stored << 8;
                let block = |at| StoredBlock { name: BlockName(at), local: LocalHash(at) };
                let blocks = (first..first + CHAIN_BLOCKS).map(block).collect();
                let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
                index.apply(self.source, 0, &event).expect("a known source");
                self.stored += 1;
            }
        });
    }

    fn in_use(&self) -> usize {
        self.shard.bytes().in_use()
    }

    fn pairs(&self) -> u64 {
        self.partition.stats().pairs
    }
}

fn partitions(shards: usize) -> Arc<Partitions> {
    let shards = NonZeroUsize::new(shards).expect("some shards");
    let config = IndexConfig { bytes_max: Some(LIMIT), ..IndexConfig::new(shards) };
    Arc::new(Partitions::new(config, Limits::default()))
}

#[test]
fn a_flood_is_held_within_the_limit_at_every_moment() {
    let partitions = partitions(1);
    let mut relief = Relief::new(Arc::clone(&partitions));
    let mut flood = Flood::new(&partitions, "m");
    let mut most = 0;
    for _ in 0..2_000 {
        flood.hold(&mut relief);
        most = most.max(partitions.budget().bytes().allocated);
    }
    println!("{most} bytes at most of {LIMIT}, {:?}", partitions.budget().shed());
    assert!((LIMIT / 8 * 7..=LIMIT + HOLD_BYTES).contains(&most), "{most} bytes");
    let shed = partitions.budget().shed();
    assert_eq!(flood.pairs() + shed.pairs, flood.stored * CHAIN_BLOCKS);
    assert_eq!(flood.partition.stats().shed_blocks, shed.pairs);
}

#[test]
fn an_idle_partition_and_a_busy_one_leave_room_to_each_other() {
    let partitions = partitions(1);
    let mut relief = Relief::new(Arc::clone(&partitions));
    let mut floods = [Flood::new(&partitions, "a"), Flood::new(&partitions, "b")];
    let mut most = 0;
    for (number, busy) in [0, 1, 0, 1, 1, 0].into_iter().enumerate() {
        for _ in 0..1_000 {
            floods[busy].hold(&mut relief);
            most = most.max(partitions.budget().bytes().allocated);
        }
        let [busy, idle] = [busy, 1 - busy].map(|at| (floods[at].in_use(), floods[at].pairs()));
        println!("{number}: busy {busy:?}, idle {idle:?}, {:?}", partitions.budget().bytes());
        assert!(busy.0 > LIMIT / 6, "{busy:?} of the busy one");
        assert!(number == 0 || idle.0 > LIMIT / 6, "{idle:?} of the idle one");
    }
    assert!(most <= LIMIT + HOLD_BYTES, "{most} bytes");
}

#[test]
fn small_partitions_that_are_idle_lose_nothing() {
    let partitions = partitions(3);
    let mut relief = Relief::new(Arc::clone(&partitions));
    let mut idle: Vec<_> =
        (0..6).map(|number| Flood::new(&partitions, &format!("idle-{number}"))).collect();
    idle.iter_mut().for_each(|flood| flood.hold(&mut relief));
    let mut busy = Flood::new(&partitions, "busy");
    for _ in 0..1_000 {
        busy.hold(&mut relief);
    }
    assert!(partitions.budget().shed().pairs > 0);
    for flood in &idle {
        assert_eq!(flood.pairs(), HOLD_OPERATIONS_MAX as u64, "{:?}", flood.partition);
    }
}

#[test]
fn a_partition_that_is_gone_is_not_counted() {
    let partitions = partitions(2);
    let mut relief = Relief::new(Arc::clone(&partitions));
    let mut flood = Flood::new(&partitions, "m");
    for _ in 0..300 {
        flood.hold(&mut relief);
    }
    assert!(partitions.budget().bytes().allocated > LIMIT / 2);
    partitions.remove(flood.partition.key());
    drop(flood);
    assert_eq!(partitions.budget().bytes(), Bytes::default());
    let mut next = Flood::new(&partitions, "n");
    next.hold(&mut relief);
    assert_eq!(next.pairs(), HOLD_OPERATIONS_MAX as u64);
}

#[test]
fn what_cannot_be_kept_within_the_limit_does_not_stop_the_writer() {
    let shards = NonZeroUsize::MIN;
    let fixed_bytes_max = None;
    let config = IndexConfig { bytes_max: Some(1), fixed_bytes_max, ..IndexConfig::new(shards) };
    let partitions = Arc::new(Partitions::new(config, Limits::default()));
    let mut relief = Relief::new(Arc::clone(&partitions));
    let mut flood = Flood::new(&partitions, "m");
    for _ in 0..10 {
        flood.hold(&mut relief);
        assert_eq!(flood.pairs(), HOLD_OPERATIONS_MAX as u64);
    }
    relief.make_room(&flood.shard, |_| ());
    assert_eq!(flood.pairs(), 0);
}
