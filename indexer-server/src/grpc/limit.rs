//! Bounds on requests under way, from the first byte to the end of the answer: bodies that are
//! being read count, since they are what takes memory.

use super::GrpcMetrics;
use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, Either, Ready, ready},
};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{
    Status,
    body::Body,
    codegen::{Bytes, http},
};
use tower::{Layer, Service};

/// What begins the path of every call of our services: the others, such as health, are not bounded.
const OURS: &str = "/kvasir.v1.";

/// Calls that go on after their answer has begun.
pub(super) const STREAMS: [&str; 3] = [
    "/kvasir.v1.Indexer/FindMatchesStream",
    "/kvasir.v1.Indexer/DumpWorker",
    "/kvasir.v1.EventIngest/PublishEvents",
];

#[derive(Clone)]
pub(super) struct RequestLimit {
    requests: Bound,
    streams: Bound,
}

impl RequestLimit {
    pub(super) fn new(requests_max: usize, streams_max: usize, metrics: GrpcMetrics) -> Self {
        let GrpcMetrics { in_flight, requests_refused, streams, streams_refused, .. } = metrics;
        Self {
            requests: Bound::new(
                "requests are under way",
                requests_max,
                in_flight,
                requests_refused,
            ),
            streams: Bound::new("streams are open", streams_max, streams, streams_refused),
        }
    }
}

/// Most calls of one kind at a time.
#[derive(Clone)]
struct Bound {
    /// What there are too many of, in a refusal.
    what: &'static str,
    limit: usize,
    permits: Arc<Semaphore>,
    open: Gauge,
    refused: Counter,
}

impl Bound {
    fn new(what: &'static str, limit: usize, open: Gauge, refused: Counter) -> Self {
        Self { what, limit, permits: Arc::new(Semaphore::new(limit)), open, refused }
    }

    fn admit(&self) -> Result<Admitted, Status> {
        let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
            self.refused.inc();
            let Self { what, limit, .. } = self;
            let refusal = format!("{limit} {what}, the limit: retry later");
            return Err(Status::resource_exhausted(refusal));
        };
        self.open.inc();
        Ok(Admitted { open: self.open.clone(), _permit: permit })
    }
}

/// A call within its bound; it counts until it is dropped.
struct Admitted {
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// The answer of a stream, which counts until its end.
struct StreamBody {
    body: Body,
    _admitted: Admitted,
}

impl HttpBody for StreamBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<S> Layer<S> for RequestLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Limited<S> {
    inner: S,
    limit: RequestLimit,
}

type Answer<E> = Result<http::Response<Body>, E>;

impl<S, B> Service<http::Request<B>> for Limited<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>, Future: Send + 'static>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future =
        Either<BoxFuture<'static, Answer<S::Error>>, Either<S::Future, Ready<Answer<S::Error>>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let path = request.uri().path();
        if !path.starts_with(OURS) {
            return Either::Right(Either::Left(self.inner.call(request)));
        }
        let streams = STREAMS.contains(&path);
        let bound = if streams { &self.limit.streams } else { &self.limit.requests };
        let admitted = match bound.admit() {
            Ok(admitted) => admitted,
            Err(refusal) => return Either::Right(Either::Right(ready(Ok(refusal.into_http())))),
        };
        let response = self.inner.call(request);
        Either::Left(if streams {
            let counted = |body| Body::new(StreamBody { body, _admitted: admitted });
            response.map_ok(|response| response.map(counted)).boxed()
        } else {
            response.inspect(move |_| drop(admitted)).boxed()
        })
    }
}
