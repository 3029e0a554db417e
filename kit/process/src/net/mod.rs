//! Caps the connections of a port, and closes those whose peer neither sends nor reads. For gRPC ports, also bounds the
//! requests that arrive (time and bytes) and the answers that clients have not read (backpressure).

mod age;
mod answer;
mod ending;
mod peer;
mod request;
mod room;
mod share;
mod socket;
mod too_long;

pub(crate) use age::{AgeStep, age_steps, chance, spread};
pub use age::{CUT_GRACE, STREAMS_GRACE};
pub(crate) use answer::Charge;
pub use answer::{AnswerBody, AnswerLimits, PIECE_BYTES_MAX};
pub use ending::Ending;
pub use peer::{Peer, PeerLimits};
pub use request::{BYTES_PER_SECOND_MIN, IdleLimit, Pace, RequestBody, RequestLimits};
pub(crate) use room::BatchRoom;
pub use share::{Limit, Reasons, Share};
use socket::set_nodelay;
pub use socket::{Listening, SocketFile, SocketFileError, Stream};
pub use too_long::{Call, CallLabels, TooLong};

use futures::FutureExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustix::io::Errno;
use std::fs::File;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::mem;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep};

/// Backoff after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// File that is opened to reserve a file descriptor.
const SPARE: &str = "/dev/null";

/// Bytes that the client of a gRPC connection may send before the server reads them (flow-control window). The
/// transport allows half of it for the overhead of small waiting frames (256 bytes less their size, each). That
/// suffices for 8 publishers with 1,024 unread batches each, however small.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Interval at which connections are checked for unread answers.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How long a peer may be inactive before its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Timeout for the first byte.
    pub first_byte: Duration,
    /// Timeout between two bytes.
    pub idle: Duration,
    /// Timeout for the client to read, while bytes wait in its socket or a piece of an [`AnswerBody`] waits.
    pub untaken: Duration,
}

/// Limits on the connections of one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of open connections.
    pub connections: usize,
    /// Inactivity timeouts of each connection.
    pub patience: Patience,
    /// Limits of each connection.
    pub peer: PeerLimits,
}

/// Metrics of a port's connections.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Open connections.
    pub open: Gauge,
    /// Connections closed immediately, because the maximum number was open.
    pub refused: Counter,
    /// Connections closed while in use, by reason.
    pub cut_off: Reasons,
    /// Connections whose client was asked to reconnect, because of their age.
    pub aged: Counter,
    /// Connections whose TLS handshake failed, by reason.
    pub handshake_failures: Reasons,
}

impl ConnectionMetrics {
    /// Registers the metrics of a port, with names beginning with `port`.
    pub fn register(&self, registry: &mut Registry, port: &str) {
        let name = |rest| format!("{port}_connections{rest}");
        let help = "Connections closed while in use, by reason: silent (client idle), untaken (client reads no \
                    answers), aged (calls still active long after the client was asked to reconnect)";
        self.cut_off.register(registry, &name("_cut_off"), help);
        let help = "Connections whose TLS handshake failed, by reason: closed, timeout, not_tls, certificate or other";
        self.handshake_failures.register(registry, &name("_handshake_failures"), help);
        let help =
            "Connections whose client was asked to reconnect because of the connection's age";
        registry.register(name("_aged"), help, self.aged.clone());
        registry.register(name(""), "Open client connections", self.open.clone());
        registry.register(
            name("_refused"),
            "Connections closed immediately because the maximum number was open",
            self.refused.clone(),
        );
    }

    fn cut_off(&self, why: &'static str) -> io::Error {
        self.cut_off.count(why);
        io::ErrorKind::TimedOut.into()
    }
}

/// A listening socket with a limit on its connections.
#[derive(Debug)]
pub struct LimitedListener {
    listener: Listening,
    permits: Arc<Semaphore>,
    limits: ConnectionLimits,
    metrics: ConnectionMetrics,
    /// A reserved descriptor, to accept a connection when no other descriptor is free.
    spare: Option<File>,
    /// Whether the last accept failed and this was logged.
    is_failing: bool,
}

/// A connection. It counts against the limit until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: Arc<Peer>,
    patience: Patience,
    /// Elapses when the peer has sent nothing for too long.
    silence: Pin<Box<Sleep>>,
    /// Elapses when unread answers are due for a check.
    look: Pin<Box<Sleep>>,
    /// Elapses when the socket has accepted no bytes for too long although some wait.
    stuck: Option<Pin<Box<Sleep>>>,
    /// Whether bytes wait to be written to the socket.
    waits: bool,
    metrics: ConnectionMetrics,
    _permit: OwnedSemaphorePermit,
}

impl LimitedListener {
    /// Wraps a listening socket with limits.
    #[must_use]
    pub fn new(
        listener: impl Into<Listening>,
        limits: ConnectionLimits,
        metrics: ConnectionMetrics,
    ) -> Self {
        let permits = Arc::new(Semaphore::new(limits.connections));
        let spare = open_spare();
        Self { listener: listener.into(), permits, limits, metrics, spare, is_failing: false }
    }

    /// Metrics of the connections.
    #[must_use]
    pub const fn metrics(&self) -> &ConnectionMetrics {
        &self.metrics
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// If the system cannot return it, or the socket is a file.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts the next connection within the limit. Closes connections beyond the limit immediately.
    pub async fn accept(&mut self) -> Connection {
        loop {
            let accepted = poll_fn(|context| {
                let _turn = take_turn();
                self.listener.poll_accept(context)
            });
            let (stream, client) = match accepted.await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.recover(&error).await;
                    continue;
                }
            };
            self.is_failing = false;
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                self.metrics.refused.inc();
                continue;
            };
            // Without it, small answers wait for the acknowledgement of earlier ones. It fails if the connection is
            // already closed.
            if set_nodelay(&stream).is_err() {
                continue;
            }
            return self.connection(stream, client, permit);
        }
    }

    /// Wraps an accepted connection with its limits and timeouts.
    fn connection(
        &self,
        stream: Stream,
        client: Option<SocketAddr>,
        permit: OwnedSemaphorePermit,
    ) -> Connection {
        let patience = self.limits.patience;
        let metrics = self.metrics.clone();
        metrics.open.inc();
        Connection {
            stream,
            peer: Arc::new(Peer::new(client, self.limits.peer)),
            patience,
            silence: Box::pin(sleep(patience.first_byte)),
            look: Box::pin(sleep(LOOK_INTERVAL)),
            stuck: None,
            waits: false,
            metrics,
            _permit: permit,
        }
    }
}

impl LimitedListener {
    /// Recovers from a failed accept. If the process has no free descriptor, accepts the connection with the reserved
    /// descriptor and closes it, so that the client gets an error immediately. After any other error, waits briefly.
    async fn recover(&mut self, error: &io::Error) {
        if !mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%error, "cannot accept connections: retrying");
        }
        let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        let is_exhausted = error.raw_os_error().is_some_and(|code| exhausted.contains(&code));
        if is_exhausted && self.close_one() {
            self.metrics.refused.inc();
            return;
        }
        sleep(ACCEPT_PAUSE).await;
    }

    /// Accepts one connection with the reserved descriptor and closes it. Returns whether it did.
    fn close_one(&mut self) -> bool {
        let _turn = take_turn();
        self.spare = None;
        let accepted = poll_fn(|context| self.listener.poll_accept(context));
        let closed = accepted.now_or_never().is_some_and(|at| at.is_ok());
        self.spare = open_spare();
        closed
    }
}

/// Locked by the port that accepts, so that no port takes the reserved descriptor that another port has just freed.
static ACCEPTING: Mutex<()> = Mutex::new(());

/// Locks [`ACCEPTING`].
fn take_turn() -> MutexGuard<'static, ()> {
    ACCEPTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens the descriptor that is reserved for closing a connection when all others are in use.
fn open_spare() -> Option<File> {
    File::open(SPARE).ok()
}

impl Connection {
    /// The socket.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The client at the other end.
    #[must_use]
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Ready with an error once the peer has left an answer unread for `patience.untaken`.
    fn poll_untaken(&mut self, context: &mut Context<'_>) -> Poll<io::Error> {
        while self.look.as_mut().poll(context).is_ready() {
            let looks = self.patience.untaken.as_secs() / LOOK_INTERVAL.as_secs();
            if self.peer.stalls(u32::try_from(looks).unwrap_or(u32::MAX)) {
                return Poll::Ready(self.metrics.cut_off("untaken"));
            }
            self.look.as_mut().reset(Instant::now() + LOOK_INTERVAL);
        }
        Poll::Pending
    }

    /// Returns the socket's result of a write. Fails if the socket has accepted nothing for `patience.untaken`.
    fn written<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waits = false;
            return written;
        }
        let untaken = self.patience.untaken;
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(sleep(untaken)));
        if !self.waits {
            self.waits = true;
            stuck.as_mut().reset(Instant::now() + untaken);
        }
        if stuck.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(self.metrics.cut_off("untaken")));
        }
        self.poll_untaken(context).map(Err)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.metrics.open.dec();
    }
}

impl AsyncRead for Connection {
    /// Reads from the socket. Fails with `TimedOut` if the peer has sent nothing for `patience.first_byte` at the start
    /// or `patience.idle` later, or has left an answer unread for `patience.untaken`.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let next = Instant::now() + self.patience.idle;
            self.silence.as_mut().reset(next);
            return Poll::Ready(read);
        }
        if self.silence.as_mut().poll(context).is_ready() {
            return Poll::Ready(Err(self.metrics.cut_off("silent")));
        }
        self.poll_untaken(context).map(Err)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
#[path = "net_test.rs"]
mod tests;
