//! Connections of a port, plain or over TLS.

use crate::access::Guard;
use crate::net::{Connection, LimitedListener, Peer};
use kvasir_tls::{CertificateNames, Protocol, ServerTls};
use std::{
    io::{self, IoSlice},
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    select,
    task::JoinSet,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsAcceptor, rustls::Error as TlsFault, server::TlsStream};
use tracing::field::display;

/// Longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The log tells of failed handshakes at most this often.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// A connection that is ready for requests.
#[derive(Debug)]
pub enum Socket {
    /// Without TLS.
    Plain(Connection),
    /// With TLS, after the handshake.
    Tls(Box<TlsStream<Connection>>),
}

impl Socket {
    /// The client. It has the names of its certificate, if it showed one.
    #[must_use]
    pub fn peer(&self) -> &Arc<Peer> {
        match self {
            Self::Plain(connection) => connection.peer(),
            Self::Tls(stream) => stream.get_ref().0.peer(),
        }
    }
}

/// Accepts the connections of a port. Handshakes run side by side, each within the port's limit on connections: one that
/// is slow or fails holds up no other.
#[derive(Debug)]
pub struct Accepting {
    listener: LimitedListener,
    tls: Option<(ServerTls, Protocol)>,
    handshakes: JoinSet<Result<Socket, Failed>>,
    /// When the log last told of a failed handshake.
    warned: Option<Instant>,
    /// How many have failed since, of which it says nothing.
    untold: u64,
}

/// A handshake that failed.
#[derive(Debug)]
struct Failed {
    reason: &'static str,
    why: String,
    client: Option<SocketAddr>,
}

impl Accepting {
    /// Of a listener, with what is spoken over TLS; none for no TLS.
    #[must_use]
    pub fn new(listener: LimitedListener, tls: Option<(ServerTls, Protocol)>) -> Self {
        Self { listener, tls, handshakes: JoinSet::new(), warned: None, untold: 0 }
    }

    /// The next connection that is ready.
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
                // The pattern must match whatever comes: else `select!` would wait for the listener alone.
                ended = self.handshakes.join_next(), if !self.handshakes.is_empty() => ended,
            };
            match ended {
                Some(Ok(Ok(socket))) => return socket,
                Some(Ok(Err(failed))) => self.note(&failed),
                // It panicked, which the runtime has told.
                Some(Err(_)) | None => {}
            }
        }
    }

    fn note(&mut self, failed: &Failed) {
        let Failed { reason, why, client } = failed;
        let client = client.map(display);
        self.listener.metrics().handshake_failures.count(reason);
        let now = Instant::now();
        let is_told = self.warned.is_some_and(|at| now.duration_since(at) < WARN_INTERVAL);
        // A connection that is opened and closed is a look at the port, by a load balancer for example.
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

async fn shake_hands(acceptor: TlsAcceptor, connection: Connection) -> Result<Socket, Failed> {
    let client = connection.peer().address;
    let failed = |(reason, why)| Failed { reason, why, client };
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(connection)).await {
        Ok(Ok(stream)) => {
            let (connection, session) = stream.get_ref();
            if let Some(certificate) = session.peer_certificates().and_then(<[_]>::first) {
                let names = CertificateNames::of(certificate);
                // It is the first and only one.
                let _set = connection.peer().certificate.set(names);
            }
            Ok(Socket::Tls(Box::new(stream)))
        }
        Ok(Err(error)) => Err(failed(reason(&error))),
        Err(_late) => Err(failed((TIMED_OUT, format!("not over after {HANDSHAKE_TIMEOUT:?}")))),
    }
}

/// The client went away.
const CLOSED: &str = "closed";
/// It took too long.
const TIMED_OUT: &str = "timeout";

/// The label of a failure, and what the log says of it.
fn reason(error: &io::Error) -> (&'static str, String) {
    let fault = error.get_ref().and_then(|inner| inner.downcast_ref::<TlsFault>());
    if let Some(fault) = fault {
        return if matches!(fault, TlsFault::InvalidMessage(_)) {
            ("not_tls", format!("the client does not speak TLS: {fault}"))
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
        (TIMED_OUT, "the client said nothing".to_owned())
    } else if gone.contains(&error.kind()) {
        (CLOSED, "the client closed the connection".to_owned())
    } else {
        ("other", error.to_string())
    }
}

/// Warns in the log of a port that others can reach and that is not protected.
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
