//! Connections to engines, plain or over TLS.

use futures::TryFutureExt;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use kvasir_tls::Dialer;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tower::Service;

const PROTOCOL: &[u8] = b"http/1.1";
const NO_AUTHORITY: &str =
    "https:// needs the certificate of the authority that signed the engine's (tls-ca)";

/// Connects to an engine by the scheme of its address. For each connection, it uses the current content of the TLS
/// files.
#[derive(Debug, Clone)]
pub(super) struct Connect {
    plain: HttpConnector,
    dialer: Dialer,
    within: Duration,
}

type BoxError = Box<dyn Error + Send + Sync>;

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
            let config = dialer.config_for(PROTOCOL).ok_or(NO_AUTHORITY)?;
            let opening = HttpsConnector::from((plain, Arc::new(config))).call(uri);
            timeout(within, opening).await.map_err(|_late| {
                io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {within:?}"))
            })?
        })
    }
}
