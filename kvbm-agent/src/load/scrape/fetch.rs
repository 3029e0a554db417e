//! One GET over a connection of its own.

use super::{FetchError, ScrapeConfig, UrlError};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{Builder, SendRequest};
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderValue, InvalidHeaderValue};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use std::pin::pin;
use tokio::net::TcpStream;
use tokio::select;
use tokio::time::timeout;

/// Most bytes of an answer's head.
const HEAD_BYTES_MAX: usize = 64 << 10;
/// Path where the URL has none.
const PATH: &str = "/metrics";

/// Where metrics are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Host and port.
    address: String,
    host: HeaderValue,
    /// Without them.
    path: Uri,
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let malformed = |reason: String| UrlError::Malformed { url: url.to_owned(), reason };
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let parsed = whole.parse::<Uri>().map_err(|error| malformed(error.to_string()))?;
        let authority = parsed.authority().filter(|_| parsed.scheme_str() == Some("http"));
        let authority = authority.map(|at| at.as_str().to_owned()).filter(|at| !at.contains('@'));
        let address = authority.filter(|_| parsed.port_u16().is_some());
        let address = address.ok_or_else(|| UrlError::Unsupported(url.to_owned()))?;
        let host =
            address.parse().map_err(|error: InvalidHeaderValue| malformed(error.to_string()))?;
        let path = parsed.path_and_query().filter(|path| path.as_str() != "/");
        let path = path.cloned().map_or_else(|| Uri::from_static(PATH), Uri::from);
        Ok(Self { address, host, path })
    }

    fn request(&self) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        request
    }
}

/// Fetches a body.
pub(super) async fn fetch(target: &Target, config: &ScrapeConfig) -> Result<Bytes, FetchError> {
    let fetched = timeout(config.timeout, exchange(target, config.body_bytes_max)).await;
    fetched.unwrap_or_else(|_late| Err(FetchError::TooSlow(config.timeout)))
}

async fn exchange(target: &Target, body_bytes_max: usize) -> Result<Bytes, FetchError> {
    let stream = TcpStream::connect(&target.address).await.map_err(FetchError::Connect)?;
    let mut builder = Builder::new();
    builder.max_buf_size(HEAD_BYTES_MAX);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await?;
    let (mut answer, connection) = (pin!(ask(sender, target, body_bytes_max)), pin!(connection));
    select! {
        biased;
        answer = &mut answer => answer,
        // What was read before the connection ended is there.
        _ended = connection => answer.await,
    }
}

async fn ask(
    mut sender: SendRequest<Empty<Bytes>>,
    target: &Target,
    body_bytes_max: usize,
) -> Result<Bytes, FetchError> {
    let response = sender.send_request(target.request()).await?;
    if response.status() != StatusCode::OK {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = Limited::new(response.into_body(), body_bytes_max).collect().await;
    let body = body.map_err(|error| {
        if error.is::<LengthLimitError>() {
            FetchError::TooLarge { limit: body_bytes_max }
        } else {
            FetchError::Body(error.to_string())
        }
    })?;
    Ok(body.to_bytes())
}

#[cfg(test)]
mod tests {
    use super::Target;

    #[test]
    fn urls_say_where_metrics_are() {
        for (url, address, path) in [
            ("http://127.0.0.1:8000", "127.0.0.1:8000", "/metrics"),
            ("http://engine:8000/", "engine:8000", "/metrics"),
            ("engine:8000", "engine:8000", "/metrics"),
            ("engine:8000/x", "engine:8000", "/x"),
            ("http://[::1]:80/x/metrics?a=b", "[::1]:80", "/x/metrics?a=b"),
        ] {
            let target = Target::parse(url).expect(url);
            assert_eq!(
                (target.address.as_str(), target.path.to_string().as_str()),
                (address, path)
            );
        }
        for url in [
            "",
            "engine",
            "http://engine",
            "https://engine:1",
            "http://u:p@engine:1",
            "http://a b:1",
        ] {
            Target::parse(url).expect_err(url);
        }
    }
}
