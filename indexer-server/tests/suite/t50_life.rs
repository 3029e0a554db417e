use crate::harness::{
    Publisher, Server, assert_refused, begin_request, hello, http_get, query, stored, within,
};
use kvasir_proto::pb;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::{v1, v1alpha};

#[tokio::test]
async fn the_side_port_shows_liveness_readiness_and_metrics() {
    let (server, mut client) = Server::with_worker(&[]).await;
    server.publisher(hello("w", "s", 1)).await.acked(1, vec![stored(None, &[1, 2])]).await;
    client.find_matches(query(&[1, 2, 3, 4])).await.expect("a valid query");
    assert_eq!(server.http("/livez").await, (200, "ok\n".to_owned()));
    assert_eq!(server.http("/readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(server.http("/nothing").await.0, 404);
    let (status, metrics) = server.http("/metrics").await;
    assert_eq!(status, 200);
    for line in [
        "kvasir_block_operations_total{outcome=\"applied\",reason=\"\"} 2\n",
        "kvasir_block_operations_total{outcome=\"received\",reason=\"\"} 2\n",
        "kvasir_batches_total{outcome=\"applied\"} 1\n",
        "kvasir_batches_total{outcome=\"lost\"} 0\n",
        "kvasir_queries_total 1\n",
        "kvasir_query_blocks_total 4\n",
        "kvasir_hit_blocks_total 2\n",
        "kvasir_lookup_seconds_count 1\n",
        "kvasir_matched_length_blocks_sum 2.0\n",
        "kvasir_index_blocks{model=\"m\",tenant=\"\"} 2\n",
        "kvasir_index_holders{model=\"m\",tenant=\"\"} 1\n",
        "kvasir_worker_lag_batches{model=\"m\",tenant=\"\",worker=\"w\",rank=\"0\"} 0\n",
        "# UNIT kvasir_index_memory_bytes bytes\n",
        "kvasir_workers 1\n",
        "kvasir_build_info{version=\"",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes ",
        "# EOF\n",
    ] {
        assert!(metrics.contains(line), "no {line:?} in\n{metrics}");
    }
    let named = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    for name in named.filter_map(|line| line.split(' ').next()) {
        assert!(metrics.contains(&format!("# HELP {name} ")), "{name} has no help");
        assert!(name.starts_with("kvasir_") || name.starts_with("process_"), "{name}");
    }
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn health_and_both_versions_of_reflection_answer() {
    let server = Server::start(&[]).await;
    let channel = server.channel().await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "kvasir.v1.Indexer", "kvasir.v1.EventIngest"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let answer = health.check(request).await.expect("a known service").into_inner();
        assert_eq!(answer.status, 1, "{service} serves");
    }
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await;
    let mut answers = answers.expect("an open stream").into_inner();
    let answer = within(answers.next()).await.expect("an answer").expect("a list");
    let text = format!("{answer:?}");
    for service in ["kvasir.v1.Indexer", "kvasir.v1.EventIngest", "grpc.health.v1.Health"] {
        assert!(text.contains(service), "{text}");
    }
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let symbol = "kvasir.v1.Indexer.FindMatches".to_owned();
    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol),
        ),
    };
    let answers = client.server_reflection_info(tokio_stream::once(request)).await;
    let mut answers = answers.expect("an open stream").into_inner();
    let answer = within(answers.next()).await.expect("an answer").expect("a file");
    assert!(format!("{answer:?}").contains("FileDescriptorResponse"), "{answer:?}");
    server.stop().await.expect("a clean stop");
}

/// Clients may watch the health of a server without a time limit, each with a few streams.
#[tokio::test]
async fn watchers_of_health_are_bounded_and_hold_up_no_stop() {
    let server = Server::start(&[]).await;
    let mut health = HealthClient::new(server.channel().await);
    let mut watched = Vec::new();
    for _ in 0..8 {
        let answers = health.watch(HealthCheckRequest::default()).await.expect("room");
        let mut answers = answers.into_inner();
        assert_eq!(within(answers.next()).await.expect("an answer").expect("a status").status, 1);
        watched.push(answers);
    }
    let more = health.watch(HealthCheckRequest::default()).await;
    let refusal =
        "8 calls of health and reflection of this connection are under way, the limit: retry later";
    assert_refused(more.map(drop), Code::ResourceExhausted, refusal);
    let began = Instant::now();
    server.stop().await.expect("a clean stop");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    for answers in watched {
        let ended = answers.filter_map(Result::err).collect::<Vec<_>>();
        let ended = within(ended).await;
        assert_eq!(ended.first().map(Status::code), Some(Code::Unavailable), "{ended:?}");
    }
}

#[tokio::test]
async fn a_stop_ends_open_streams_and_refuses_new_connections() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let mut publisher = server.publisher(hello("w", "s", 1)).await;
    publisher.acked(1, vec![stored(None, &[1])]).await;
    let (requests, queue) = mpsc::channel(1);
    let answers = client.find_matches_stream(ReceiverStream::new(queue)).await;
    let mut answers = answers.expect("an open stream").into_inner();
    requests.send(query(&[1])).await.expect("an open stream");
    within(answers.next()).await.expect("an answer").expect("matches");
    let names: Vec<u64> = (1..=20_000).collect();
    publisher.acked(2, vec![stored(None, &names)]).await;
    let dump = pb::DumpWorkerRequest {
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        chunk_records: Some(1),
        ..Default::default()
    };
    let mut parts = client.dump_worker(dump).await.expect("a worker").into_inner();
    within(parts.next()).await.expect("a part").expect("a chunk");
    let grpc = server.addresses.grpc;
    let http = server.addresses.http;

    let mut done = server.request_stop();
    let status = publisher.answer().await.expect_err("the server stops");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let status = within(answers.next()).await.expect("an end").expect_err("the server stops");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let rest: Vec<_> = within(parts.collect()).await;
    assert!(rest.last().is_some_and(Result::is_err), "the dump is not cut off");
    within(done.join_next()).await.expect("one task").expect("no panic").expect("a clean stop");
    assert!(TcpStream::connect(grpc).await.is_err());
    assert!(http_get(http, "/livez").await.is_none());
}

#[tokio::test]
async fn a_stop_is_bounded_even_if_a_request_never_ends() {
    let server = Server::start(&["--drain-timeout=1s"]).await;
    let _pending = begin_request(&server).await;
    within(async {
        while !server.http("/metrics").await.1.contains("kvasir_grpc_requests_in_flight 1\n") {}
    })
    .await;
    server.stop().await.expect("whoever does not go is cut off");
}

#[tokio::test]
async fn a_publisher_that_reads_nothing_does_not_hold_up_the_stop() {
    let (server, _client) = Server::with_worker(&[]).await;
    let publisher = Publisher::open(server.channel().await, hello("w", "s", 1)).await;
    let batch = pb::PublishBatch { sequence: 1, ..Default::default() };
    for _ in 0..16 {
        publisher.send(pb::publish_events_request::Message::Batch(batch.clone())).await;
    }
    server.stop().await.expect("a clean stop");
}
