//! gRPC channels that send a bearer token and the trace context with each call.

use crate::TlsError;
use crate::again::Repeatable;
use crate::pem::{Contents, Source};
use crate::reload::Reloaded;
use futures::future::BoxFuture;
use kvasir_trace::inject;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::http::header::AUTHORIZATION;
use tonic::codegen::http::{HeaderValue, Request, Response};
use tonic::transport;
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

/// Maximum length of a token, in bytes.
const TOKEN_BYTES_MAX: usize = 4 << 10;

/// A token in a file, reloaded when the file changes.
#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) file: PathBuf,
    header: Arc<Reloaded<HeaderValue>>,
}

impl Token {
    pub(crate) fn open(file: PathBuf) -> Result<Self, TlsError> {
        let source = Source { option: "token-file", path: file.clone() };
        let header = Reloaded::open(vec![source], |contents| {
            // The file is the only source.
            contents.first().map_or_else(|| Ok(HeaderValue::from_static("")), header)
        })?;
        Ok(Self { file, header: Arc::new(header) })
    }

    /// The current token, as a header.
    pub(crate) fn header(&self) -> HeaderValue {
        HeaderValue::clone(&self.header.get())
    }
}

/// Converts the content of the token file to a header. Errors contain nothing of the file.
fn header(contents: &Contents) -> Result<HeaderValue, TlsError> {
    let token = contents.text()?.trim();
    if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
        let text = format!("must have one token of 1 to {TOKEN_BYTES_MAX} bytes");
        return Err(contents.unusable(text));
    }
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(contents.unusable("must have one token of visible ASCII characters"));
    }
    let header = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut header = header.map_err(|_error| contents.unusable("is no token"))?;
    header.set_sensitive(true);
    Ok(header)
}

/// A connection to a server that sends the token of its [`Dialer`](crate::Dialer) with each call, and the caller's trace
/// context. Calls that the server
/// rejects before they begin, because the connection is old, are retried on another one. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Channel(Route);

/// A server in this process. Calls reach it as function calls, without a connection.
pub type LocalServer = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// The way of a call to its server.
#[derive(Debug, Clone)]
enum Route {
    Remote(transport::Channel, Option<Token>),
    Local(LocalServer),
}

impl Channel {
    pub(crate) const fn new(transport: transport::Channel, token: Option<Token>) -> Self {
        Self(Route::Remote(transport, token))
    }

    /// The bare connection, without token and retries. `None` for a server in this process.
    #[must_use]
    pub fn into_transport(self) -> Option<transport::Channel> {
        match self.0 {
            Route::Remote(transport, _token) => Some(transport),
            Route::Local(_) => None,
        }
    }
}

impl From<transport::Channel> for Channel {
    /// A channel without a token.
    fn from(transport: transport::Channel) -> Self {
        Self::new(transport, None)
    }
}

impl From<LocalServer> for Channel {
    fn from(server: LocalServer) -> Self {
        Self(Route::Local(server))
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = transport::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, transport::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), transport::Error>> {
        match &mut self.0 {
            Route::Remote(transport, _token) => Service::poll_ready(transport, context),
            // Each call waits for the server itself.
            Route::Local(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        match &mut self.0 {
            Route::Remote(transport, token) => {
                if let Some(token) = token {
                    request.headers_mut().insert(AUTHORIZATION, token.header());
                }
                inject(request.headers_mut());
                let (request, repeatable) = Repeatable::new(request);
                let first = Service::call(transport, request);
                Box::pin(repeatable.answer(transport.clone(), first))
            }
            Route::Local(server) => {
                let answer = server.clone().oneshot(request);
                Box::pin(async move { answer.await.map_err(|never| match never {}) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_token_is_one_visible_word_and_no_error_shows_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let read = |text: &[u8]| {
            fs::write(&file, text).expect("a file");
            Token::open(file.clone()).map(|token| token.header.get())
        };
        let token = read(b" s3cret-42\n").expect("a token");
        assert_eq!(token.to_str().ok(), Some("Bearer s3cret-42"));
        assert!(!format!("{token:?}").contains("s3cret"), "{token:?}");
        for text in [&b""[..], b"\n", b"s3cret two", b"s3cret\x07", b"s3cret\xff", &[b's'; 4097]] {
            let error = read(text).expect_err("no token").to_string();
            assert!(error.contains("token-file") && !error.contains("s3"), "{error}");
        }
        fs::remove_file(&file).expect("a file");
        assert!(Token::open(file).is_err());
    }
}
