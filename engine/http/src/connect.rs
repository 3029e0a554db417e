//! Connections to engines, plain or over TLS.

use futures::TryFutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use kvasir_tls::Dialer;
use rustls::CertificateError;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

const PROTOCOL: &[u8] = b"http/1.1";

/// Connects to an engine by the scheme of its address. For each connection, it uses the current content of the TLS
/// files.
#[derive(Debug, Clone)]
pub(super) struct Connect {
    plain: HttpConnector,
    dialer: Dialer,
    within: Duration,
}

type BoxError = Box<dyn Error + Send + Sync>;

/// TLS with an engine fails. The text ends with the fix.
#[derive(Debug, thiserror::Error)]
#[error("{why}; {fix}")]
pub(super) struct TlsRefusal {
    why: String,
    fix: &'static str,
}

impl TlsRefusal {
    /// Finds what TLS says within the errors of a connection.
    fn find(error: &(dyn Error + 'static)) -> Option<Self> {
        let Some(tls) = error.downcast_ref::<rustls::Error>() else {
            return Self::find(error.downcast_ref::<io::Error>()?.get_ref()?);
        };
        let fix = if let rustls::Error::InvalidCertificate(why) = tls {
            if matches!(why, CertificateError::UnknownIssuer) {
                "state the authority that signed the engine's certificate with --tls-ca FILE"
            } else {
                "give the engine a valid certificate, and its URL a host of the certificate"
            }
        } else if matches!(tls, rustls::Error::InvalidMessage(_)) {
            "if the engine speaks no TLS, write http://"
        } else {
            "correct the engine's TLS"
        };
        Some(Self { why: tls.to_string(), fix })
    }
}

impl Connect {
    pub(super) fn new(dialer: Dialer, within: Duration) -> Self {
        let mut plain = HttpConnector::new();
        plain.enforce_http(false);
        plain.set_nodelay(true);
        plain.set_connect_timeout(Some(within));
        Self { plain, dialer, within }
    }
}

impl Service<Uri> for Connect {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.plain.poll_ready(context).map_err(BoxError::from)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { mut plain, dialer, within } = self.clone();
        if uri.scheme_str() != Some("https") {
            let opening = plain.call(uri).map_err(BoxError::from);
            return Box::pin(opening.map_ok(MaybeHttpsStream::Http));
        }
        Box::pin(async move {
            let config = dialer.config_for(PROTOCOL).ok_or_else(|| TlsRefusal {
                why: "https:// needs the certificate of the authority that signed the engine's"
                    .to_owned(),
                fix: "state it with --tls-ca FILE",
            })?;
            let opening = HttpsConnector::from((plain, Arc::new(config))).call(uri);
            let opened = timeout(within, opening).await.map_err(|_late| {
                io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {within:?}"))
            })?;
            opened.map_err(|error| match TlsRefusal::find(&*error) {
                Some(refusal) => refusal.into(),
                None => error,
            })
        })
    }
}
