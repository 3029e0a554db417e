use crate::harness::{
    Publisher, Server, assert_refused, begin_request, hello, query, registration, within,
};
use kvasir_proto::{
    limits::{GRPC_MESSAGE_BYTES_MAX, WORKER_SOURCES_MAX},
    pb::{self, indexer_client::IndexerClient, publish_events_request::Message},
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tonic::Code;

#[tokio::test]
async fn a_message_may_be_8_mib_and_no_more() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let padded =
        |bytes| pb::FindMatchesRequest { token_ids_le: vec![0; bytes].into(), ..query(&[]) };
    let status = client.find_matches(padded(GRPC_MESSAGE_BYTES_MAX - 64)).await;
    assert_eq!(status.expect_err("too many tokens").code(), Code::InvalidArgument);
    let status = client.find_matches(padded(GRPC_MESSAGE_BYTES_MAX)).await;
    assert_eq!(status.expect_err("too many bytes").code(), Code::OutOfRange);
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once() {
    let server = Server::start(&["--max-connections=1"]).await;
    let _first = server.channel().await;
    let mut second = TcpStream::connect(server.addresses.grpc).await.expect("a backlog");
    let mut byte = [0];
    let read = within(second.read(&mut byte)).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    let (_, metrics) = server.http("/metrics").await;
    assert!(metrics.contains("kvasir_grpc_connections_refused_total 1\n"), "{metrics}");
    assert!(metrics.contains("kvasir_grpc_connections 1\n"), "{metrics}");
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn requests_beyond_the_limit_are_refused_even_while_bodies_are_on_their_way() {
    let (server, mut client) = Server::with_worker(&["--max-in-flight=1"]).await;
    let pending = begin_request(&server).await;
    within(async {
        while !server.http("/metrics").await.1.contains("kvasir_grpc_find_matches_in_flight 1\n") {}
    })
    .await;
    assert_refused(
        client.find_matches(query(&[1])).await,
        Code::ResourceExhausted,
        "1 requests are under way, the limit: retry later",
    );
    client.get_stats(pb::GetStatsRequest {}).await.expect("other calls are not limited");
    drop(pending);
    within(async { while client.find_matches(query(&[1])).await.is_err() {} }).await;
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn a_worker_has_so_many_sources_and_no_more() {
    let (server, _client) = Server::with_worker(&[]).await;
    let channel = server.channel().await;
    let mut open = Vec::new();
    for source in 0..WORKER_SOURCES_MAX {
        open.push(Publisher::open(channel.clone(), hello("w", &source.to_string(), 1)).await);
    }
    let mut more = Publisher::raw(server.channel().await).await;
    more.send(Message::Hello(hello("w", "more", 1))).await;
    assert_refused(
        more.answer().await,
        Code::ResourceExhausted,
        "worker w has 128 sources, the limit",
    );
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn many_connections_and_requests_at_once_are_all_answered() {
    let (server, mut client) = Server::with_worker(&[]).await;
    client.register_worker(registration("v")).await.expect("a second worker");
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let client = IndexerClient::new(server.channel().await);
        for _ in 0..100 {
            let mut client = client.clone();
            tasks.spawn(async move { client.find_matches(query(&[1, 2])).await.map(drop) });
        }
    }
    let outcomes = within(tasks.join_all()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let stats = client.get_stats(pb::GetStatsRequest {}).await.expect("stats").into_inner();
    assert_eq!((stats.queries, stats.query_blocks, stats.hit_blocks), (400, 800, 0));
    server.stop().await.expect("a clean stop");
}
