//! Serves the connections of a gRPC port, each from its first call to its last.

use crate::net::{AgeStep, ConnectionMetrics, Peer, age_steps, chance};
use crate::tls::Accepting;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

/// Handler of a connection's calls.
pub(super) trait Calls:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
    + Clone
    + Send
    + Sync
    + 'static
{
}

impl<S> Calls for S where
    S: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static
{
}

/// Settings for serving connections.
#[derive(Clone)]
pub(super) struct Serving<S> {
    pub(super) calls: S,
    pub(super) http2: http2::Builder<TokioExecutor>,
    /// Maximum age of connections; `None` is unlimited.
    pub(super) age: Option<Duration>,
    pub(super) metrics: ConnectionMetrics,
}

impl<S: Calls> Serving<S> {
    /// Serves connections until `stop` is cancelled. Then rejects new connections, waits for `stopped`, and completes
    /// the active calls.
    pub(super) async fn serve(
        self,
        mut accepting: Accepting,
        stop: &CancellationToken,
        stopped: impl Future<Output = ()>,
    ) {
        let mut connections = JoinSet::new();
        loop {
            select! {
                () = stop.cancelled() => break,
                socket = accepting.accept() => {
                    let peer = Arc::clone(socket.peer());
                    connections.spawn(self.clone().connection(socket, peer, stop.clone()));
                }
                // The pattern must match every result; else `select!` would wait only for the other branches.
                _ended = connections.join_next(), if !connections.is_empty() => {}
            }
        }
        drop(accepting);
        stopped.await;
        while connections.join_next().await.is_some() {}
    }

    /// Serves one connection to its end.
    async fn connection<I>(self, io: I, peer: Arc<Peer>, stop: CancellationToken)
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let calls = self.calls;
        let client = Arc::clone(&peer);
        let service = service_fn(move |request: Request<Incoming>| {
            let mut request = request.map(Body::new);
            request.extensions_mut().insert(Arc::clone(&client));
            calls.clone().call(request)
        });
        let mut serving = pin!(self.http2.serve_connection(TokioIo::new(io), service));
        let opened = Instant::now();
        let steps = self.age.map(|age| age_steps(age, chance()));
        let mut steps = steps.into_iter().flatten().peekable();
        let mut stopping = false;
        loop {
            let due = steps.peek().and_then(|(after, _)| opened.checked_add(*after));
            let due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => pending().await,
                }
            };
            select! {
                ended = serving.as_mut() => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a gRPC connection failed");
                    }
                    return;
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    serving.as_mut().graceful_shutdown();
                }
                () = due => match steps.next() {
                    Some((_, AgeStep::Tell)) => {
                        self.metrics.aged.inc();
                        serving.as_mut().graceful_shutdown();
                    }
                    Some((_, AgeStep::EndStreams)) => peer.aged.cancel(),
                    // The connection ends with its last held stream.
                    Some((_, AgeStep::Cut)) if peer.held_streams.is_held() => {}
                    Some((_, AgeStep::Cut)) => {
                        self.metrics.cut_off.count("aged");
                        return;
                    }
                    None => {}
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "connections_test.rs"]
mod tests;
