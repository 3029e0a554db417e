//! What readers and checkpoints see of a source between two steps.

use super::{Follower, HeldBatch};
use crate::ingest::push_source::TaskState;
use crate::ingest::testing::ingest;
use kvasir_engine::recover::{Input, Numbered, Step};
use kvasir_proto::convert::{PublishedBatch, Registration};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, Cursor, Incarnation, KvEvent, LocalHash, SourceState, StoredBlock, Tier,
};
use std::sync::Arc;

const INCARNATION: Incarnation = Incarnation(1);

/// A checkpoint between the two would have a cursor without the blocks up to it: after a restart, nobody would send them
/// again.
#[tokio::test]
async fn a_batch_is_in_the_status_once_its_blocks_are_in_the_index() {
    let ingest = Arc::new(ingest());
    let registration: Registration = pb::RegisterWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        block_size: 16,
        ..Default::default()
    }
    .try_into()
    .expect("a valid registration");
    ingest.register(registration.clone()).await.expect("a first worker");
    let worker = Arc::clone(&ingest.workers.get(&registration.address()).expect("it is known"));
    let mut follower = Follower::new(&ingest, &worker, "s", Arc::new(TaskState::of(None)), None);
    let seen = || {
        let partition = ingest.partitions.list().remove(0);
        let index = partition.shard_of(&registration.worker).read();
        let worker = index.worker(&registration.worker).expect("it is fed");
        let status = worker.sources().next().expect("a source").2;
        (status.state, status.applied)
    };
    let hello = Input::Connected {
        incarnation: INCARNATION,
        first: Some(0),
        head: Some(0),
        in_order: false,
    };
    follower.input(hello).await.expect("the index is there");
    let block = StoredBlock { name: BlockName(1), local: LocalHash(1) };
    let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![block] };
    let batch = PublishedBatch { sequence: 0, rank: 0, events: vec![stored] };
    let live = Input::Live {
        incarnation: INCARNATION,
        batch: Numbered { sequence: 0, item: HeldBatch(batch) },
    };
    follower.recovery.handle(live, ingest.origin.elapsed());
    let apply = follower.recovery.next_step().expect("a step");
    assert!(matches!(apply, Step::Apply { .. }), "it is next");
    follower.source(0).await.expect("the source is added");
    assert_eq!(seen(), (SourceState::CatchingUp, None));
    follower.carry_out(apply).await.expect("it is applied");
    let cursor = Cursor { incarnation: INCARNATION, sequence: 0, fingerprint: None };
    assert_eq!(seen(), (SourceState::Exact, Some(cursor)));
    while let Some(step) = follower.recovery.next_step() {
        follower.carry_out(step).await.expect("the index is there");
    }
    ingest.stop().await;
}
