use crate::harness::{
    BLOCK_SIZE, Publisher, Server, assert_refused, counter, hello, query, removed, scores, stored,
};
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_proto::pb::publish_events_request::Message;
use kvasir_proto::pb::{self, RefusalReason, publish_events_response, published_event};
use tonic::Code;
use tonic::transport::Channel;

async fn find(client: &mut IndexerClient<Channel>, names: &[u64]) -> Vec<(u32, i32)> {
    let answer = client.find_matches(query(names)).await.expect("a valid query").into_inner();
    answer.matches.iter().map(|at| (at.matched_blocks, at.state)).collect()
}

const EXACT: i32 = pb::WorkerState::Exact as i32;
const GAP: i32 = pb::WorkerState::Gap as i32;
const PARTIAL: i32 = pb::WorkerState::Partial as i32;

#[tokio::test]
async fn batches_are_acked_with_what_became_of_them() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    assert_eq!(publisher.accepted, Some(pb::PublishAccepted { applied: None }));
    let ack = |sequence, duplicate, applied, noop| pb::PublishAck {
        sequence,
        duplicate,
        applied,
        noop,
        rejected: 0,
    };
    let chain = || vec![stored(None, &[1, 2, 3])];
    assert_eq!(publisher.acked(70, chain()).await, ack(70, false, 3, 0), "starts anywhere");
    assert_eq!(publisher.acked(71, chain()).await, ack(71, false, 0, 3), "held already");
    assert_eq!(publisher.acked(71, vec![removed(&[1])]).await, ack(71, true, 0, 0));
    // The stream did not announce 70 as its first batch. Batch 3 never arrived, so it is not a duplicate.
    let refusal = publisher.refused(3, vec![removed(&[1])]).await;
    assert_eq!((refusal.reason(), refusal.expected_sequence), (RefusalReason::Gap, 72));
    assert_eq!(find(&mut client, &[1, 2, 3]).await, [(3, EXACT)]);
    assert_eq!(publisher.acked(72, vec![removed(&[3, 9])]).await, ack(72, false, 1, 1));
    assert_eq!(find(&mut client, &[1, 2, 3]).await, [(2, EXACT)]);
    let cleared = published_event::Event::Cleared(pb::BlocksCleared::default());
    assert_eq!(publisher.acked(73, vec![cleared]).await, ack(73, false, 1, 0));
    assert_eq!(find(&mut client, &[1, 2, 3]).await, []);

    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    let count = |unit, outcome| counter(&stats, unit, outcome);
    assert_eq!(count("batch", "received"), 5, "without the refused one");
    assert_eq!((count("batch", "applied"), count("batch", "duplicate")), (4, 1));
    assert_eq!(count("block", "received"), 9);
    assert_eq!((count("block", "applied"), count("block", "noop")), (5, 4));
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_gap_is_refused_until_the_missing_batches_come() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(5, vec![stored(None, &[1])]).await;
    let refusal = publisher.refused(8, vec![stored(Some(3), &[4])]).await;
    assert_eq!((refusal.sequence, refusal.reason()), (8, RefusalReason::Gap));
    assert_eq!(refusal.expected_sequence, 6);
    assert_eq!(refusal.message, "batches before this one are missing: send 6 next");
    assert_eq!(find(&mut client, &[1, 2, 3, 4]).await, [(1, GAP)]);
    publisher.acked(6, vec![stored(Some(1), &[2])]).await;
    publisher.acked(7, vec![stored(Some(2), &[3])]).await;
    assert_eq!(find(&mut client, &[1, 2, 3, 4]).await, [(3, GAP)]);
    publisher.acked(8, vec![stored(Some(3), &[4])]).await;
    assert_eq!(find(&mut client, &[1, 2, 3, 4]).await, [(4, EXACT)]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_stream_of_the_same_life_goes_on_and_a_new_incarnation_begins_afresh() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut first = server.publisher(hello("w", "s", 1)).await;
    first.acked(1, vec![stored(None, &[1, 2])]).await;
    drop(first);
    let mut second = server.publisher(hello("w", "s", 1)).await;
    let applied = Some(pb::Cursor { incarnation: vec![1; 16].into(), sequence: 1 });
    assert_eq!(second.accepted, Some(pb::PublishAccepted { applied }));
    assert!(second.acked(1, vec![stored(None, &[1, 2])]).await.duplicate);
    let third = server.publisher(hello("w", "s", 2)).await;
    assert_eq!(third.accepted, Some(pb::PublishAccepted { applied: None }));
    assert_eq!(find(&mut client, &[1, 2]).await, [], "what the old life stored is gone");
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_second_stream_takes_over_and_the_first_is_fenced() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut first = server.publisher(hello("w", "s", 1)).await;
    first.acked(1, vec![stored(None, &[1])]).await;
    let mut second = server.publisher(hello("w", "s", 1)).await;
    match first.answer().await.expect("an open stream") {
        Some(publish_events_response::Message::Refusal(refusal)) => {
            assert_eq!(refusal.reason(), RefusalReason::Fenced);
        }
        other => panic!("not fenced: {other:?}"),
    }
    assert_eq!(first.answer().await.expect("a clean end"), None);
    second.acked(2, vec![stored(Some(1), &[2])]).await;
    assert_eq!(find(&mut client, &[1, 2]).await, [(2, EXACT)]);

    let other = server.publisher(hello("w", "other", 1)).await;
    assert_eq!(other.accepted, Some(pb::PublishAccepted { applied: None }), "a source of its own");
    second.acked(3, vec![stored(Some(2), &[3])]).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn removing_the_worker_fences_its_publishers() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1, 2, 3])]).await;
    let request = pb::RemoveWorkerRequest {
        worker_id: "w".to_owned(),
        model: "m".to_owned(),
        ..Default::default()
    };
    let response = client.remove_worker(request).await.expect("a known worker").into_inner();
    assert_eq!(response.removed_blocks, 3);
    match publisher.answer().await.expect("an open stream") {
        Some(publish_events_response::Message::Refusal(refusal)) => {
            assert_eq!(refusal.reason(), RefusalReason::Fenced);
        }
        other => panic!("not fenced: {other:?}"),
    }
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_malformed_batch_is_refused_and_the_stream_goes_on() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1])]).await;
    let refusal = publisher.refused(2, vec![removed(&[]), removed(&[1])]).await;
    assert_eq!(refusal.reason(), RefusalReason::Invalid);
    assert_eq!((refusal.sequence, refusal.expected_sequence), (2, 2));
    assert_eq!(refusal.message, "events[0].removed.names is required");
    publisher.acked(2, vec![stored(Some(1), &[2])]).await;
    assert_eq!(find(&mut client, &[1, 2]).await, [(2, EXACT)]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_hello_is_refused_where_it_does_not_fit() {
    let (server, _client) = Server::with_worker(&[]).await;
    let channel = server.channel().await;
    let check = async |message, code, expected: &str| {
        let mut publisher = Publisher::raw(channel.clone()).await;
        publisher.send(message).await;
        assert_refused(publisher.answer().await, code, expected);
    };
    check(
        Message::Hello(hello("x", "s", 1)),
        Code::NotFound,
        "worker_id \"x\" is not registered for model \"m\", tenant \"\": call RegisterWorker first",
    )
    .await;
    check(
        Message::Hello(pb::PublishHello { block_size: 16, ..hello("w", "s", 1) }),
        Code::FailedPrecondition,
        "block_size is 16, but the workers of model \"m\", tenant \"\" have 4: all workers of a \
         partition must agree",
    )
    .await;
    check(
        Message::Hello(pb::PublishHello { source: String::new(), ..hello("w", "s", 1) }),
        Code::InvalidArgument,
        "hello.source is required",
    )
    .await;
    check(
        Message::Batch(pb::PublishBatch::default()),
        Code::InvalidArgument,
        "hello is required before the first batch",
    )
    .await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.send(Message::Hello(hello("w", "s", 1))).await;
    let twice = "hello must not be set twice: open a new stream";
    assert_refused(publisher.answer().await, Code::InvalidArgument, twice);
    let counted =
        pb::PublishHello { copy_mode: pb::CopyMode::Counted.into(), ..hello("w", "s", 1) };
    let copy_mode = "copy_mode of source \"s\" cannot change within one incarnation: use the same one, or \
                     begin a new incarnation";
    check(Message::Hello(counted), Code::FailedPrecondition, copy_mode).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn ranks_come_with_their_batches() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    for (sequence, dp_rank) in [(1, 3), (2, 1)] {
        let events = vec![pb::PublishedEvent { event: Some(stored(None, &[1])) }];
        let batch = pb::PublishBatch { sequence, dp_rank, events };
        publisher.send(Message::Batch(batch)).await;
        publisher.answer().await.expect("an ack");
    }
    let answer = client.find_matches(query(&[1])).await.expect("a valid query").into_inner();
    assert_eq!(scores(&answer), [("w", 1, 1), ("w", 3, 1)]);
    assert_eq!(BLOCK_SIZE, answer.block_size);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn an_absurd_number_says_nothing_about_the_publisher() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(None, &[1])]).await;
    publisher.refused(u64::MAX, vec![stored(None, &[9])]).await;
    publisher.acked(1, vec![stored(Some(1), &[2])]).await;
    assert_eq!(find(&mut client, &[1, 2]).await, [(2, EXACT)]);
    // A batch that a stream announced and never sent does not bind the next stream.
    publisher.refused(7, vec![stored(None, &[9])]).await;
    drop(publisher);
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(2, vec![stored(Some(2), &[3])]).await;
    assert_eq!(find(&mut client, &[1, 2, 3]).await, [(3, EXACT)]);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn what_the_index_refuses_makes_the_worker_partial_until_a_clear() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(None, &[1])]).await;
    // Two names above the limit of parked names, in orphaned chains.
    let mut sequence = 1;
    let names: Vec<u64> = (100..100 + 65_538).collect();
    for chain in names.chunks(8_192) {
        publisher.acked(sequence, vec![stored(Some(u64::MAX), chain)]).await;
        sequence += 1;
    }
    assert_eq!(find(&mut client, &[1]).await, [(1, PARTIAL)]);
    let cleared = published_event::Event::Cleared(pb::BlocksCleared::default());
    publisher.acked(sequence, vec![cleared]).await;
    publisher.acked(sequence + 1, vec![stored(None, &[1])]).await;
    assert_eq!(find(&mut client, &[1]).await, [(1, EXACT)]);
    server.stop().await.expect("a clean stop");
}

/// Publishers do not detect contradictions, so the index must remember them.
#[tokio::test]
async fn a_contradiction_outlives_the_index_and_ends_with_a_clear() {
    let folder = tempfile::tempdir().expect("a folder");
    let checkpoints = format!("--checkpoint-dir={}", folder.path().display());
    let (server, mut client) = Server::with_worker(&[&checkpoints]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(0, vec![stored(None, &[1, 2, 3])]).await;
    assert_eq!(may_be_high(&mut client).await, [(3, EXACT, false)]);
    publisher.acked(1, vec![stored(Some(1), &[3])]).await;
    let doubted = [(3, PARTIAL, true)];
    assert_eq!(may_be_high(&mut client).await, doubted);
    drop(publisher);
    server.stop().await.expect("a clean stop");
    let server = Server::start(&[&checkpoints]).await;
    let mut client = server.indexer().await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(2, vec![stored(None, &[1])]).await;
    assert_eq!(may_be_high(&mut client).await, doubted, "another process");
    let cleared = published_event::Event::Cleared(pb::BlocksCleared::default());
    publisher.acked(3, vec![cleared]).await;
    publisher.acked(4, vec![stored(None, &[1, 2, 3])]).await;
    assert_eq!(may_be_high(&mut client).await, [(3, EXACT, false)]);
    // The contradiction lasts as long as the name is cached, and does not return with the name.
    publisher.acked(5, vec![stored(Some(1), &[3])]).await;
    assert_eq!(may_be_high(&mut client).await, doubted);
    publisher.acked(6, vec![removed(&[3])]).await;
    assert_eq!(may_be_high(&mut client).await, [(2, EXACT, false)]);
    publisher.acked(7, vec![stored(Some(2), &[3])]).await;
    assert_eq!(may_be_high(&mut client).await, [(3, EXACT, false)]);
    server.stop().await.expect("a clean stop");
}

/// Matched blocks of the chain 1, 2, 3, the state, and whether the count may be too high.
async fn may_be_high(client: &mut IndexerClient<Channel>) -> Vec<(u32, i32, bool)> {
    let answer = client.find_matches(query(&[1, 2, 3])).await.expect("a valid query").into_inner();
    answer.matches.iter().map(|at| (at.matched_blocks, at.state, at.may_be_high)).collect()
}
