//! gRPC channels that send a bearer token and the trace context with each call.

use crate::again::Repeatable;
use crate::token::Token;
use futures::future::BoxFuture;
use kvasir_trace::inject;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{Request, Response};
use tonic::transport;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

/// A connection to a server that sends the token of its [`Dialer`](crate::Dialer) with each call, and the caller's trace
/// context. Calls that the server rejects before they begin, because the connection is old, are retried on another one.
/// Clones share the connection.
#[derive(Debug, Clone)]
pub struct Channel(Route);

/// A server in this process. Calls reach it as function calls, without a connection.
pub type LocalServer = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The way of a call to its server.
#[derive(Debug, Clone)]
enum Route {
    Remote(transport::Channel, Option<Token>),
    Local(LocalServer),
}

impl Channel {
    pub(crate) const fn new(transport: transport::Channel, token: Option<Token>) -> Self {
        Self(Route::Remote(transport, token))
    }

    /// The bare connection, without token and retries. `None` for a server in this process.
    #[must_use]
    pub fn into_transport(self) -> Option<transport::Channel> {
        match self.0 {
            Route::Remote(transport, _token) => Some(transport),
            Route::Local(_) => None,
        }
    }
}

impl From<transport::Channel> for Channel {
    /// A channel without a token.
    fn from(transport: transport::Channel) -> Self {
        Self::new(transport, None)
    }
}

impl From<LocalServer> for Channel {
    fn from(server: LocalServer) -> Self {
        Self(Route::Local(server))
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, transport::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), transport::Error>> {
        match &mut self.0 {
            Route::Remote(transport, _token) => Service::poll_ready(transport, context),
            // Each call waits for the server itself.
            Route::Local(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match &mut self.0 {
            Route::Remote(transport, token) => {
                if let Some(token) = token {
                    request.headers_mut().insert(AUTHORIZATION, token.header());
                }
                inject(request.headers_mut());
                let (request, repeatable) = Repeatable::new(request);
                let first = Service::call(transport, request);
                Box::pin(repeatable.answer(transport.clone(), first))
            }
            Route::Local(server) => {
                let answer = server.clone().oneshot(request);
                Box::pin(async move { answer.await.map_err(|never| match never {}) })
            }
        }
    }
}
