//! Servers with TLS, and clients of theirs.

use anyhow::{Context, Result, bail, ensure};
use kvasir_proto::pb::ListWorkersRequest;
use kvasir_proto::pb::indexer_client::IndexerClient;
use kvasir_sim::server::Server;
use kvasir_tests::authority::{Authority, Paper, Validity};
use kvasir_tls::{ClientFiles, Dialer, Identity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, SupportedProtocolVersion};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(30);
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

pub fn anywhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Flags of a program that has this certificate.
pub fn shows(paper: &Paper) -> Vec<String> {
    ["--tls-cert", text(&paper.cert), "--tls-key", text(&paper.key)].map(str::to_owned).to_vec()
}

/// Flags of a program that demands certificates of this authority, and trusts it.
pub fn demands(authority: &Authority) -> Vec<String> {
    let ca = authority.cert();
    ["--tls-client-ca", text(&ca), "--tls-ca", text(&ca)].map(str::to_owned).to_vec()
}

pub fn flags(parts: &[Vec<String>]) -> Vec<String> {
    parts.concat()
}

pub async fn index(flags: &[String]) -> Result<Server> {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Server::start_with(anywhere(), anywhere(), &flags).await
}

pub fn dialer(authority: &Authority, paper: Option<&Paper>) -> Result<Dialer> {
    let identity = paper.map(|at| Identity { cert: at.cert.clone(), key: at.key.clone() });
    Ok(Dialer::open(ClientFiles { ca: authority.cert(), identity })?)
}

pub fn https(server: &Server) -> String {
    format!("https://{}", server.addresses.grpc)
}

/// Connects to an index and asks it something.
pub async fn ask(dialer: &Dialer, url: &str) -> Result<usize> {
    let mut client = IndexerClient::new(dialer.connect(url).await?);
    let listed = timeout(PATIENCE, client.list_workers(ListWorkersRequest::default())).await??;
    Ok(listed.into_inner().workers.len())
}

/// A client of rustls, of some version of TLS.
pub fn client(
    authority: &Authority,
    paper: Option<&Paper>,
    versions: &[&'static SupportedProtocolVersion],
    protocol: &[u8],
) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)?
        .with_root_certificates(roots);
    let mut config = match paper {
        None => builder.with_no_client_auth(),
        Some(paper) => {
            let cert = CertificateDer::from_pem_file(&paper.cert)?;
            let key = PrivateKeyDer::from_pem_file(&paper.key)?;
            builder.with_client_auth_cert(vec![cert], key)?
        }
    };
    config.alpn_protocols = vec![protocol.to_vec()];
    Ok(Arc::new(config))
}

pub async fn handshake(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost")?;
    Ok(TlsConnector::from(Arc::clone(config)).connect(name, tcp).await?)
}

/// Shakes hands and waits for the first byte of the server, which a gRPC server sends to those whom it lets in.
pub async fn knock(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let knocked = timeout(PATIENCE, async {
        let mut stream = handshake(address, config).await?;
        let mut byte = [0];
        ensure!(stream.read(&mut byte).await? == 1, "the server closed the connection");
        Ok(stream)
    });
    knocked.await.context("the server says nothing")?
}

/// Status and text of a page of a side port with TLS.
pub async fn page(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
    path: &str,
) -> Result<(u16, String)> {
    let read = timeout(PATIENCE, async {
        let mut stream = handshake(address, config).await?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, anyhow::Error>(answer)
    });
    let answer = read.await.context("the page does not come")??;
    let status = answer.split(' ').nth(1).context("a status")?.parse()?;
    let (_head, text) = answer.split_once("\r\n\r\n").context("a head")?;
    Ok((status, text.to_owned()))
}

/// The sum of a metric's samples that have a text.
pub async fn metric(
    server: &Server,
    config: &Arc<ClientConfig>,
    name: &str,
    labels: &str,
) -> Result<f64> {
    let (_status, text) = page(server.addresses.http, config, "/metrics").await?;
    let samples = text.lines().filter(|at| at.starts_with(name) && at.contains(labels));
    let values = samples.map(|line| line.rsplit(' ').next().unwrap_or_default().parse::<f64>());
    Ok(values.sum::<Result<f64, _>>()?)
}

/// Polls until a condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await? {
        if Instant::now() > deadline {
            bail!("not within {PATIENCE:?}: {what}");
        }
        sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

/// An authority, its certificate of a server (number 1), and one of a client (number 2).
pub fn papers() -> Result<(Authority, Paper, Paper)> {
    let authority = Authority::new("kvasir")?;
    let server = authority.sign(1, Validity::Valid)?;
    let client = authority.sign(2, Validity::Valid)?;
    Ok((authority, server, client))
}
