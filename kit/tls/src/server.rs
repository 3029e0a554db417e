//! TLS of a port: its certificate, and the certificates that it requires of clients.

use crate::TlsError;
use crate::alpn::BLOCKS_ALPN;
use crate::pem::{Contents, Source};
use crate::reload::Reloaded;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// TLS files of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, with intermediate certificates.
    pub cert: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
    /// Authorities of clients. If not set: clients need no certificate.
    pub client_ca: Option<PathBuf>,
    /// Revocation lists of client certificates. Then every client authority needs a list: a client whose authority
    /// lacks one is rejected.
    pub client_crl: Option<PathBuf>,
}

/// Protocol within TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC over HTTP/2. Where certificates are required, clients without one are rejected.
    Grpc,
    /// HTTP/1.1. Clients without a certificate are accepted; the port decides which pages they see.
    Http1,
    /// Blocks between agents ([`BLOCKS_ALPN`]). Where certificates are required, clients without one are rejected.
    Blocks,
}

/// TLS of a server's ports. Clones share the files.
#[derive(Debug, Clone)]
pub struct ServerTls {
    files: ServerFiles,
    configs: Arc<Reloaded<Configs>>,
}

struct Configs {
    grpc: Arc<ServerConfig>,
    http1: Arc<ServerConfig>,
    blocks: Arc<ServerConfig>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// If a file is invalid.
    pub fn open(files: ServerFiles) -> Result<Self, TlsError> {
        let source = |option, path: &PathBuf| Source { option, path: path.clone() };
        let mut sources = vec![source("tls-cert", &files.cert), source("tls-key", &files.key)];
        sources.extend(files.client_ca.iter().map(|path| source("tls-client-ca", path)));
        sources.extend(files.client_crl.iter().map(|path| source("tls-client-crl", path)));
        let configs = Arc::new(Reloaded::open(sources, configs)?);
        Ok(Self { files, configs })
    }

    /// A TLS acceptor with the current files.
    #[must_use]
    pub fn acceptor(&self, protocol: Protocol) -> TlsAcceptor {
        let configs = self.configs.get();
        TlsAcceptor::from(Arc::clone(match protocol {
            Protocol::Grpc => &configs.grpc,
            Protocol::Http1 => &configs.http1,
            Protocol::Blocks => &configs.blocks,
        }))
    }

    /// Whether clients need a certificate.
    #[must_use]
    pub const fn demands_certificates(&self) -> bool {
        self.files.client_ca.is_some()
    }
}

impl PartialEq for ServerTls {
    fn eq(&self, other: &Self) -> bool {
        self.files == other.files
    }
}

impl Eq for ServerTls {}

/// Builds the TLS configurations of the server, one per protocol.
fn configs(files: &[Contents]) -> Result<Configs, TlsError> {
    let provider = Arc::new(ring::default_provider());
    let cert = files.first().ok_or_else(|| TlsError::without_file("tls-cert"))?;
    let key = files.get(1).ok_or_else(|| TlsError::without_file("tls-key"))?;
    let client_ca = files.get(2);
    let client_crl = files.get(3);
    let config = |protocol: Protocol| {
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| cert.unusable(error))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                builder.with_client_cert_verifier(verifier(&provider, ca, client_crl, protocol)?)
            }
        };
        let mut config = builder
            .with_single_cert(cert.certificates()?, key.private_key()?)
            .map_err(|error| key.unusable_key(&error))?;
        config.alpn_protocols = vec![match protocol {
            Protocol::Grpc => b"h2".to_vec(),
            Protocol::Http1 => b"http/1.1".to_vec(),
            Protocol::Blocks => BLOCKS_ALPN.to_vec(),
        }];
        if client_ca.is_some() {
            // A resumed session is not verified again, so a client with an expired or revoked certificate could return.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Arc::new(config))
    };
    Ok(Configs {
        grpc: config(Protocol::Grpc)?,
        http1: config(Protocol::Http1)?,
        blocks: config(Protocol::Blocks)?,
    })
}

/// Creates the verifier of clients' certificates. Clients of the HTTP port may have none.
fn verifier(
    provider: &Arc<CryptoProvider>,
    ca: &Contents,
    crl: Option<&Contents>,
    protocol: Protocol,
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(ca.roots()?);
    let mut builder = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(provider));
    if let Some(crl) = crl {
        builder = builder.with_crls(crl.revocation_lists()?);
    }
    if protocol == Protocol::Http1 {
        builder = builder.allow_unauthenticated();
    }
    builder.build().map_err(|error| crl.unwrap_or(ca).unusable(error))
}
