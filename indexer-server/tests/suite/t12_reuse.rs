//! Reports of what engines reused: persistent differences cost a rank its EXACT.

use crate::harness::{BLOCK_SIZE, Server, assert_refused, hello, query, stored};
use kvasir_proto::pb;
use kvasir_proto::pb::indexer_client::IndexerClient;
use tonic::Code;
use tonic::transport::Channel;

/// A report of `count` requests for whose two blocks the engine had `cached` tokens.
fn report(worker: &str, count: usize, cached: u32) -> pb::ReportReuseRequest {
    let reused = pb::ReusedTokens {
        prompt_tokens: 3 * BLOCK_SIZE,
        expected_tokens: 2 * BLOCK_SIZE,
        cached_tokens: cached,
    };
    pb::ReportReuseRequest {
        model: "m".to_owned(),
        worker_id: worker.to_owned(),
        requests: vec![reused; count],
        ..Default::default()
    }
}

async fn differing(client: &mut IndexerClient<Channel>, request: pb::ReportReuseRequest) -> u32 {
    let answer = client.report_reuse(request).await.expect("a valid report");
    answer.into_inner().differing_requests
}

/// State of worker "w" in an answer, whether it may be high, and its reasons with their examples.
async fn trust(
    client: &mut IndexerClient<Channel>,
) -> (pb::WorkerState, bool, Vec<(pb::Reason, u64, String)>) {
    let request = pb::FindMatchesRequest { explain: true, ..query(&[1, 2]) };
    let answer = client.find_matches(request).await.expect("a valid query").into_inner();
    let [found] = answer.matches.as_slice() else { panic!("one worker: {answer:?}") };
    assert_eq!((found.matched_blocks, found.reusable_tokens), (2, u64::from(2 * BLOCK_SIZE)));
    let reasons = found.reasons.iter().map(|at| (at.reason(), at.count, at.example.clone()));
    (found.state(), found.may_be_high, reasons.collect())
}

#[tokio::test]
async fn an_engine_that_reuses_less_or_more_costs_a_rank_its_exactness_until_it_agrees() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(None, &[1, 2])]).await;
    let exact = (pb::WorkerState::Exact, false, vec![]);
    assert_eq!(differing(&mut client, report("w", 15, 0)).await, 15);
    assert_eq!(trust(&mut client).await, exact, "fifteen requests prove nothing");
    assert_eq!(differing(&mut client, report("w", 1, 0)).await, 1);
    let example = |cached: u32| {
        let [prompt, expected] = [3, 2].map(|blocks| blocks * BLOCK_SIZE);
        format!("prompt_tokens={prompt} expected_tokens={expected} cached_tokens={cached}")
    };
    let high = vec![(pb::Reason::ContradictedByEngine, 16, example(0))];
    assert_eq!(trust(&mut client).await, (pb::WorkerState::Partial, true, high.clone()));
    // ListWorkers has the reason, too.
    let listed = client.list_workers(pb::ListWorkersRequest::default()).await.expect("a list");
    let worker = listed.into_inner().workers.remove(0);
    let reasons: Vec<_> = worker.sources.iter().flat_map(|at| &at.reasons).collect();
    assert_eq!(reasons.len(), 1, "{worker:?}");
    assert_eq!(reasons[0].reason(), pb::Reason::ContradictedByEngine);
    // Equal numbers end it. A full hit of a connector also counts the block that the engine computes again.
    assert_eq!(differing(&mut client, report("w", 64, 2 * BLOCK_SIZE)).await, 0);
    assert_eq!(trust(&mut client).await, exact);
    assert_eq!(differing(&mut client, report("w", 64, 3 * BLOCK_SIZE)).await, 0);
    assert_eq!(trust(&mut client).await, exact);
    assert_eq!(differing(&mut client, report("w", 64, 2 * BLOCK_SIZE + 1)).await, 64);
    let low = vec![(pb::Reason::EngineReusesMore, 64, example(2 * BLOCK_SIZE + 1))];
    assert_eq!(trust(&mut client).await, (pb::WorkerState::Partial, false, low));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn reports_of_unknown_workers_and_wrong_numbers_are_refused() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let unknown = report("v", 1, 0);
    let text =
        "worker_id \"v\" is not registered for model \"m\", tenant \"\": call RegisterWorker first";
    assert_refused(client.report_reuse(unknown).await, Code::NotFound, text);
    let beyond = report("w", 1, 3 * BLOCK_SIZE + 1);
    let text = "requests[0].cached_tokens is 13, must be 0 to 12";
    assert_refused(client.report_reuse(beyond).await, Code::InvalidArgument, text);
    // A rank without events is never exact, so there is nothing to contradict.
    assert_eq!(differing(&mut client, report("w", 64, 0)).await, 64);
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(None, &[1, 2])]).await;
    assert_eq!(trust(&mut client).await, (pb::WorkerState::Exact, false, vec![]));
    server.stop().await.expect("a clean stop");
}
