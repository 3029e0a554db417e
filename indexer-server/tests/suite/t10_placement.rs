use crate::harness::{
    BLOCK_SIZE, Server, assert_refused, counter, hello, query, registration, stored, within,
};
use kvasir_proto::hash::{Namespace, local_hashes};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use tokio_stream::StreamExt;
use tonic::Code;
use tonic::transport::Channel;

/// A placement of the prompt that [`query`] requests for the same names.
fn placement(worker: &str, names: &[u64]) -> pb::RecordPlacementRequest {
    pb::RecordPlacementRequest {
        model: "m".to_owned(),
        worker_id: worker.to_owned(),
        local_hashes: query(names).local_hashes,
        ..Default::default()
    }
}

async fn place(client: &mut IndexerClient<Channel>, request: pb::RecordPlacementRequest) {
    within(client.record_placement(request)).await.expect("a valid placement");
}

/// (worker, rank, confirmed, speculative) of an answer, in the answer's order; and its best overlap.
type Found = (Vec<(String, u32, u32, u32)>, u32);

async fn found(client: &mut IndexerClient<Channel>, request: pb::FindMatchesRequest) -> Found {
    let answer = client.find_matches(request).await.expect("a valid query").into_inner();
    let matches = answer.matches.into_iter();
    let matches =
        matches.map(|at| (at.worker_id, at.dp_rank, at.matched_blocks, at.speculative_blocks));
    (matches.collect(), answer.best_overlap_blocks)
}

fn rows(rows: &[(&str, u32, u32, u32)]) -> Vec<(String, u32, u32, u32)> {
    rows.iter().map(|&(worker, rank, a, b)| (worker.to_owned(), rank, a, b)).collect()
}

async fn stats(client: &mut IndexerClient<Channel>) -> pb::GetStatsResponse {
    client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner()
}

/// Number of speculative blocks and their bytes, over all partitions.
async fn speculative(client: &mut IndexerClient<Channel>) -> (u64, u64) {
    let partitions = stats(client).await.partitions;
    let sizes = partitions.iter().map(|at| (at.speculative_blocks, at.speculative_bytes));
    sizes.fold((0, 0), |sum, at| (sum.0 + at.0, sum.1 + at.1))
}

#[tokio::test]
async fn placements_stand_beside_what_is_confirmed_and_order_the_answer() {
    let (server, mut client) = Server::with_worker(&[]).await;
    for worker in ["u", "v"] {
        client.register_worker(registration(worker)).await.expect("one more worker");
    }
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![stored(None, &[1, 2, 3])]).await;
    server.publisher(hello("v", "s", 1)).await.acked(1, vec![stored(None, &[1])]).await;
    place(&mut client, placement("v", &[1, 2, 3, 4])).await;
    place(&mut client, pb::RecordPlacementRequest { dp_rank: 7, ..placement("u", &[1, 9]) }).await;

    let all = rows(&[("v", 0, 1, 4), ("w", 0, 3, 0), ("u", 7, 0, 1)]);
    let mut check = async |change: fn(&mut pb::FindMatchesRequest), expected: &[_]| {
        let mut request = query(&[1, 2, 3, 4, 5]);
        change(&mut request);
        let (matches, best) = found(&mut client, request).await;
        assert_eq!(matches, expected);
        assert!(best <= 3, "{best}: the best overlap is confirmed");
    };
    check(|_| {}, &all).await;
    check(|request| request.top_k = 1, &all[..1]).await;
    check(|request| request.minimum_overlap_blocks = Some(2), &all[..2]).await;
    check(|request| request.minimum_overlap_blocks = Some(5), &[]).await;
    check(|request| request.minimum_overlap_blocks = Some(0), &all).await;
    check(|request| request.worker_ids = vec!["u".to_owned()], &all[2..]).await;
    // Queries outside of device memory, or by name, return no speculative blocks.
    let host = |request: &mut pb::FindMatchesRequest| request.tiers = vec![pb::Tier::Host.into()];
    check(host, &[]).await;
    let names = |request: &mut pb::FindMatchesRequest| {
        request.local_hashes = vec![];
        request.sequence_hashes = vec![1, 2, 3, 4];
    };
    check(names, &rows(&[("w", 0, 3, 0), ("v", 0, 1, 0)])).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_worker_without_endpoints_is_known_by_its_placements_alone() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let tokens: Vec<u32> = (100..114).collect();
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let mut locals = Vec::new();
    let seed = Namespace { lora_name: "lora", cache_salt: "salt" }.seed();
    local_hashes(&bytes, BLOCK_SIZE as usize, seed, &[], &mut locals);
    let base = placement("w", &[]);
    let named = pb::RecordPlacementRequest {
        lora_name: "lora".to_owned(),
        cache_salt: "salt".to_owned(),
        ..base.clone()
    };
    let by_hash: Vec<_> = locals.iter().map(|local| local.0).collect();
    for (new_blocks, request) in [
        (3, pb::RecordPlacementRequest { token_ids: tokens, ..named.clone() }),
        (0, pb::RecordPlacementRequest { token_ids_le: bytes.into(), ..named }),
        (0, pb::RecordPlacementRequest { local_hashes: by_hash.clone(), ..base }),
    ] {
        let recorded = client.record_placement(request).await.expect("valid").into_inner();
        assert_eq!(recorded, pb::RecordPlacementResponse { prompt_blocks: 3, new_blocks });
    }
    let request = pb::FindMatchesRequest { local_hashes: by_hash, ..query(&[]) };
    let answer = client.find_matches(request).await.expect("a valid query").into_inner();
    let only = pb::WorkerMatch {
        worker_id: "w".to_owned(),
        speculative_blocks: 3,
        blocks_by_tier: Some(pb::BlocksByTier::default()),
        blocks_by_best_tier: Some(pb::BlocksByTier::default()),
        state: pb::WorkerState::Cold.into(),
        ..Default::default()
    };
    assert_eq!((answer.best_overlap_blocks, answer.matches), (0, vec![only]));
    assert_eq!(found(&mut client, query(&[1])).await, (vec![], 0));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn what_is_speculative_is_in_no_dump_and_in_no_size() {
    let (server, mut client) = Server::with_worker(&[]).await;
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![stored(None, &[1])]).await;
    let before = stats(&mut client).await;
    place(&mut client, placement("w", &[1, 2, 3])).await;
    place(&mut client, placement("w", &[1, 2, 4])).await;
    let after = stats(&mut client).await;
    let sizes = |stats: &pb::GetStatsResponse| {
        let at = &stats.partitions[0];
        (at.blocks, at.pairs, at.parked, at.index_bytes)
    };
    assert_eq!(sizes(&before), sizes(&after));
    let (blocks, bytes) = speculative(&mut client).await;
    assert_eq!(blocks, 4);
    assert!(bytes > 0);
    let count = |outcome| counter(&after, "speculative_block", outcome);
    assert_eq!((count("recorded"), count("refreshed"), count("expired")), (4, 2, 0));
    let dump = pb::DumpWorkerRequest {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        ..Default::default()
    };
    let parts = client.dump_worker(dump).await.expect("a worker").into_inner();
    let parts: Vec<_> = within(parts.collect()).await;
    let chunks = parts.into_iter().filter_map(|part| match part.expect("a whole dump").part {
        Some(pb::dump_worker_response::Part::Chunk(chunk)) => Some(chunk.records),
        _ => None,
    });
    let names: Vec<_> = chunks.flatten().map(|record| record.name).collect();
    assert_eq!(names, [1]);
    let workers = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    assert_eq!(workers.into_inner().workers[0].ranks[0].placed_blocks, 1);
    let metrics = server.http("/metrics").await.1;
    for line in [
        "kvasir_speculative_blocks{model=\"m\",tenant=\"\"} 4\n",
        "kvasir_speculative_operations_total{outcome=\"recorded\"} 4\n",
        "kvasir_speculative_operations_total{outcome=\"pruned\"} 0\n",
        "# UNIT kvasir_speculative_memory_bytes bytes\n",
        "kvasir_index_blocks{model=\"m\",tenant=\"\"} 1\n",
    ] {
        assert!(metrics.contains(line), "no {line:?} in\n{metrics}");
    }
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn placements_end_with_their_time_and_leave_nothing() {
    let (server, mut client) = Server::with_worker(&[]).await;
    place(&mut client, placement("w", &[1])).await;
    place(&mut client, pb::RecordPlacementRequest { ttl_ms: Some(1), ..placement("w", &[1, 2]) })
        .await;
    within(async {
        while found(&mut client, query(&[1, 2])).await.0 != rows(&[("w", 0, 0, 1)]) {}
        while speculative(&mut client).await.0 != 1 {}
    })
    .await;
    assert_eq!(counter(&stats(&mut client).await, "speculative_block", "expired"), 1);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_removed_worker_takes_its_placements_along() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("v")).await.expect("a second worker");
    let names: Vec<_> = (1..=5_000).collect();
    place(&mut client, placement("w", &names)).await;
    place(&mut client, pb::RecordPlacementRequest { dp_rank: 1, ..placement("w", &[1, 2]) }).await;
    place(&mut client, placement("v", &[1])).await;
    let remove = |worker: &str| pb::RemoveWorkerRequest {
        worker_id: worker.to_owned(),
        model: "m".to_owned(),
        ..Default::default()
    };
    let removed = client.remove_worker(remove("w")).await.expect("a worker").into_inner();
    assert_eq!(removed.removed_blocks, 0, "nothing was confirmed");
    assert_eq!(speculative(&mut client).await.0, 1);
    assert_eq!(counter(&stats(&mut client).await, "speculative_block", "removed"), 5_002);
    let gone = client.record_placement(placement("w", &[1])).await;
    assert_eq!(gone.expect_err("removed").code(), Code::NotFound);
    client.register_worker(registration("w")).await.expect("another of the same name");
    assert_eq!(found(&mut client, query(&names)).await.0, rows(&[("v", 0, 0, 1)]));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn beyond_the_bound_the_oldest_placements_go() {
    let flags = ["--speculative-blocks=max=65536,keep-ratio=0.5"];
    let (server, mut client) = Server::with_worker(&flags).await;
    let names = |from: u64| (from..from + 40_000).collect::<Vec<_>>();
    place(&mut client, placement("w", &names(1))).await;
    place(&mut client, placement("w", &names(100_001))).await;
    assert_eq!(speculative(&mut client).await.0, 65_536 - 40_000 + 40_000);
    let (first, _) = found(&mut client, query(&names(1))).await;
    assert_eq!(first, rows(&[("w", 0, 0, 65_536 - 40_000)]));
    let (second, _) = found(&mut client, query(&names(100_001))).await;
    assert_eq!(second, rows(&[("w", 0, 0, 40_000)]));
    let pruned = counter(&stats(&mut client).await, "speculative_block", "pruned");
    assert_eq!(pruned, 40_000 - (65_536 - 40_000));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn what_cannot_be_recorded_is_refused() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let base = || placement("w", &[1]);
    let unknown = "worker_id \"x\" is not registered for model \"m\", tenant \"\": call \
                   RegisterWorker first";
    assert_refused(client.record_placement(placement("x", &[1])).await, Code::NotFound, unknown);
    let other = pb::RecordPlacementRequest { model: "other".to_owned(), ..base() };
    assert_eq!(client.record_placement(other).await.expect_err("").code(), Code::NotFound);
    assert_refused(
        client
            .record_placement(pb::RecordPlacementRequest { block_size: Some(16), ..base() })
            .await,
        Code::FailedPrecondition,
        "block_size is 16, but the workers of model \"m\", tenant \"\" have 4: all workers of a \
         partition must agree",
    );
    assert_refused(
        client.record_placement(pb::RecordPlacementRequest { dp_rank: 1_024, ..base() }).await,
        Code::InvalidArgument,
        "dp_rank is 1024, must be 0 to 1023",
    );
    let long = pb::RecordPlacementRequest {
        token_ids_le: vec![0; 4 * 4 * 65_537].into(),
        ..placement("w", &[])
    };
    assert_refused(
        client.record_placement(long).await,
        Code::InvalidArgument,
        "the tokens fill 65537 blocks, the limit is 65536: send fewer",
    );
    assert_eq!(speculative(&mut client).await, (0, 0));
    server.stop().await.expect("a clean stop");
}
