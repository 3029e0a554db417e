//! Calls and answers in the spans of their requests.

use super::trace::request_span;
use futures::future::{BoxFuture, Either};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::HeaderMap;
use kvasir_trace::fail;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;
use tracing::{Instrument, Span};

/// Header or trailer with the status of a gRPC call; 0 is success.
const GRPC_STATUS: &str = "grpc-status";
/// Beginnings of the paths whose calls are no part of any trace: services that every port has, such as health, and what
/// routers call all the time.
const UNTRACED: [&str; 2] = ["/grpc.", "/kvasir.v1.Indexer/ListWorkers"];

/// Handler of gRPC calls, each in a span.
#[derive(Debug, Clone)]
pub struct TraceCalls<S>(pub S);

/// The body of an answer, in the span of its request. The span ends with the body.
#[derive(Debug)]
pub struct TracedBody<B> {
    /// `None` while it is dropped.
    body: Option<B>,
    span: Span,
}

/// Marks a call's span as failed, if headers or trailers say so.
fn check_status(span: &Span, headers: &HeaderMap) {
    let status = headers.get(GRPC_STATUS).and_then(|status| status.to_str().ok());
    if let Some(status) = status.filter(|status| *status != "0") {
        fail(span, &format_args!("{GRPC_STATUS} {status}"));
    }
}

impl<S> Service<Request<Body>> for TraceCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let path = request.uri().path();
        let span = match UNTRACED.iter().any(|untraced| path.starts_with(untraced)) {
            true => Span::none(),
            false => request_span(path, |name| request.headers().get(name)?.to_str().ok()),
        };
        if span.is_none() {
            return Either::Left(self.0.call(request));
        }
        let answer = span.in_scope(|| self.0.call(request)).instrument(span.clone());
        Either::Right(Box::pin(async move {
            let response = answer.await?;
            check_status(&span, response.headers());
            Ok(response.map(|body| Body::new(TracedBody::new(body, span))))
        }))
    }
}

impl<B> TracedBody<B> {
    /// The body of an answer to the request of a span.
    pub const fn new(body: B, span: Span) -> Self {
        Self { body: Some(body), span }
    }
}

impl<B: HttpBody + Unpin> HttpBody for TracedBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let Self { body, span } = &mut *self;
        let Some(body) = body else { return Poll::Ready(None) };
        let polled = span.in_scope(|| Pin::new(body).poll_frame(context));
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
        {
            check_status(span, trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(SizeHint::default, HttpBody::size_hint)
    }
}

impl<B> Drop for TracedBody<B> {
    /// A request that its client abandons ends here, in its span.
    fn drop(&mut self) {
        let Self { body, span } = self;
        span.in_scope(|| drop(body.take()));
    }
}
