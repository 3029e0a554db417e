//! A bound on `FindMatches` requests, from the first byte to the answer: bodies that are being
//! read count, since they are what takes memory.

use super::GrpcMetrics;
use futures::{
    FutureExt,
    future::{BoxFuture, Either, Ready, ready},
};
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Status, body::Body, codegen::http};
use tower::{Layer, Service};

const LIMITED: &str = "/kvasir.v1.Indexer/FindMatches";

#[derive(Clone)]
pub(super) struct InFlightLimit {
    permits: Arc<Semaphore>,
    limit: usize,
    metrics: GrpcMetrics,
}

impl InFlightLimit {
    pub(super) fn new(limit: usize, metrics: GrpcMetrics) -> Self {
        Self { permits: Arc::new(Semaphore::new(limit)), limit, metrics }
    }
}

impl<S> Layer<S> for InFlightLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Limited<S> {
    inner: S,
    limit: InFlightLimit,
}

type Answer<E> = Result<http::Response<Body>, E>;

/// One request under way.
struct InFlight {
    metrics: GrpcMetrics,
    _permit: OwnedSemaphorePermit,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
    }
}

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
        if request.uri().path() != LIMITED {
            return Either::Right(Either::Left(self.inner.call(request)));
        }
        let metrics = &self.limit.metrics;
        let Ok(permit) = Arc::clone(&self.limit.permits).try_acquire_owned() else {
            metrics.requests_refused.inc();
            let limit = self.limit.limit;
            let refusal = format!("{limit} requests are under way, the limit: retry later");
            let response = Status::resource_exhausted(refusal).into_http();
            return Either::Right(Either::Right(ready(Ok(response))));
        };
        metrics.in_flight.inc();
        let in_flight = InFlight { metrics: metrics.clone(), _permit: permit };
        let response = self.inner.call(request);
        Either::Left(Box::pin(response.inspect(move |_| drop(in_flight))))
    }
}
