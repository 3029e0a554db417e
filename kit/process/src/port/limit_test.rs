use super::*;
use crate::net::PeerLimits;
use std::convert::Infallible;
use std::time::Duration;
use tonic::Code;
use tonic::codegen::http::HeaderValue;
use tower::{ServiceExt, service_fn};

const WORK: &str = "/kvasir.v1.Test/Work";
const ASK: &str = "/kvasir.v1.Test/Ask";

/// Returns the end of a call whose answer takes `takes` to make.
async fn call(path: &str, takes: Duration, client_gives: Option<&'static str>) -> Code {
    let kinds: Streams = &[(WORK, StreamKind::Work)];
    let stop = CancellationToken::new();
    let limit = RequestLimit::new(kinds, 1, PortMetrics::default(), &stop);
    let own = PeerLimits { calls: 1, streams: 1, asking_streams: 1, ..PeerLimits::default() };
    let mut request = http::Request::new(Body::empty());
    *request.uri_mut() = path.parse().expect("a path");
    request.extensions_mut().insert(Arc::new(Peer::new(None, own)));
    let gives = client_gives.map(|time| ("grpc-timeout", HeaderValue::from_static(time)));
    gives.into_iter().for_each(|(name, time)| {
        request.headers_mut().insert(name, time);
    });
    let service = limit.layer(service_fn(move |_: http::Request<Body>| async move {
        tokio::time::sleep(takes).await;
        Ok::<_, Infallible>(http::Response::new(Body::empty()))
    }));
    let answer = service.oneshot(request).await.unwrap_or_else(|never| match never {});
    Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code())
}

#[tokio::test(start_paused = true)]
async fn long_work_takes_as_long_as_its_client_gives_it_or_an_hour() {
    let seconds = Duration::from_secs;
    let hour = Duration::from_secs(3_600);
    for (path, takes, gives, ends) in [
        (ASK, seconds(29), None, Code::Ok),
        (ASK, seconds(31), None, Code::DeadlineExceeded),
        (ASK, seconds(31), Some("1H"), Code::DeadlineExceeded),
        (WORK, seconds(31), None, Code::Ok),
        (WORK, seconds(31), Some("30S"), Code::DeadlineExceeded),
        (WORK, hour - seconds(1), Some("2H"), Code::Ok),
        (WORK, hour + seconds(1), Some("2H"), Code::DeadlineExceeded),
    ] {
        assert_eq!(call(path, takes, gives).await, ends, "{path} {takes:?} {gives:?}");
    }
}
