use super::*;
use crate::partitions::IndexConfig;
use kvasir_index::{Limits, PlacedScratch};
use kvasir_process::telemetry::new_registry;
use kvasir_proto::types::PartitionKey;
use std::num::NonZeroUsize;

struct Fleet {
    partitions: Arc<Partitions>,
    speculation: Speculation,
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn worker(name: &str) -> WorkerKey {
    WorkerKey { worker: WorkerId::new(name).expect("a valid id"), rank: 0 }
}

/// A prompt without common blocks with prompts of other numbers.
fn prompt(number: u64, blocks: u64) -> Vec<LocalHash> {
    (0..blocks).map(|at| LocalHash(number << 32 | at)).collect()
}

impl Fleet {
    fn new(blocks_max: usize, blocks_kept: usize) -> Self {
        let shards = NonZeroUsize::MIN;
        let partitions = Arc::new(Partitions::new(IndexConfig::new(shards), Limits::default()));
        let metrics = SpeculationMetrics::register(&mut new_registry(), Arc::clone(&partitions));
        let config = SpeculationConfig { blocks_max, blocks_kept };
        let speculation = Speculation::new(Arc::clone(&partitions), config, metrics);
        Self { partitions, speculation }
    }

    fn partition(&self, model: &str) -> Arc<Partition> {
        self.partition_of(model, "")
    }

    fn partition_of(&self, model: &str, tenant: &str) -> Arc<Partition> {
        let key = PartitionKey::new(model, tenant).expect("a valid key");
        self.partitions.get_or_create(&key, 16).expect("few partitions")
    }

    async fn record(&self, model: &str, name: &str, locals: &[LocalHash], now: u64) -> Recorded {
        let now = seconds(now);
        let ttl = seconds(100);
        let prompt = Speculative { worker: worker(name), locals, now, ttl };
        let recorded = self.speculation.record(&self.partition(model), prompt, || true).await;
        recorded.expect("a worker that is there")
    }

    fn find(&self, model: &str, locals: &[LocalHash], now: u64) -> Vec<(String, u32)> {
        let mut scratch = PlacedScratch::default();
        let partition = self.partition(model);
        let found = partition.find_speculative(locals, seconds(now), &mut scratch);
        found.iter().map(|at| (at.worker.worker.to_string(), at.blocks)).collect()
    }

    /// Checks that each recorded block is present or was dropped, and that dropped blocks release their bytes.
    async fn validate(&self) {
        let sizes = || self.partitions.list().into_iter().map(|at| at.speculative_size());
        let blocks: usize = sizes().map(|size| size.blocks).sum();
        assert_eq!(*self.speculation.turn.lock().await, blocks);
        assert!(blocks <= self.speculation.config.blocks_max, "{blocks} blocks");
        let count = |outcome| self.speculation.metrics.get(outcome);
        let dropped = count("expired") + count("pruned") + count("removed");
        assert_eq!(count("recorded"), dropped + blocks as u64);
        assert!(sizes().all(|size| (size.blocks == 0) == (size.bytes == 0)));
        for partition in self.partitions.list() {
            partition.speculative().with_placements(Placements::validate).expect("sound");
        }
    }
}

#[tokio::test]
async fn the_bound_is_on_all_partitions_and_the_oldest_go_first() {
    let fleet = Fleet::new(10_000, 8_000);
    fleet.record("a", "w", &prompt(1, 3_000), 0).await;
    fleet.record("b", "w", &prompt(2, 3_000), 1).await;
    fleet.record("a", "v", &prompt(3, 4_000), 2).await;
    fleet.validate().await;
    assert_eq!(fleet.find("a", &prompt(1, 3_000), 3), [("w".to_owned(), 3_000)]);

    // One more block does not fit: the pruning drops 2,000, the last blocks of the oldest prompt.
    fleet.record("b", "v", &prompt(4, 1), 3).await;
    fleet.validate().await;
    assert_eq!(fleet.speculation.metrics.get("pruned"), 2_000);
    assert_eq!(fleet.find("a", &prompt(1, 3_000), 3), [("w".to_owned(), 1_000)]);
    assert_eq!(fleet.find("b", &prompt(2, 3_000), 3), [("w".to_owned(), 3_000)]);

    // The first prompt is recorded again and is now the newest, so the second is pruned instead.
    fleet.record("a", "w", &prompt(1, 2_999), 4).await;
    fleet.record("a", "w", &prompt(5, 1_000), 5).await;
    fleet.validate().await;
    assert_eq!(fleet.find("a", &prompt(1, 3_000), 5), [("w".to_owned(), 2_999)]);
    assert_eq!(fleet.find("b", &prompt(2, 3_000), 5), [("w".to_owned(), 1_000)]);

    // As long as the limit: all other prompts are pruned.
    fleet.record("b", "u", &prompt(6, 10_000), 6).await;
    fleet.validate().await;
    assert_eq!(fleet.find("b", &prompt(6, 10_000), 6), [("u".to_owned(), 10_000)]);
    assert_eq!(fleet.find("a", &prompt(1, 3_000), 6), []);
}

/// A tenant that records without limit does not shorten the life of another tenant's placements.
#[tokio::test]
async fn a_tenant_that_fills_the_room_costs_others_nothing() {
    let fleet = Fleet::new(10_000, 8_000);
    let record = async |tenant: &str, number, blocks, ttl| {
        let partition = fleet.partition_of("m", tenant);
        let locals = prompt(number, blocks);
        let ttl = seconds(ttl);
        let prompt = Speculative { worker: worker("w"), locals: &locals, now: seconds(0), ttl };
        fleet.speculation.record(&partition, prompt, || true).await.expect("a worker");
    };
    record("small", 1, 1_000, 100).await;
    for number in 2..8 {
        record("greedy", number, 5_000, 3_600).await;
        fleet.validate().await;
    }
    assert_eq!(fleet.partition_of("m", "small").speculative_size().blocks, 1_000);
    assert!(fleet.partition_of("m", "greedy").speculative_size().blocks >= 5_000);
}

#[tokio::test]
async fn what_ended_is_not_answered_and_then_dropped() {
    let fleet = Fleet::new(1 << 20, 1 << 19);
    fleet.record("a", "w", &prompt(1, 5_000), 0).await;
    fleet.record("b", "w", &prompt(1, 5_000), 50).await;
    assert_eq!(fleet.find("a", &prompt(1, 9_000), 99), [("w".to_owned(), 5_000)]);
    assert_eq!(fleet.find("a", &prompt(1, 9_000), 100), []);
    fleet.speculation.expire(seconds(99)).await;
    assert_eq!(fleet.speculation.metrics.get("expired"), 0);
    fleet.speculation.expire(seconds(100)).await;
    assert_eq!(fleet.speculation.metrics.get("expired"), 5_000);
    fleet.validate().await;
    fleet.speculation.expire(seconds(150)).await;
    assert_eq!(fleet.speculation.metrics.get("expired"), 10_000);
    fleet.validate().await;
}

#[tokio::test]
async fn a_removed_worker_has_nothing_and_takes_nothing() {
    let fleet = Fleet::new(1 << 20, 1 << 19);
    let partition = fleet.partition("a");
    fleet.record("a", "w", &prompt(1, 5_000), 0).await;
    fleet.record("a", "v", &prompt(1, 10), 0).await;
    fleet.speculation.remove_worker(&partition, &worker("w").worker).await;
    fleet.validate().await;
    assert_eq!(fleet.find("a", &prompt(1, 9_000), 0), [("v".to_owned(), 10)]);
    let locals = prompt(1, 3);
    let now = seconds(0);
    let ttl = seconds(9);
    let late = Speculative { worker: worker("w"), locals: &locals, now, ttl };
    let refused = fleet.speculation.record(&partition, late, || false).await;
    assert_eq!(refused, Err(SpeculationError::Gone));
    // A new worker of the same name does not inherit placements.
    fleet.record("a", "w", &prompt(1, 2), 0).await;
    let found = fleet.find("a", &prompt(1, 9_000), 0);
    assert_eq!(found, [("v".to_owned(), 10), ("w".to_owned(), 2)]);
    fleet.validate().await;
}

#[tokio::test]
async fn recordings_at_the_same_time_take_turns() {
    let fleet = Fleet::new(70_000, 60_000);
    let prompts: Vec<_> = (1..=8).map(|number| prompt(number, 20_000)).collect();
    let all = prompts.iter().map(|locals| fleet.record("a", "w", locals, 0));
    for recorded in futures::future::join_all(all).await {
        assert_eq!(recorded, Recorded { added: 20_000, refreshed: 0 });
    }
    fleet.validate().await;
    assert_eq!(fleet.find("a", &prompts[7], 0), [("w".to_owned(), 20_000)]);
}

#[tokio::test]
async fn a_recording_that_is_given_up_holds_nobody_up() {
    let fleet = Fleet::new(70_000, 60_000);
    let locals = prompt(1, 5_000);
    let mut given_up = Box::pin(fleet.record("a", "w", &locals, 0));
    assert!(futures::poll!(&mut given_up).is_pending());
    drop(given_up);
    fleet.validate().await;
    let first_piece = u32::try_from(HOLD_OPERATIONS_MAX).expect("small");
    assert_eq!(fleet.find("a", &prompt(1, 5_000), 0), [("w".to_owned(), first_piece)]);
    fleet.record("a", "w", &prompt(1, 5_000), 0).await;
    assert_eq!(fleet.find("a", &prompt(1, 5_000), 0), [("w".to_owned(), 5_000)]);
}

#[tokio::test]
async fn removals_and_ends_do_not_cut_the_recordings_of_others() {
    let fleet = Fleet::new(70_000, 60_000);
    let partition = fleet.partition("a");
    fleet.record("a", "w", &prompt(1, 20_000), 0).await;
    fleet.record("a", "u", &prompt(2, 20_000), 0).await;
    let long = prompt(3, 20_000);
    let gone = worker("w").worker;
    let (recorded, (), ()) = futures::join!(
        fleet.record("a", "v", &long, 100),
        fleet.speculation.remove_worker(&partition, &gone),
        fleet.speculation.expire(seconds(100)),
    );
    assert_eq!(recorded, Recorded { added: 20_000, refreshed: 0 });
    fleet.validate().await;
    assert_eq!(partition.speculative_size().blocks, 20_000);
}
