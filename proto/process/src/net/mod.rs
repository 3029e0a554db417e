//! Connections, counted and bounded: a port that never has more of them than it may, and none that
//! says nothing for ever.

mod incoming;

pub use incoming::incoming;

use futures::FutureExt;
use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use rustix::io::Errno;
use std::{
    fs::File,
    io::{self, IoSlice},
    mem,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// What is opened to hold a descriptor in reserve.
const SPARE: &str = "/dev/null";

/// How long a peer may say nothing before its connection is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Until its first byte.
    pub first_byte: Duration,
    /// After a byte, until the next.
    pub idle: Duration,
}

/// A listening socket with a limit on its connections.
#[derive(Debug)]
pub struct LimitedListener {
    listener: TcpListener,
    permits: Arc<Semaphore>,
    patience: Patience,
    open: Gauge,
    refused: Counter,
    /// A descriptor in reserve, to accept a connection with where no other is left.
    spare: Option<File>,
    /// Whether the last accept failed, and the log says so.
    is_failing: bool,
}

/// A connection; it counts until it is dropped.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    /// Elapses when the peer has said nothing for too long.
    silence: Pin<Box<Sleep>>,
    idle: Duration,
    open: Gauge,
    _permit: OwnedSemaphorePermit,
}

impl LimitedListener {
    /// Limits the connections of a socket; `open` and `refused` count them.
    #[must_use]
    pub fn new(
        listener: TcpListener,
        limit: usize,
        patience: Patience,
        open: Gauge,
        refused: Counter,
    ) -> Self {
        Self {
            listener,
            permits: Arc::new(Semaphore::new(limit)),
            patience,
            open,
            refused,
            spare: open_spare(),
            is_failing: false,
        }
    }

    /// Address of the socket.
    ///
    /// # Errors
    /// If the system does not know it.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// The next connection within the limit; those beyond it are closed at once.
    pub async fn accept(&mut self) -> (Connection, SocketAddr) {
        loop {
            let (stream, peer) = match self.listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.recover(&error).await;
                    continue;
                }
            };
            self.is_failing = false;
            let Ok(permit) = Arc::clone(&self.permits).try_acquire_owned() else {
                self.refused.inc();
                continue;
            };
            // Without it small answers wait for the acknowledgement of earlier ones. It fails on
            // connections that are gone already.
            if stream.set_nodelay(true).is_err() {
                continue;
            }
            self.open.inc();
            let Patience { first_byte, idle } = self.patience;
            let (silence, open) = (Box::pin(sleep(first_byte)), self.open.clone());
            return (Connection { stream, silence, idle, open, _permit: permit }, peer);
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
        if error.raw_os_error().is_some_and(|code| exhausted.contains(&code)) {
            self.spare = None;
            let closed = self.listener.accept().now_or_never().is_some_and(|at| at.is_ok());
            self.spare = open_spare();
            if closed {
                self.refused.inc();
                return;
            }
        }
        sleep(ACCEPT_PAUSE).await;
    }
}

fn open_spare() -> Option<File> {
    File::open(SPARE).ok()
}

impl Connection {
    /// The socket.
    #[must_use]
    pub const fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.open.dec();
    }
}

impl AsyncRead for Connection {
    /// Fails with `TimedOut` if the peer has said nothing for too long.
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(read) = Pin::new(&mut self.stream).poll_read(context, buffer) {
            let next = Instant::now() + self.idle;
            self.silence.as_mut().reset(next);
            return Poll::Ready(read);
        }
        ready!(self.silence.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
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
