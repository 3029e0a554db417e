//! Retries calls that the server rejected before they began. A server asks the client of an old connection to
//! reconnect. A call sent on the old connection at that moment fails, although both the call and the server are fine.

use h2::Reason;
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::error::Error;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Bytes;
use tonic::codegen::http::request::Parts;
use tonic::codegen::http::{Request, Response};
use tonic::transport;
use tonic::transport::channel::ResponseFuture;
use tower::{Service, ServiceExt};

/// Maximum number of retries of a call.
const AGAIN_MAX: usize = 2;

/// A request that can be retried as long as the transport has not read any of its body.
pub(crate) struct Repeatable {
    parts: Parts,
    body: Shared,
}

/// The body, until the transport begins to read it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Option<Body>>>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Option<Body>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A body that is taken from its shared slot when the transport begins to read it.
struct Lent {
    shared: Shared,
    body: Option<Body>,
}

impl Repeatable {
    /// Splits a request into a sendable request and the means to repeat it.
    pub(crate) fn new(request: Request<Body>) -> (Request<Body>, Self) {
        let (parts, body) = request.into_parts();
        let repeatable = Self { parts, body: Shared(Arc::new(Mutex::new(Some(body)))) };
        (repeatable.lend(), repeatable)
    }

    fn lend(&self) -> Request<Body> {
        let lent = Lent { shared: self.body.clone(), body: None };
        Request::from_parts(self.parts.clone(), Body::new(lent))
    }

    /// Returns the answer to the request. Retries a request that was rejected before it began.
    pub(crate) async fn answer(
        self,
        mut transport: transport::Channel,
        first: ResponseFuture,
    ) -> Result<Response<Body>, transport::Error> {
        let mut answer = first.await;
        for _ in 0..AGAIN_MAX {
            match &answer {
                Err(error) if is_refused(error) && self.body.lock().is_some() => {}
                Ok(_) | Err(_) => break,
            }
            answer = transport.ready().await?.call(self.lend()).await;
        }
        answer
    }
}

/// Returns whether the call never began: it was queued when its connection ended, or the server accepts no more calls.
fn is_refused(error: &transport::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled) {
            return true;
        }
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            let is_going = error.is_go_away() && error.reason() == Some(Reason::NO_ERROR);
            return error.is_remote()
                && (is_going || error.reason() == Some(Reason::REFUSED_STREAM));
        }
        cause = error.source();
    }
    false
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.body.is_none() {
            let body = self.shared.lock().take();
            self.body = body;
        }
        match &mut self.body {
            Some(body) => Pin::new(body).poll_frame(context),
            // The body was passed on to another connection.
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.body {
            Some(body) => body.is_end_stream(),
            None => self.shared.lock().as_ref().is_none_or(Body::is_end_stream),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.body {
            Some(body) => body.size_hint(),
            None => self.shared.lock().as_ref().map(Body::size_hint).unwrap_or_default(),
        }
    }
}
