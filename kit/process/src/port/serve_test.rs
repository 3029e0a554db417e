#![expect(clippy::disallowed_methods, reason = "the test joins it")]

use super::*;
use crate::port::StreamKind;
use kvasir_tls::Dialer;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const STREAMS: Streams = &[("/kvasir.v1.Test/Watch", StreamKind::Watch)];

/// A port that serves only health, with connections of this maximum age.
fn port(age: Duration) -> Port {
    Port {
        config: PortConfig {
            max_in_flight: 64,
            max_connections: 64,
            message_bytes_max: 1 << 20,
            connection_calls_max: 128,
            connection_asking_streams_max: 8,
        },
        streams: STREAMS,
        roles: &[],
        metrics: PortMetrics::default(),
        descriptors: tonic_health::pb::FILE_DESCRIPTOR_SET,
        guard: Guard { connection_age: Some(age), ..Guard::default() },
    }
}

fn metric(metrics: &PortMetrics, name: &str) -> Option<u64> {
    let mut registry = Registry::default();
    let mut text = String::new();
    metrics.register(&mut registry);
    encode(&mut text, &registry).expect("a text");
    let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.parse().ok()
}

/// All calls succeed while their connection is replaced again and again.
#[tokio::test]
async fn no_call_is_lost_when_connections_are_old() {
    let port = port(Duration::from_millis(50));
    let metrics = port.metrics.clone();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let stop = CancellationToken::new();
    let serving = tokio::spawn(port.serve(listener, Services::default(), stop.clone()));
    let channel = Dialer::default().lazy(&address.to_string()).expect("a target");
    let until = Instant::now() + Duration::from_secs(2);
    let ask = async |mut client: HealthClient<kvasir_tls::Channel>| {
        let mut answered = 0_u32;
        while Instant::now() < until {
            let checked = client.check(HealthCheckRequest::default()).await;
            assert!(checked.is_ok(), "call {answered}: {checked:?}");
            answered += 1;
        }
        answered
    };
    let clients = (0..4).map(|_| ask(HealthClient::new(channel.clone())));
    let answered = futures::future::join_all(clients).await;
    assert!(answered.iter().all(|answered| *answered > 100), "{answered:?}");
    let aged = metric(&metrics, "grpc_connections_aged_total");
    assert!(aged.is_some_and(|aged| aged >= 10), "{aged:?}");
    stop.cancel();
    serving.await.expect("a task").expect("a port");
}
