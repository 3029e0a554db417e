//! Connections, counted and bounded: a port that never has more of them than it may, and none whose peer
//! says or takes nothing for ever. And what comes and goes over the connections of a gRPC port: requests that
//! arrive in time, answers that are taken, both within limits on what they hold meanwhile.

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
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use rustix::io::Errno;
use std::{
    fs::File,
    future::poll_fn,
    io::{self, IoSlice},
    mem,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is opened to hold a descriptor in reserve.
const SPARE: &str = "/dev/null";

/// Bytes that the client of a gRPC connection may send before they are read. The transport allows half of it for what
/// small frames cost that wait (256 bytes less their size, each): 8 publishers may have 1,024 unread batches each,
/// however small.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// How often connections are looked at for answers that are not taken.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);

/// How long a peer may do nothing before its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Until its first byte.
    pub first_byte: Duration,
    /// After a byte, until the next.
    pub idle: Duration,
    /// While something waits to be taken: bytes by its socket, or a piece of an [`AnswerBody`].
    pub untaken: Duration,
}

/// What one port's connections may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Most connections at a time.
    pub connections: usize,
    /// How long each may do nothing.
    pub patience: Patience,
    /// Most that each may have.
    pub peer: PeerLimits,
}

/// What counts the connections of a port.
#[derive(Debug, Clone, Default)]
pub struct ConnectionMetrics {
    /// Those that are open.
    pub open: Gauge,
    /// Those that were closed at once: the most were open.
    pub refused: Counter,
    /// Those that were closed although they were in use, by why.
    pub cut_off: Reasons,
    /// Those whose client was told to open another one, since they were old.
    pub aged: Counter,
    /// Those whose TLS handshake failed, by why.
    pub handshake_failures: Reasons,
}

impl ConnectionMetrics {
    /// Registers the metrics of a port, whose names begin with `port`.
    pub fn register(&self, registry: &mut Registry, port: &str) {
        let name = |rest| format!("{port}_connections{rest}");
        let help = "Connections closed while in use: silent or untaken (the client did nothing, or took no answers), or aged (its \
                    calls went on long after it was told to open another)";
        self.cut_off.register(registry, &name("_cut_off"), help);
        let help = "Connections closed for their TLS handshake failed: closed, timeout, not_tls, certificate or other";
        self.handshake_failures.register(registry, &name("_handshake_failures"), help);
        let help = "Connections whose client was told to open another, for they were old";
        registry.register(name("_aged"), help, self.aged.clone());
        registry.register(name(""), "Open connections", self.open.clone());
        registry.register(
            name("_refused"),
            "Connections closed at once: the most were open",
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
    /// A descriptor in reserve, to accept a connection with where no other is left.
    spare: Option<File>,
    /// Whether the last accept failed, and the log says so.
    is_failing: bool,
}

/// A connection; it counts until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: Arc<Peer>,
    patience: Patience,
    /// Elapses when the peer has said nothing for too long.
    silence: Pin<Box<Sleep>>,
    /// Elapses when the answers are to be looked at.
    look: Pin<Box<Sleep>>,
    /// Elapses when the socket has taken no bytes for too long, while some wait.
    stuck: Option<Pin<Box<Sleep>>>,
    /// Whether bytes wait for the socket.
    waits: bool,
    metrics: ConnectionMetrics,
    _permit: OwnedSemaphorePermit,
}

impl LimitedListener {
    /// Limits the connections of a socket.
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

    /// What counts its connections.
    #[must_use]
    pub const fn metrics(&self) -> &ConnectionMetrics {
        &self.metrics
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// If the system does not know it, or it is a file.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection within the limit; those beyond it are closed at once.
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
            // Without it small answers wait for the acknowledgement of earlier ones. It fails on
            // connections that are gone already.
            if set_nodelay(&stream).is_err() {
                continue;
            }
            return self.connection(stream, client, permit);
        }
    }

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
    /// After an accept that failed. If the process has no descriptor left, the connection is accepted with
    /// the spare one and closed: its client is told at once instead of waiting.
    async fn recover(&mut self, error: &io::Error) {
        if !mem::replace(&mut self.is_failing, true) {
            tracing::warn!(%error, "a connection was not accepted, nor may the next be");
        }
        let exhausted = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
        let is_exhausted = error.raw_os_error().is_some_and(|code| exhausted.contains(&code));
        if is_exhausted && self.close_one() {
            self.metrics.refused.inc();
            return;
        }
        sleep(ACCEPT_PAUSE).await;
    }

    /// Whether a connection was accepted with the spare descriptor and closed.
    fn close_one(&mut self) -> bool {
        let _turn = take_turn();
        self.spare = None;
        let accepted = poll_fn(|context| self.listener.poll_accept(context));
        let closed = accepted.now_or_never().is_some_and(|at| at.is_ok());
        self.spare = open_spare();
        closed
    }
}

/// Held by the port that accepts, so that no port takes the spare descriptor that another has just given up.
static ACCEPTING: Mutex<()> = Mutex::new(());

fn take_turn() -> MutexGuard<'static, ()> {
    ACCEPTING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open_spare() -> Option<File> {
    File::open(SPARE).ok()
}

impl Connection {
    /// The socket.
    #[must_use]
    pub const fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The client.
    #[must_use]
    pub const fn peer(&self) -> &Arc<Peer> {
        &self.peer
    }

    /// Ready once the peer has left an answer untaken for too long.
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

    /// Passes on what the socket says of bytes for it, and fails if it takes none for too long.
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
    /// Fails with `TimedOut` if the peer has done nothing for too long.
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
