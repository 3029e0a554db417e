//! Client connections, plain or over TLS.

use crate::addresses::open_first;
use crate::alpn::BLOCKS_ALPN;
use crate::pem::{Contents, Source};
use crate::reload::Reloaded;
use crate::token::Token;
use crate::{Channel, LocalServer, TlsError};
use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use kvasir_proto::target::{TargetError, is_tls, read_target};
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ProtocolVersion};
use std::error::Error;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tonic::codegen::http::Uri;
use tonic::transport::Endpoint;
use tower::Service;

/// A connection for another protocol than gRPC, plain or over TLS.
pub type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Timeout for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval of keep-alive pings.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout for the answer to a keep-alive ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout for the server's first bytes within TLS 1.3. There a client's handshake ends before the server has verified
/// the client's certificate, so only the server's first bytes show whether it accepts the client. gRPC servers send
/// first. A server that does not is used after this time.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of first bytes that are kept.
const FIRST_BYTES_MAX: usize = 4 << 10;

/// TLS files of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// Trusted authorities of servers.
    pub ca: PathBuf,
    /// Certificate and key for servers that require a client certificate.
    pub identity: Option<Identity>,
}

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The certificate, with intermediate certificates.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

/// Connects gRPC clients: plain to `http://` targets, over TLS to `https://` targets, which requires files. All clients
/// of the workspace use it, so that they accept the same targets and detect a lost peer in the same time. Clones share
/// the files.
#[derive(Debug, Clone, Default)]
pub struct Dialer {
    tls: Option<Tls>,
    token: Option<Token>,
    local: Option<LocalServer>,
}

/// Target of the server in this process ([`Dialer::with_local`]). No server on the network has this name.
pub const IN_PROCESS: &str = "http://in-process.invalid:1";

#[derive(Debug, Clone)]
struct Tls {
    files: ClientFiles,
    config: Arc<Reloaded<Arc<ClientConfig>>>,
}

impl Tls {
    fn config_for(&self, protocol: &[u8]) -> ClientConfig {
        let mut config = ClientConfig::clone(&self.config.get());
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The target is invalid.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The target requires TLS, and no authorities are configured.
    #[error("{0:?} needs the certificate of the authority that signed the server's (tls-ca)")]
    NoAuthority(String),
    /// The server cannot be reached, or rejects this client.
    #[error("{}", causes_of(.0))]
    Transport(tonic::transport::Error),
    /// A connection for another protocol than gRPC failed.
    #[error("{0}")]
    Stream(#[from] io::Error),
}

/// Returns the causes of a transport error, because the error's own text has no details.
fn causes_of(error: &tonic::transport::Error) -> String {
    let mut line = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
        cause = error.source();
    }
    if line.is_empty() { error.to_string() } else { line }
}

impl Dialer {
    /// Creates a dialer for both kinds of targets. [`Dialer::default`] supports only `http://` targets.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn open(files: ClientFiles) -> Result<Self, TlsError> {
        let source = |option, path: &PathBuf| Source { option, path: path.clone() };
        let mut sources = vec![source("tls-ca", &files.ca)];
        if let Some(Identity { cert, key }) = &files.identity {
            sources.extend([source("tls-cert", cert), source("tls-key", key)]);
        }
        let config = Arc::new(Reloaded::open(sources, config)?);
        Ok(Self { tls: Some(Tls { files, config }), ..Self::default() })
    }

    /// Adds a token from a file, which clients send with each call. Over `http://`, the token can be read on the
    /// network.
    ///
    /// # Errors
    /// If the file is invalid.
    pub fn with_token(self, file: PathBuf) -> Result<Self, TlsError> {
        Ok(Self { token: Some(Token::open("token-file", file)?), ..self })
    }

    /// Removes the token, for servers at addresses that others supply: such servers must not receive it. They identify
    /// this client by its certificate.
    #[must_use]
    pub fn without_token(&self) -> Self {
        Self { tls: self.tls.clone(), ..Self::default() }
    }

    /// Adds a server of this process, which clients reach at the target [`IN_PROCESS`].
    #[must_use]
    pub fn with_local(self, server: LocalServer) -> Self {
        Self { local: Some(server), ..self }
    }

    /// Checks that a target is valid and supported.
    ///
    /// # Errors
    /// If the text is not a target, or requires files that this dialer lacks.
    pub fn check(&self, target: &str) -> Result<String, DialError> {
        let url = read_target(target)?;
        if is_tls(&url) && self.tls.is_none() {
            return Err(DialError::NoAuthority(url));
        }
        Ok(url)
    }

    /// The `authorization` header that clients send with each call, if there is a token.
    #[must_use]
    pub fn authorization(&self) -> Option<String> {
        let header = self.token.as_ref()?.header();
        header.to_str().ok().map(str::to_owned)
    }

    /// Whether it can connect to `https://` targets.
    #[must_use]
    pub const fn has_authorities(&self) -> bool {
        self.tls.is_some()
    }

    /// The TLS configuration for servers of another protocol, with the current content of the files. `None` without
    /// authorities.
    #[must_use]
    pub fn config_for(&self, protocol: &[u8]) -> Option<ClientConfig> {
        self.tls.as_ref().map(|tls| tls.config_for(protocol))
    }

    /// Connects to the first reachable address of the target, to transfer blocks between agents. Within TLS 1.3, only
    /// the server's first bytes show whether it accepts the client.
    ///
    /// # Errors
    /// As [`Dialer::check`], or if no connection is established in time.
    pub async fn open_for_blocks(
        &self,
        target: &str,
        within: Duration,
    ) -> Result<Stream, DialError> {
        let url = self.check(target)?;
        let malformed = || TargetError::Malformed(target.to_owned());
        let uri: Uri = url.parse().map_err(|_error| malformed())?;
        let host = uri.host().ok_or_else(malformed)?.trim_matches(['[', ']']).to_owned();
        let port = uri.port_u16().ok_or_else(malformed)?;
        let Some(tls) = self.tls.as_ref().filter(|_| is_tls(&url)) else {
            return Ok(open_first(&host, port, within, plain).await.map(Either::Left)?);
        };
        let name = ServerName::try_from(host.clone()).map_err(|_error| malformed())?;
        let config = Arc::new(tls.config_for(BLOCKS_ALPN));
        let open = |address| {
            let config = Arc::clone(&config);
            let name = name.clone();
            async move {
                let tcp = plain(address).await?;
                TlsConnector::from(config).connect(name, tcp).await
            }
        };
        let opened = open_first(&host, port, within, open).await?;
        Ok(Either::Right(Box::new(opened)))
    }

    /// A channel that connects at its first use, and reconnects after each loss of the connection.
    ///
    /// # Errors
    /// As [`Dialer::check`].
    pub fn lazy(&self, target: &str) -> Result<Channel, DialError> {
        self.lazy_within(target, CONNECT_TIMEOUT)
    }

    /// Like [`lazy`](Self::lazy), with another connect timeout.
    ///
    /// # Errors
    /// As [`Dialer::check`].
    pub fn lazy_within(
        &self,
        target: &str,
        connect_timeout: Duration,
    ) -> Result<Channel, DialError> {
        if let Some(server) = self.local.as_ref().filter(|_| target == IN_PROCESS) {
            return Ok(server.clone().into());
        }
        let (endpoint, dial) = self.endpoint(target, connect_timeout)?;
        let channel = match dial {
            Some(dial) => endpoint.connect_with_connector_lazy(dial),
            None => endpoint.connect_lazy(),
        };
        Ok(Channel::new(channel, self.token.clone()))
    }

    /// Connects within 5 s. Not for [`IN_PROCESS`].
    ///
    /// # Errors
    /// As [`Dialer::check`], or if the connection fails.
    pub async fn connect(&self, target: &str) -> Result<Channel, DialError> {
        let (endpoint, dial) = self.endpoint(target, CONNECT_TIMEOUT)?;
        let channel = match dial {
            Some(dial) => endpoint.connect_with_connector(dial).await,
            None => endpoint.connect().await,
        };
        let channel = channel.map_err(DialError::Transport)?;
        Ok(Channel::new(channel, self.token.clone()))
    }

    /// Describes how to connect to `target`. For a TLS target, also returns the name and configuration for the
    /// handshake.
    fn endpoint(
        &self,
        target: &str,
        connect_timeout: Duration,
    ) -> Result<(Endpoint, Option<Dial>), DialError> {
        let url = self.check(target)?;
        let malformed = || TargetError::Malformed(target.to_owned());
        let address = url.split_once("://").map_or(&*url, |(_scheme, address)| address);
        // The transport supports TLS in requests only with its own TLS feature, which another crate may enable. It
        // would then reject the scheme `https`.
        let endpoint = Endpoint::from_shared(format!("http://{address}"));
        let endpoint = endpoint.map_err(|_error| malformed())?;
        let endpoint = endpoint
            .connect_timeout(connect_timeout)
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .tcp_nodelay(true);
        let Some(tls) = self.tls.as_ref().filter(|_| is_tls(&url)) else {
            return Ok((endpoint, None));
        };
        let origin: Uri = url.parse().map_err(|_error| malformed())?;
        let host = origin.host().ok_or_else(malformed)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|_error| malformed())?;
        let at = (host, origin.port_u16().ok_or_else(malformed)?);
        let dial = Dial { at, name, within: connect_timeout, config: Arc::clone(&tls.config) };
        Ok((endpoint.origin(origin), Some(dial)))
    }
}

impl PartialEq for Dialer {
    fn eq(&self, other: &Self) -> bool {
        let files = |dialer: &Self| {
            let token = dialer.token.as_ref().map(|token| token.file.clone());
            let tls = dialer.tls.as_ref().map(|tls| tls.files.clone());
            (tls, token, dialer.local.is_some())
        };
        files(self) == files(other)
    }
}

impl Eq for Dialer {}

/// Builds the TLS configuration of clients: certificate authorities and, if configured, the process's own certificate.
fn config(files: &[Contents]) -> Result<Arc<ClientConfig>, TlsError> {
    let ca = files.first().ok_or_else(|| TlsError::without_file("tls-ca"))?;
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ca.unusable(error))?
        .with_root_certificates(ca.roots()?);
    let mut config = match (files.get(1), files.get(2)) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(cert.certificates()?, key.private_key()?)
            .map_err(|error| key.unusable_key(&error))?,
        (None, _) | (_, None) => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// Opens TLS connections to one server. Resolves its addresses and reads the files again for each connection.
#[derive(Debug, Clone)]
struct Dial {
    at: (String, u16),
    name: ServerName<'static>,
    within: Duration,
    config: Arc<Reloaded<Arc<ClientConfig>>>,
}

impl Service<Uri> for Dial {
    type Response = TokioIo<Opened>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Self::Response>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let Self { at: (host, port), name, within, .. } = self.clone();
        let config = self.config.get();
        Box::pin(async move {
            let open = |address| connect(address, name.clone(), &config);
            let opened = open_first(&host, port, within, open).await;
            opened.map(TokioIo::new)
        })
    }
}

async fn plain(address: SocketAddr) -> io::Result<TcpStream> {
    let tcp = TcpStream::connect(address)
        .await
        .map_err(|why| io::Error::new(why.kind(), format!("cannot connect to {address}: {why}")))?;
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

/// Connects to an address and performs the TLS handshake.
async fn connect(
    address: SocketAddr,
    name: ServerName<'static>,
    config: &Arc<ClientConfig>,
) -> io::Result<Opened> {
    let tcp = plain(address).await?;
    let opened = open_tls(tcp, name.clone(), config).await;
    opened.map_err(|why| {
        io::Error::new(why.kind(), format!("TLS with {} ({address}): {why}", name.to_str()))
    })
}

/// A connection whose server has accepted the client, as far as the server has shown.
struct Opened {
    stream: TlsStream<TcpStream>,
    /// The server's first bytes, not yet read.
    first: Vec<u8>,
}

/// Opens TLS on a connection. With TLS 1.3, a server rejects a client's certificate only after the handshake, so this
/// also waits briefly for the server's first bytes.
async fn open_tls(
    tcp: TcpStream,
    name: ServerName<'static>,
    config: &Arc<ClientConfig>,
) -> io::Result<Opened> {
    let mut stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await?;
    let mut first = Vec::new();
    if stream.get_ref().1.protocol_version() == Some(ProtocolVersion::TLSv1_3) {
        first.resize(FIRST_BYTES_MAX, 0);
        let read = match timeout(FIRST_BYTES_TIMEOUT, stream.read(&mut first)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok(read) => read?,
            Err(_late) => 0,
        };
        first.truncate(read);
    }
    Ok(Opened { stream, first })
}

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.first.len().min(buffer.remaining());
        let part: Vec<u8> = self.first.drain(..length).collect();
        buffer.put_slice(&part);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Opened {
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
