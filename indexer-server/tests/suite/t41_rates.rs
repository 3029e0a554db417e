//! Limits on time: rate of requests, duration of calls, age of connections.

use crate::harness::{Publisher, Server, hello, query, registration, stored, within};
use futures::stream;
use indexer_server::config::Config;
use kvasir_access::Rate;
use kvasir_proto::pb;
use kvasir_proto::pb::find_matches_stream_response::Outcome;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;

/// 2 queries per second, and 5 at once.
fn limit_rate(config: &mut Config) {
    let rate = Rate::new(2, Some(5)).expect("a rate");
    let guard = &mut config.grpc.guard;
    guard.access = guard.access.clone().with_tenant_rate(Some(rate));
}

/// Each connection is replaced after a second.
fn age_connections(config: &mut Config) {
    config.grpc.guard.connection_age = Some(Duration::from_secs(1));
    config.http.guard.connection_age = Some(Duration::from_secs(1));
}

fn query_of(tenant: &str) -> pb::FindMatchesRequest {
    pb::FindMatchesRequest { tenant: tenant.to_owned(), ..query(&[1]) }
}

async fn with_two_tenants() -> Server {
    let server = Server::start_changed(&[], limit_rate).await;
    let mut client = server.indexer().await;
    for tenant in ["a", "b"] {
        let worker = pb::RegisterWorkerRequest { tenant: tenant.to_owned(), ..registration("w") };
        client.register_worker(worker).await.expect("a worker");
    }
    server
}

fn codes<T>(answers: &[Result<T, Status>]) -> Vec<Code> {
    answers.iter().map(|answer| answer.as_ref().map_or_else(Status::code, |_| Code::Ok)).collect()
}

#[tokio::test]
async fn a_tenant_at_its_rate_is_told_when_to_come_back_and_slows_no_other() {
    let server = with_two_tenants().await;
    let mut client = server.indexer().await;
    let mut answers = Vec::new();
    for _ in 0..50 {
        answers.push(client.find_matches(query_of("a")).await);
    }
    let codes = codes(&answers);
    assert_eq!(codes[..5], [Code::Ok; 5]);
    // Half a second later there would be another token.
    let refused = codes.iter().filter(|code| **code == Code::ResourceExhausted).count();
    assert!(refused >= 40, "{codes:?}");
    let status = answers.swap_remove(5).expect_err("the sixth");
    let wait = status.get_details_retry_info().and_then(|info| info.retry_delay);
    assert!(wait.is_some_and(|wait| wait <= Duration::from_millis(500)), "{status:?}");
    assert!(status.message().starts_with("tenant \"a\" has used its rate"), "{status:?}");
    for _ in 0..5 {
        client.find_matches(query_of("b")).await.expect("it has its own");
    }
    let (_, metrics) = server.http("/metrics").await;
    let name = "kvasir_grpc_limited_total{reason=\"queries_of_tenant\"} ";
    let line = metrics.lines().find(|line| line.starts_with(name)).expect("a counter");
    assert_eq!(line.trim_start_matches(name), refused.to_string());
    server.stop().await.expect("a clean stop");
}

#[tokio::test]
async fn each_request_of_a_stream_and_each_dump_is_one_query() {
    let server = with_two_tenants().await;
    let mut client = server.indexer().await;
    let asked = stream::iter((0..20).map(|_| query_of("a")));
    let answers = client.find_matches_stream(asked).await.expect("a stream");
    let mut answers = answers.into_inner();
    let mut outcomes = Vec::new();
    while let Some(answer) = within(answers.message()).await.expect("the stream goes on") {
        outcomes.push(match answer.outcome.expect("an outcome") {
            Outcome::Matches(_) => Code::Ok,
            Outcome::Error(error) => Code::from(error.code),
        });
    }
    assert_eq!(outcomes[..5], [Code::Ok; 5]);
    let refused = outcomes.iter().filter(|code| **code == Code::ResourceExhausted).count();
    assert!(outcomes.len() == 20 && refused >= 12, "{outcomes:?}");
    let dump = |tenant: &str| pb::DumpWorkerRequest {
        tenant: tenant.to_owned(),
        model: "m".to_owned(),
        worker_id: "w".to_owned(),
        ..Default::default()
    };
    let mut dumps = Vec::new();
    for _ in 0..20 {
        dumps.push(client.dump_worker(dump("b")).await);
    }
    let codes = codes(&dumps);
    assert_eq!(codes[..5], [Code::Ok; 5]);
    assert!(codes.contains(&Code::ResourceExhausted), "{codes:?}");
    server.stop().await.expect("a clean stop");
}

/// A request with a deadline that only the server enforces: the client's library waits for the head alone.
fn within_300_ms<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("grpc-timeout", "300m".parse().expect("a value"));
    request
}

#[tokio::test]
async fn streams_end_by_the_deadline_of_their_client() {
    let (server, mut client) = Server::with_worker(&[]).await;
    let begin = Instant::now();
    let requests = stream::StreamExt::chain(stream::iter([query(&[1])]), stream::pending());
    let answers = client.find_matches_stream(within_300_ms(requests)).await.expect("a stream");
    let mut answers = answers.into_inner();
    assert!(answers.message().await.expect("an answer").is_some());
    let ended = within(answers.message()).await.expect_err("no time is left");
    assert_eq!(ended.code(), Code::DeadlineExceeded, "{ended:?}");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let (_, metrics) = server.http("/metrics").await;
    let line = "kvasir_grpc_limited_total{reason=\"deadline\"} 1\n";
    assert!(metrics.contains(line), "no {line} in {metrics}");
    server.stop().await.expect("a clean stop");
}

/// A publisher that resumes its stream over new connections.
#[tokio::test]
async fn publishers_of_old_connections_end_in_order_and_lose_no_batch() {
    let server = Server::start_changed(&[], age_connections).await;
    let mut client = server.with_client().await;
    let mut streams = 0;
    let mut sequence = 0;
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let mut publisher = Publisher::open(server.channel().await, hello("w", "s", 1)).await;
        let applied = publisher.accepted.take().and_then(|accepted| accepted.applied);
        assert_eq!(applied.map(|applied| applied.sequence + 1).unwrap_or_default(), sequence);
        streams += 1;
        for _ in 0..3 {
            publisher.acked(sequence, vec![stored(None, &[sequence + 1])]).await;
            sequence += 1;
        }
        let end = publisher.answer().await;
        assert!(matches!(end, Ok(None)), "{end:?}");
    }
    assert!(streams >= 2, "{streams}");
    // The first client's connection is old by now. A call that is refused for this reason is retried here.
    let listed = loop {
        match client.list_workers(pb::ListWorkersRequest::default()).await {
            Ok(listed) => break listed.into_inner(),
            Err(status) => assert_eq!(status.code(), Code::Cancelled, "{status:?}"),
        }
        sleep(Duration::from_millis(10)).await;
    };
    assert_eq!(listed.workers.len(), 1);
    let (_, metrics) = server.http("/metrics").await;
    assert!(!metrics.contains("connections_cut_off_total{reason=\"aged\"}"), "{metrics}");
    server.stop().await.expect("a clean stop");
}

/// A connection of the side port is kept alive until its maximum age, and closed between two requests.
#[tokio::test]
async fn http_connections_get_old_too() {
    const LIVE: &[u8] = b"GET /livez HTTP/1.1\r\nHost: test\r\n\r\n";
    let server = Server::start_changed(&[], age_connections).await;
    let begin = Instant::now();
    let mut stream = TcpStream::connect(server.addresses.http).await.expect("a connection");
    let mut answered = 0;
    let mut answer = [0; 1_024];
    loop {
        // After the last answer, the server accepts no further request.
        let asked = stream.write_all(LIVE).await;
        match within(stream.read(&mut answer)).await {
            Ok(0) | Err(_) => break,
            Ok(bytes) => {
                asked.expect("what is answered was asked");
                let answer = String::from_utf8_lossy(&answer[..bytes]);
                assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
                assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
                answered += 1;
            }
        }
    }
    let lived = begin.elapsed();
    assert!(answered > 1 && lived >= Duration::from_millis(850), "{answered} in {lived:?}");
    let (status, _) = server.http("/livez").await;
    assert_eq!(status, 200);
    server.stop().await.expect("a clean stop");
}
