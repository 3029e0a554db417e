//! Address of an engine's metrics.

use super::UrlError;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderValue, InvalidHeaderValue};
use hyper::{Request, Uri};

/// Default path if the URL has none.
const PATH: &str = "/metrics";

/// Parsed address of a metrics page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Host and port.
    pub(super) address: String,
    host: HeaderValue,
    /// Path of the page, without host and port.
    path: Uri,
}

impl Target {
    /// Parses a URL or `host:port`. The path is optional if it is `/metrics`.
    ///
    /// # Errors
    /// If the URL is malformed or unsupported.
    pub fn parse(url: &str) -> Result<Self, UrlError> {
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

    pub(super) fn request(&self) -> Request<Empty<Bytes>> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.path.clone();
        let headers = request.headers_mut();
        headers.insert(HOST, self.host.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("text/plain"));
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
        request
    }
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
