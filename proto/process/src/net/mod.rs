//! Connections, counted and bounded: a port that never has more of them than it may, and none that
//! says nothing for ever.

mod incoming;

pub use incoming::incoming;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use std::{
    io::{self, IoSlice},
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

/// Pause after a failed accept, which is most often a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        Self { listener, permits: Arc::new(Semaphore::new(limit)), patience, open, refused }
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
                    tracing::warn!(%error, "a connection was not accepted");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
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
