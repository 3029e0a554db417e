#![expect(clippy::disallowed_methods, reason = "tasks end with their test")]

use super::*;
use crate::net::{CUT_GRACE, PeerLimits, STREAMS_GRACE};
use futures::future::pending;
use h2::client::{SendRequest, handshake};
use hyper_util::rt::TokioTimer;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::duplex;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::codegen::Bytes;
use tower::service_fn as answered_by;

const AGE: Duration = Duration::from_secs(1_000);
const EARLIEST: Duration = Duration::from_secs(900);
const LATEST: Duration = Duration::from_secs(1_100);

/// A connection with its client.
struct Opened {
    client: SendRequest<Bytes>,
    metrics: ConnectionMetrics,
    served: JoinHandle<()>,
}

async fn open(calls: impl Calls, age: Option<Duration>) -> Opened {
    let (near, far) = duplex(64 << 10);
    let mut http2 = http2::Builder::new(TokioExecutor::new());
    http2.timer(TokioTimer::new());
    let metrics = ConnectionMetrics::default();
    let serving = Serving { calls, http2, age, metrics: metrics.clone() };
    let peer = Arc::new(Peer::new(None, PeerLimits { streams: 1, ..PeerLimits::default() }));
    let served = tokio::spawn(serving.connection(far, peer, CancellationToken::new()));
    let (client, connection) = handshake(near).await.expect("a connection");
    tokio::spawn(async { drop(connection.await) });
    Opened { client, metrics, served }
}

/// A call that is answered when the streams of its connection should end.
async fn until_aged(request: Request<Body>) -> Result<Response<Body>, Infallible> {
    let peer = request.extensions().get::<Arc<Peer>>().map(Arc::clone);
    peer.expect("the client").aged.cancelled().await;
    Ok(Response::new(Body::empty()))
}

fn request() -> Request<()> {
    Request::builder().uri("http://test/call").body(()).expect("a request")
}

fn text(metrics: &ConnectionMetrics) -> String {
    let mut registry = Registry::default();
    let mut text = String::new();
    metrics.register(&mut registry, "test");
    encode(&mut text, &registry).expect("a text");
    text
}

#[tokio::test(start_paused = true)]
async fn an_old_connection_takes_no_further_calls_and_its_streams_end_in_order() {
    let Opened { mut client, metrics, served } = open(answered_by(until_aged), Some(AGE)).await;
    let opened = Instant::now();
    let (answer, _) = client.send_request(request(), true).expect("a call");
    sleep(EARLIEST - Duration::from_millis(1)).await;
    client = client.ready().await.expect("it is not old yet");
    assert!(text(&metrics).contains("test_connections_aged_total 0"));
    let answer = answer.await.expect("what was under way is answered");
    assert_eq!(answer.status(), 200);
    let ended = opened.elapsed();
    assert!(ended >= EARLIEST + STREAMS_GRACE && ended <= LATEST + STREAMS_GRACE, "{ended:?}");
    let refused = client.ready().await.expect_err("the client was told before");
    assert!(refused.is_go_away() && refused.reason() == Some(h2::Reason::NO_ERROR), "{refused}");
    served.await.expect("an end without a cut");
    let text = text(&metrics);
    assert!(text.contains("test_connections_aged_total 1"), "{text}");
    assert!(!text.contains("aged\"}"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_for_too_long_is_cut_off_and_counted() {
    let endless = answered_by(|_| pending::<Result<Response<Body>, Infallible>>());
    let Opened { mut client, metrics, served } = open(endless, Some(AGE)).await;
    let opened = Instant::now();
    let (answer, _) = client.send_request(request(), true).expect("a call");
    answer.await.expect_err("it is cut off");
    served.await.expect("an end");
    let ended = opened.elapsed();
    assert!(ended >= EARLIEST + CUT_GRACE && ended <= LATEST + CUT_GRACE, "{ended:?}");
    let text = text(&metrics);
    assert!(text.contains("test_connections_cut_off_total{reason=\"aged\"} 1"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_held_open_is_not_cut_off_with_its_connection() {
    let held = answered_by(|request: Request<Body>| async move {
        let peer = request.extensions().get::<Arc<Peer>>().map(Arc::clone);
        let _held = peer.expect("the client").held_streams.take(1).expect("a place");
        sleep(10 * LATEST).await;
        Ok::<_, Infallible>(Response::new(Body::empty()))
    });
    let Opened { mut client, metrics, served } = open(held, Some(AGE)).await;
    let (answer, _) = client.send_request(request(), true).expect("a call");
    let answer = answer.await.expect("it is not cut off");
    assert_eq!(answer.status(), 200);
    served.await.expect("the connection ends with it");
    let text = text(&metrics);
    assert!(text.contains("test_connections_aged_total 1"), "{text}");
    assert!(!text.contains("aged\"}"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn without_an_age_a_connection_lasts() {
    let Opened { client, metrics, .. } = open(answered_by(until_aged), None).await;
    sleep(100 * LATEST).await;
    client.ready().await.expect("it goes on");
    assert!(text(&metrics).contains("test_connections_aged_total 0"));
}
