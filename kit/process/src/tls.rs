//! Accepts the connections of a port, plain or over TLS.

use crate::access::Guard;
use crate::net::{Connection, LimitedListener, Peer};
use kvasir_tls::{CertificateNames, Protocol, ServerTls};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::select;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::Error as TlsFault;
use tokio_rustls::server::TlsStream;
use tracing::field::display;

/// Timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Minimum time between two log lines about failed handshakes.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// An accepted connection, ready for requests.
#[derive(Debug)]
pub enum Socket {
    /// Without TLS.
    Plain(Connection),
    /// With TLS, after the handshake.
    Tls(Box<TlsStream<Connection>>),
}

impl Socket {
    /// The client, with the names of its certificate if it presented one.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        match self {
            Self::Plain(connection) => connection.peer(),
            Self::Tls(stream) => stream.get_ref().0.peer(),
        }
    }
}

/// Accepts a port's connections. Handshakes run concurrently within the port's limit on connections, so that a slow or
/// failing handshake delays no other.
#[derive(Debug)]
pub struct Accepting {
    listener: LimitedListener,
    tls: Option<(ServerTls, Protocol)>,
    handshakes: JoinSet<Result<Socket, Failed>>,
    /// Time of the last log line about a failed handshake.
    warned: Option<Instant>,
    /// Number of failed handshakes since then, which were not logged.
    untold: u64,
}

/// A failed handshake.
#[derive(Debug)]
struct Failed {
    reason: &'static str,
    why: String,
    client: Option<SocketAddr>,
}

impl Accepting {
    /// Accepts the connections of a listener, with TLS and a protocol; none for plain connections.
    #[must_use]
    pub fn new(listener: LimitedListener, tls: Option<(ServerTls, Protocol)>) -> Self {
        Self { listener, tls, handshakes: JoinSet::new(), warned: None, untold: 0 }
    }

    /// Returns the next connection that is ready: with TLS, after its handshake. Handshakes run concurrently.
    pub async fn accept(&mut self) -> Socket {
        loop {
            let ended = select! {
                connection = self.listener.accept() => {
                    let Some((tls, protocol)) = &self.tls else {
                        return Socket::Plain(connection);
                    };
                    let acceptor = tls.acceptor(*protocol);
                    self.handshakes.spawn(shake_hands(acceptor, connection));
                    continue;
                }
                // The pattern must match every result; else `select!` would wait only for the listener.
                ended = self.handshakes.join_next(), if !self.handshakes.is_empty() => ended,
            };
            match ended {
                Some(Ok(Ok(socket))) => return socket,
                Some(Ok(Err(failed))) => self.record_failure(&failed),
                // The handshake panicked; the runtime has already reported it.
                Some(Err(_)) | None => {}
            }
        }
    }

    /// Counts a failed handshake, and logs it at most once per [`WARN_INTERVAL`]. A connection that was only opened
    /// and closed is not a warning.
    fn record_failure(&mut self, failed: &Failed) {
        let Failed { reason, why, client } = failed;
        let client = client.map(display);
        self.listener.metrics().handshake_failures.count(reason);
        let now = Instant::now();
        let is_told = self.warned.is_some_and(|at| now.duration_since(at) < WARN_INTERVAL);
        // A connection that is opened and closed is a probe of the port, for example by a load balancer.
        if is_told || *reason == CLOSED {
            self.untold += u64::from(*reason != CLOSED);
            tracing::debug!(client, why, "a TLS handshake failed");
            return;
        }
        self.warned = Some(now);
        let num_suppressed = std::mem::take(&mut self.untold);
        tracing::warn!(client, why, num_suppressed, "a TLS handshake failed");
    }
}

/// Completes the TLS handshake, and stores the names of the client's certificate, if there is one.
async fn shake_hands(acceptor: TlsAcceptor, connection: Connection) -> Result<Socket, Failed> {
    let client = connection.peer().address;
    let failed = |(reason, why)| Failed { reason, why, client };
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection)).await {
        Ok(Ok(stream)) => {
            let (connection, session) = stream.get_ref();
            if let Some(certificate) = session.peer_certificates().and_then(<[_]>::first) {
                let names = CertificateNames::of(certificate);
                // This is the first and only call.
                let _set = connection.peer().certificate.set(names);
            }
            Ok(Socket::Tls(Box::new(stream)))
        }
        Ok(Err(error)) => Err(failed(reason(&error))),
        Err(_late) => Err(failed((
            TIMED_OUT,
            format!("the handshake took longer than {HANDSHAKE_TIMEOUT:?}"),
        ))),
    }
}

/// The client disconnected.
const CLOSED: &str = "closed";
/// The handshake timed out.
const TIMED_OUT: &str = "timeout";

/// Returns the metric label and the log text of a failed handshake.
fn reason(error: &io::Error) -> (&'static str, String) {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsFault>());
    if let Some(fault) = fault {
        return if matches!(fault, TlsFault::InvalidMessage(_)) {
            ("not_tls", format!("the client does not use TLS: {fault}"))
        } else if let TlsFault::NoCertificatesPresented = fault {
            ("certificate", "the client showed no certificate".to_owned())
        } else if let TlsFault::InvalidCertificate(_) = fault {
            ("certificate", format!("the client's certificate is refused: {fault}"))
        } else if let TlsFault::AlertReceived(_) = fault {
            ("other", format!("the client refused: {fault}"))
        } else {
            ("other", fault.to_string())
        };
    }
    let gone =
        [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
    if error.kind() == io::ErrorKind::TimedOut {
        (TIMED_OUT, "the client sent no data".to_owned())
    } else if gone.contains(&error.kind()) {
        (CLOSED, "the client closed the connection".to_owned())
    } else {
        ("other", error.to_string())
    }
}

/// Logs a warning for a port that other machines can reach without TLS or without an identity.
pub fn warn_if_open(option: &str, address: SocketAddr, guard: &Guard) {
    if address.ip().is_loopback() {
        return;
    }
    match &guard.tls {
        None => tracing::warn!(
            option, %address,
            "insecure: the port has no TLS. Whoever reaches it can read and change all that it serves, and whoever sees \
             the network can read along: set tls-cert and tls-key"
        ),
        Some(tls) if !tls.demands_certificates() && guard.access.is_open() => tracing::warn!(
            option, %address,
            "the port serves every client: set tls-client-ca to demand a certificate, or identities"
        ),
        Some(_) => {}
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_write_vectored(context, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(connection) => connection.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(connection) => Pin::new(connection).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
