//! Counts calls that end because a message of the client is longer than it may be. The transport refuses
//! such messages before a handler sees them, and says so in the status of the answer only: no handler ever
//! gives this status itself.

use super::limit::STREAMS;
use futures::{FutureExt, future::BoxFuture};
use http_body::{Body as HttpBody, Frame, SizeHint};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
};
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tonic::{
    Code, Status,
    body::Body,
    codegen::{
        Bytes,
        http::{self, HeaderMap},
    },
};
use tower::{Layer, Service};

/// Which call.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct CallLabels {
    /// Name of the method.
    call: String,
}

/// Calls that ended for a message that was too long.
pub(super) type TooLong = Family<CallLabels, Counter>;

#[derive(Clone)]
pub(super) struct CountTooLong(pub(super) TooLong);

impl<S> Layer<S> for CountTooLong {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, too_long: self.0.clone() }
    }
}

#[derive(Clone)]
pub(super) struct Counted<S> {
    inner: S,
    too_long: TooLong,
}

impl<S, B> Service<http::Request<B>> for Counted<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>, Future: Send + 'static>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<http::Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let call = Call { uri: request.uri().clone(), too_long: self.too_long.clone() };
        let response = self.inner.call(request);
        async move {
            let response = response.await?;
            call.look(response.headers());
            if !STREAMS.contains(&call.uri.path()) {
                return Ok(response);
            }
            Ok(response.map(|body| Body::new(CountedBody { body, call })))
        }
        .boxed()
    }
}

/// A call whose status is looked at.
struct Call {
    uri: http::Uri,
    too_long: TooLong,
}

impl Call {
    fn look(&self, said: &HeaderMap) {
        let status = said.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()));
        if status == Some(Code::OutOfRange) {
            let path = self.uri.path();
            let call = path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned();
            self.too_long.get_or_create(&CallLabels { call }).inc();
        }
    }
}

/// The answer of a stream, which ends with its status.
struct CountedBody {
    body: Body,
    call: Call,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &frame
            && let Some(trailers) = frame.trailers_ref()
        {
            self.call.look(trailers);
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
