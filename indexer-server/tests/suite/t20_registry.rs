use crate::harness::{Server, assert_refused, hello, query, registration, stored};
use kvasir_proto::pb;
use tonic::Code;

#[tokio::test]
async fn registering_twice_changes_nothing_and_otherwise_is_a_conflict() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let again = client.register_worker(registration("w")).await.expect("the same").into_inner();
    assert!(!again.created);
    let engine =
        pb::RegisterWorkerRequest { engine: pb::Engine::Sglang.into(), ..registration("w") };
    assert_refused(
        client.register_worker(engine).await,
        Code::FailedPrecondition,
        "worker w (model m) is registered with engine custom, not sglang: remove it first, or register \
         it as it is",
    );
    let block_size = pb::RegisterWorkerRequest { block_size: 16, ..registration("w") };
    assert_refused(
        client.register_worker(block_size).await,
        Code::FailedPrecondition,
        "worker w (model m) is registered with block_size 4, not 16: remove it first, or register it as \
         it is",
    );
    let other = pb::RegisterWorkerRequest { block_size: 16, ..registration("x") };
    assert_refused(
        client.register_worker(other).await,
        Code::FailedPrecondition,
        "block_size is 16, but the workers of model \"m\", tenant \"\" have 4: all workers of a \
         partition must agree",
    );
    let endpoint = pb::EngineEndpoint { endpoint: "ipc://x".to_owned(), ..Default::default() };
    let bad = pb::RegisterWorkerRequest { endpoints: vec![endpoint], ..registration("x") };
    let status = client.register_worker(bad).await.expect_err("a bad endpoint");
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("endpoints[0].endpoint: "), "{status:?}");
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn workers_are_listed_with_ranks_and_sources() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let tenant = pb::RegisterWorkerRequest {
        tenant: "t".to_owned(),
        block_size: 16,
        engine: pb::Engine::Vllm.into(),
        ..registration("a")
    };
    client.register_worker(tenant).await.expect("another tenant");
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(8, vec![stored(None, &[1, 2]), stored(Some(7), &[8])]).await;
    let all = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    let all = all.into_inner().workers;
    let names: Vec<_> = all.iter().map(|at| (&*at.tenant, &*at.worker_id)).collect();
    assert_eq!(names, [("", "w"), ("t", "a")]);
    assert_eq!(
        all[0].ranks,
        [pb::RankInfo { dp_rank: 0, placed_blocks: 2, parked_blocks: 1, shed_blocks: 0 }]
    );
    let source = &all[0].sources[0];
    assert_eq!((&*source.source, source.connected, source.lag_batches), ("s", true, 0));
    // The parked block matches nothing.
    assert_eq!(source.state(), pb::WorkerState::Partial);
    let reasons: Vec<_> = source.reasons.iter().map(|at| (at.reason(), at.count)).collect();
    assert_eq!(reasons, [(pb::Reason::UnknownContent, 1)]);
    assert_eq!(source.applied.as_ref().map(|at| at.sequence), Some(8));
    assert_eq!((all[1].block_size, all[1].engine()), (16, pb::Engine::Vllm));
    assert!(all[1].ranks.is_empty() && all[1].sources.is_empty());
    let one = pb::ListWorkersRequest { tenant: Some("t".to_owned()), ..Default::default() };
    let one = client.list_workers(one).await.expect("a list").into_inner().workers;
    assert_eq!(one.len(), 1);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn removing_the_last_worker_frees_its_partition() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let request = pb::RemoveWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        ..Default::default()
    };
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &(1..=10_000).collect::<Vec<_>>())]).await;
    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    let partition = &stats.partitions[0];
    assert_eq!((partition.workers, partition.blocks, partition.pairs), (1, 10_000, 10_000));
    assert!(partition.index_bytes > 80_000, "{partition:?}");
    let removed = client.remove_worker(request.clone()).await.expect("a worker").into_inner();
    assert_eq!(removed.removed_blocks, 10_000);
    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    assert_eq!(stats.partitions, []);
    assert_refused(
        client.remove_worker(request).await,
        Code::NotFound,
        "worker_id \"w\" is not registered for model \"m\", tenant \"\": call RegisterWorker first",
    );
    let status = client.find_matches(query(&[1])).await.expect_err("no such partition");
    assert_eq!(status.code(), Code::NotFound);
    let bigger = pb::RegisterWorkerRequest { block_size: 64, ..registration("w") };
    let again = client.register_worker(bigger).await.expect("a new partition").into_inner();
    assert!(again.created);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn configured_workers_are_there_from_the_start() {
    let server =
        Server::start(&["--worker=id=a,model=m,block-size=4;id=b,model=m,block-size=4"]).await;
    let mut client = server.indexer().await;
    let list = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    let ids: Vec<_> = list.into_inner().workers.into_iter().map(|at| at.worker_id).collect();
    assert_eq!(ids, ["a", "b"]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn what_a_publisher_stored_goes_once_it_was_away_for_too_long() {
    let (server, mut client) = Server::with_worker(&["--worker-timeout=1ms"]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1])]).await;
    drop(publisher);
    crate::harness::within(async {
        loop {
            let answer = client.find_matches(query(&[1])).await.expect("a valid query");
            if answer.into_inner().matches.is_empty() {
                break;
            }
        }
    })
    .await;
    let publisher = server.publisher(hello("w", "s", 1)).await;
    assert_eq!(publisher.accepted, Some(pb::PublishAccepted { applied: None }));
    server.stop().await.expect("a clean stop");
}
