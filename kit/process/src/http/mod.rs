//! The HTTP side port with `/metrics`, `/livez` and `/readyz`. It runs in a thread of its own, so that it answers while
//! the server is busy. It depends only on telemetry.

mod drain;
mod pages;

pub use drain::DrainedBody;
pub use pages::{OwnPage, Pages};

use crate::access::{Access, Guard};
use crate::net::{
    ConnectionLimits, ConnectionMetrics, LimitedListener, Patience, PeerLimits, chance, spread,
};
use crate::telemetry::{Metrics, Readiness};
use crate::tls::{Accepting, Socket, warn_if_open};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use kvasir_tls::{Protocol, ServerTls};
use prometheus_client::registry::Registry;
use std::convert::Infallible;
use std::error::Error;
use std::future::pending;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::select;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

type BoxError = Box<dyn Error + Send + Sync>;

/// Maximum number of open connections.
pub const CONNECTIONS_MAX: usize = 256;
/// Timeout for a request's head, on a new or a kept-alive connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeouts of idle connections.
const PATIENCE: Patience = Patience {
    first_byte: HEAD_TIMEOUT,
    idle: Duration::from_secs(90),
    untaken: Duration::from_secs(10),
};
/// Number of threads that read metrics and readiness. Both may wait for locks of the server.
const READERS_MAX: usize = 2;

/// The side port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpConfig {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// Admission to the port. Unauthorised callers see only `/livez` and `/readyz`.
    pub guard: Guard,
}

/// Serves the port and the program's own pages until `stop` is cancelled and the active requests are answered.
///
/// # Errors
/// If the socket fails, or the thread cannot be started.
pub async fn serve(
    listener: TcpListener,
    guard: Guard,
    metrics: Metrics,
    readiness: Readiness,
    own: Vec<OwnPage>,
    stop: CancellationToken,
) -> io::Result<()> {
    warn_if_open("http-listen", listener.local_addr()?, &guard);
    let listener = listener.into_std()?;
    let runtime =
        Builder::new_current_thread().enable_all().max_blocking_threads(READERS_MAX).build()?;
    let (ended_tx, ended) = oneshot::channel();
    // The thread also ends if this future is dropped; then it is not joined.
    let abandoned = CancellationToken::new();
    let _guard = abandoned.clone().drop_guard();
    thread::Builder::new().name("http".to_owned()).spawn(move || {
        let pages = Pages::new(metrics, readiness, own);
        let serving = async { listen(listener, guard, pages, stop).await };
        let served = runtime.block_on(abandoned.run_until_cancelled(serving));
        runtime.shutdown_background();
        let _abandoned = ended_tx.send(served.unwrap_or(Ok(())));
    })?;
    ended
        .await
        .unwrap_or_else(|_lost| Err(io::Error::other("the thread of the side port panicked")))
}

/// Accepts connections until `stop` is cancelled, then waits for the open ones.
async fn listen(
    listener: std::net::TcpListener,
    Guard { tls, access, connection_age }: Guard,
    mut pages: Pages,
    stop: CancellationToken,
) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let mut registry = Registry::with_prefix("kvasir");
    let counted = ConnectionMetrics::default();
    counted.register(&mut registry, "http");
    let peer = PeerLimits::default();
    let limits = ConnectionLimits { connections: CONNECTIONS_MAX, patience: PATIENCE, peer };
    let listener = LimitedListener::new(listener, limits, counted);
    let demands_certificates = tls.as_ref().is_some_and(ServerTls::demands_certificates);
    let mut accepting = Accepting::new(listener, tls.map(|tls| (tls, Protocol::Http1)));
    pages.set_port_metrics(registry);
    let pages = Arc::new(pages);
    let connections = TaskTracker::new();
    loop {
        select! {
            () = stop.cancelled() => break,
            socket = accepting.accept() => {
                let is_known = socket.peer().certificate.get().is_some();
                let access = (!demands_certificates || is_known).then(|| access.clone());
                let answering =
                    answer(socket, access, connection_age, Arc::clone(&pages), stop.clone());
                connections.spawn(answering);
            }
        }
    }
    drop(accepting);
    connections.close();
    connections.wait().await;
    Ok(())
}

/// Answers the requests of one connection of the side port.
async fn answer(
    socket: Socket,
    access: Option<Access>,
    age: Option<Duration>,
    pages: Arc<Pages>,
    stop: CancellationToken,
) {
    let peer = Arc::clone(socket.peer());
    let service = service_fn(move |request: Request<DrainedBody>| {
        let pages = Arc::clone(&pages);
        let caller = access
            .as_ref()
            .and_then(|access| access.principal(request.headers(), peer.certificate.get()));
        async move { Ok::<_, Infallible>(pages.answer(request, caller.as_deref()).await) }
    });
    serve_connection(socket, service, (HEAD_TIMEOUT, age), stop).await;
}

/// Serves a connection's requests by `service`, until `stop` is cancelled and the active request is answered. HTTP/1
/// only. `head_timeout` limits the head of a request, on a new or a kept-alive connection. With an `age`, the
/// connection ends with the first answer after that age, varied by up to a tenth. A body that the service leaves unread
/// is discarded before the answer is sent; if it is too long or too slow, the answer says `connection: close`.
pub async fn serve_connection<S, B>(
    socket: Socket,
    service: S,
    (head_timeout, age): (Duration, Option<Duration>),
    stop: CancellationToken,
) where
    S: Service<Request<DrainedBody>, Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Error: Into<BoxError>> + 'static,
{
    let service = service_fn(|request: Request<Incoming>| {
        let (request, rest) = drain::split(request);
        let answering = service.call(request);
        let stop = stop.clone();
        async move { Ok::<_, S::Error>(rest.drain(answering.await?, &stop).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let mut serving = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let aged = async {
        match age {
            Some(age) => sleep(spread(age, chance())).await,
            None => pending().await,
        }
    };
    let ended = select! {
        ended = serving.as_mut() => ended,
        () = async { select! { () = stop.cancelled() => {}, () = aged => {} } } => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "an HTTP connection failed");
    }
}
