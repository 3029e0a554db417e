//! Status of a source, as readers and checkpoints see it between two steps.

use super::{Follower, HeldBatch};
use crate::ingest::Ingest;
use crate::ingest::push_source::{Arrival, TaskState};
use crate::ingest::testing::ingest;
use crate::ingest::worker::Worker;
use crate::partitions::ResumedSource;
use kvasir_engine::recover::{Input, Numbered, Step};
use kvasir_proto::convert::{Heartbeat, Hello, PublishedBatch, Registration};
use kvasir_proto::pb;
use kvasir_proto::types::{
    BlockName, CopyMode, Cursor, Incarnation, KvEvent, LocalHash, Reason, SourceState,
    SourceStatus, StateReason, StoredBlock, Tier,
};
use std::sync::Arc;
use std::time::Duration;

const INCARNATION: Incarnation = Incarnation(1);

async fn fleet() -> (Arc<Ingest>, Arc<Worker>) {
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
    (ingest, worker)
}

/// State and cursor of the worker's source, as the index has them.
fn seen(ingest: &Ingest, worker: &Worker) -> (SourceState, Option<Cursor>) {
    let partition = ingest.partitions.list().remove(0);
    let index = partition.shard_of(worker.id()).read();
    let worker = index.worker(worker.id()).expect("it is fed");
    let status = worker.sources().next().expect("a source").2;
    (status.state, status.applied)
}

fn hello(worker: &Worker, incarnation: Incarnation) -> Hello {
    Hello {
        address: worker.address(),
        source: "s".to_owned(),
        block_size: 16,
        incarnation,
        copy_mode: CopyMode::Set,
        first_sequence: None,
        head_sequence: Some(5),
        local_indexer: None,
    }
}

fn stored(sequence: u64) -> PublishedBatch {
    let block = StoredBlock { name: BlockName(1), local: LocalHash(1) };
    let stored = KvEvent::Stored { parent: None, tier: Tier::Device, blocks: vec![block] };
    PublishedBatch { sequence, rank: 0, events: vec![stored] }
}

/// The cursor must not precede the blocks: a checkpoint in between would store a cursor without its blocks, and after a
/// restart they would never be sent again.
#[tokio::test]
async fn a_batch_is_in_the_status_once_its_blocks_are_in_the_index() {
    let (ingest, worker) = fleet().await;
    let mut follower =
        Follower::new(&ingest, &worker, "s", Arc::new(TaskState::with_source(None)), None);
    let hello = Input::Connected {
        incarnation: INCARNATION,
        first: Some(0),
        head: Some(0),
        in_order: false,
    };
    follower.input(hello).await.expect("the index is there");
    let batch = stored(0);
    let live = Input::Live {
        incarnation: INCARNATION,
        batch: Numbered { sequence: 0, item: HeldBatch(batch) },
    };
    follower.recovery.handle(live, ingest.origin.elapsed());
    let apply = follower.recovery.next_step().expect("a step");
    assert!(matches!(apply, Step::Apply { .. }), "it is next");
    follower.source(0).await.expect("the source is added");
    assert_eq!(seen(&ingest, &worker), (SourceState::CatchingUp, None));
    follower.carry_out(apply).await.expect("it is applied");
    let cursor = Cursor { incarnation: INCARNATION, sequence: 0, fingerprint: None };
    assert_eq!(seen(&ingest, &worker), (SourceState::Exact, Some(cursor)));
    while let Some(step) = follower.recovery.next_step() {
        follower.carry_out(step).await.expect("the index is there");
    }
    ingest.stop().await;
}

/// The state is not reported again before the next heartbeat.
#[tokio::test]
async fn what_a_source_stated_before_a_restart_lasts_until_its_next_heartbeat() {
    let (ingest, worker) = fleet().await;
    let named = ("s", CopyMode::Set);
    let source = ingest.writer.add_source(&worker.partition, worker.id(), named, 0).await;
    let source = source.expect("the index is there").expect("a first source");
    let cursor = Cursor { incarnation: INCARNATION, sequence: 5, fingerprint: None };
    let reason = Reason::UnknownEvent;
    let example = "type=X".into();
    let since = Duration::ZERO;
    let reasons = [StateReason { reason, count: 1, example, since }].into();
    let resumed = ResumedSource {
        name: named.0.to_owned(),
        copy_mode: named.1,
        source: source.clone(),
        status: SourceStatus { applied: Some(cursor), reasons, ..SourceStatus::default() },
        names: Vec::new(),
    };
    let shared = Arc::new(TaskState::with_source(Some(source)));
    let mut follower = Follower::new(&ingest, &worker, named.0, shared, Some(&resumed));
    let hello = hello(&worker, INCARNATION);
    follower.open_stream(&hello, Arrival::default()).await.expect("it is known");
    assert_eq!(seen(&ingest, &worker), (SourceState::Partial, Some(cursor)));
    follower
        .apply_heartbeat(follower.stream, Heartbeat::at(Some(5)))
        .await
        .expect("the index is there");
    assert_eq!(seen(&ingest, &worker), (SourceState::Exact, Some(cursor)));
    ingest.stop().await;
}

/// Over a broker, batches may overtake the first heartbeat of an agent.
#[tokio::test]
async fn a_source_over_a_broker_is_not_exact_before_its_first_heartbeat() {
    let (ingest, worker) = fleet().await;
    let mut follower =
        Follower::new(&ingest, &worker, "s", Arc::new(TaskState::with_source(None)), None);
    let arrival = Arrival::Broker { in_order: false, is_behind: false };
    for incarnation in [INCARNATION, Incarnation(2)] {
        follower.open_stream(&hello(&worker, incarnation), arrival).await.expect("it is admitted");
        follower.handle_batch(follower.stream, stored(5), None).await.expect("the index is there");
        let cursor = Some(Cursor { incarnation, sequence: 5, fingerprint: None });
        assert_eq!(seen(&ingest, &worker), (SourceState::CatchingUp, cursor));
        follower
            .apply_heartbeat(follower.stream, Heartbeat::at(Some(5)))
            .await
            .expect("the index is there");
        assert_eq!(seen(&ingest, &worker), (SourceState::Exact, cursor));
        // A second stream of the same incarnation does not change the status.
        follower.open_stream(&hello(&worker, incarnation), arrival).await.expect("it is known");
        assert_eq!(seen(&ingest, &worker), (SourceState::Exact, cursor));
    }
    ingest.stop().await;
}

#[tokio::test]
async fn a_direct_stream_after_a_log_that_was_behind_is_live() {
    let (ingest, worker) = fleet().await;
    let mut follower =
        Follower::new(&ingest, &worker, "s", Arc::new(TaskState::with_source(None)), None);
    let log = Arrival::Broker { in_order: false, is_behind: true };
    for (arrival, state) in
        [(log, SourceState::CatchingUp), (Arrival::default(), SourceState::Exact)]
    {
        follower.open_stream(&hello(&worker, INCARNATION), arrival).await.expect("it is admitted");
        follower.handle_batch(follower.stream, stored(5), None).await.expect("the index is there");
        assert_eq!(seen(&ingest, &worker).0, state);
    }
    ingest.stop().await;
}
