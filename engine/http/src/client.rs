//! Requests to engines and their answers.

use crate::connect::{Connect, TlsRefusal};
use crate::keys::EngineKeys;
use futures::{Stream, TryStreamExt};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use kvasir_tls::Dialer;
use kvasir_trace::{fail, inject};
use std::time::Duration;
use tracing::Span;

/// Maximum size of an answer without streaming, in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// Time after which idle connections are closed: before engines close them.
const POOL_IDLE: Duration = Duration::from_secs(4);
/// Maximum idle connections to one engine.
const POOL_IDLE_MAX: usize = 64;
/// Header that names the rank for a request, as vLLM reads it.
const RANK_HEADER: &str = "x-data-parallel-rank";
/// Header with the request id, equal for both halves of a disaggregated request.
const REQUEST_ID_HEADER: &str = "x-request-id";

/// HTTP client of engines. Cheap to clone: clones share connections.
#[derive(Debug, Clone)]
pub struct EngineClient {
    client: Client<Connect, Full<Bytes>>,
    keys: EngineKeys,
}

/// A request to an engine.
#[derive(Debug)]
pub struct Sent<'a> {
    /// Path of the endpoint.
    pub path: &'a str,
    /// JSON body.
    pub body: Bytes,
    /// Rank that should serve the request, if the engine has several.
    pub rank: Option<u32>,
    /// Request id.
    pub request_id: Option<&'a str>,
}

/// An answer whose body has not been read yet.
#[derive(Debug)]
pub struct Answer {
    response: Response<Incoming>,
    /// Span of the request, until the end of the body.
    span: Span,
}

/// A complete answer.
#[derive(Debug, Clone)]
pub struct Whole {
    /// Status of the answer.
    pub status: StatusCode,
    /// Content type of the answer.
    pub content_type: Option<HeaderValue>,
    /// Body of the answer.
    pub body: Bytes,
}

/// Why an engine gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The engine cannot be reached, or it closed the connection.
    #[error("{0}")]
    Connection(String),
    /// TLS with the engine fails. The text ends with the fix.
    #[error("{0}")]
    Tls(String),
    /// The answer broke off, or is too long.
    #[error("the answer broke off: {0}")]
    Body(String),
    /// The request cannot be built because of an invalid address.
    #[error("the request cannot be written: {0}")]
    Request(#[from] hyper::http::Error),
}

impl EngineClient {
    /// Creates a client without connections. `dialer` has the authorities of engines at `https://` addresses, `within` is
    /// the maximum wait for a connection, and `keys` are sent to the engines.
    #[must_use]
    pub fn new(dialer: Dialer, within: Duration, keys: EngineKeys) -> Self {
        let connector = Connect::new(dialer, within);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE)
            .pool_max_idle_per_host(POOL_IDLE_MAX)
            .build(connector);
        Self { client, keys }
    }

    /// Sends a request. Dropping the future, or the answer, cancels the request at the engine.
    ///
    /// # Errors
    /// If the engine cannot be reached or closes the connection.
    pub async fn send(&self, to: &Uri, sent: Sent<'_>) -> Result<Answer, EngineError> {
        let Sent { path, body, rank, request_id } = sent;
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(page(to, path))
            .header(CONTENT_TYPE, "application/json");
        if let Some(rank) = rank {
            request = request.header(RANK_HEADER, rank);
        }
        if let Some(id) = request_id {
            request = request.header(REQUEST_ID_HEADER, id);
        }
        self.request(request.body(Full::new(body))?).await
    }

    /// Sends a GET request.
    ///
    /// # Errors
    /// If the engine cannot be reached or closes the connection.
    pub async fn get(&self, from: &Uri, path: &str) -> Result<Answer, EngineError> {
        self.request(Request::get(page(from, path)).body(Full::default())?).await
    }

    /// Sends a request, with the key of its engine. The engine continues the current trace.
    async fn request(&self, mut request: Request<Full<Bytes>>) -> Result<Answer, EngineError> {
        inject(request.headers_mut());
        if let Some(key) = self.keys.header(request.uri()) {
            request.headers_mut().insert(AUTHORIZATION, key);
        }
        let answer = self.client.request(request).await;
        let span = Span::current();
        if let Err(error) = &answer {
            fail(&span, error);
        }
        answer.map(|response| Answer { response, span }).map_err(|error| {
            let cause = std::error::Error::source(&error);
            let text = causes(cause).unwrap_or_else(|| error.to_string());
            let is_tls = cause.is_some_and(|cause| cause.is::<TlsRefusal>());
            if is_tls { EngineError::Tls(text) } else { EngineError::Connection(text) }
        })
    }
}

/// An error and its causes as one line: the outer ones alone do not say why.
fn causes(first: Option<&(dyn std::error::Error + 'static)>) -> Option<String> {
    let errors = std::iter::successors(first, |error| error.source());
    let texts: Vec<_> = errors.map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(": "))
}

fn page(engine: &Uri, path: &str) -> String {
    format!("{}{path}", engine.to_string().trim_end_matches('/'))
}

impl Answer {
    /// Status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    /// Reads the complete answer.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole(self) -> Result<Whole, EngineError> {
        self.whole_within(ANSWER_BYTES_MAX).await
    }

    /// Reads the complete answer, of at most `bytes_max` bytes.
    ///
    /// # Errors
    /// If it breaks off or is too long.
    pub async fn whole_within(self, bytes_max: usize) -> Result<Whole, EngineError> {
        let Self { response, span: _until_the_end } = self;
        let (head, body) = response.into_parts();
        let collected = Limited::new(body, bytes_max).collect().await;
        let body = collected.map_err(|error| EngineError::Body(error.to_string()))?.to_bytes();
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        Ok(Whole { status: head.status, content_type, body })
    }

    /// The body as a stream of chunks.
    pub fn pieces(self) -> impl Stream<Item = Result<Bytes, EngineError>> + Send + Unpin + use<> {
        let Self { response, span } = self;
        let stream = response.into_body().into_data_stream();
        TryStreamExt::map_err(stream, move |error| {
            fail(&span, &error);
            EngineError::Body(error.to_string())
        })
    }
}
