use super::BoxError;
use crate::access::audit;
use crate::net::{Limit, Share};
use crate::telemetry::{CONTENT_TYPE, Metrics, Readiness};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{CONTENT_TYPE as CONTENT_TYPE_HEADER, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use kvasir_access::{Principal, Role};
use prometheus_client::encoding::text;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// Maximum number of `/metrics` texts in memory. While clients still read that many, further clients get the last text
/// again.
const TEXTS_MAX: usize = 4;

type Page = Response<Full<Bytes>>;

/// Maximum length of a client's text.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Timeout for receiving a client's text.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Computes the answer of a page to a GET (`None`) or to the text of a POST. An error is the client's fault.
type Answer = dyn Fn(Option<&str>) -> Result<String, String> + Send + Sync;

/// A page of one program, in JSON.
#[derive(Clone)]
pub struct OwnPage {
    path: &'static str,
    answer: Arc<Answer>,
}

impl OwnPage {
    /// Creates a page at `path`, such as `/busy_threshold`.
    pub fn new(
        path: &'static str,
        answer: impl Fn(Option<&str>) -> Result<String, String> + Send + Sync + 'static,
    ) -> Self {
        Self { path, answer: Arc::new(answer) }
    }
}

impl fmt::Debug for OwnPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OwnPage").field(&self.path).finish()
    }
}

/// The pages that a client may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sees {
    /// Every page.
    All,
    /// Only health, because the caller's identity lacks rights: other pages show data of all tenants.
    Denied,
    /// Only health, because the caller is unknown.
    Health,
}

impl Sees {
    /// The pages that a caller may see; `None` for an unknown caller.
    fn for_caller(principal: Option<&Principal>) -> Self {
        match principal {
            None => Self::Health,
            Some(caller) if caller.has(Role::Query) && caller.sees_all() => Self::All,
            Some(_) => Self::Denied,
        }
    }
}

/// The pages of the side port. A program may also serve them on another port.
#[derive(Debug)]
pub struct Pages {
    own: Vec<OwnPage>,
    shown: Arc<Shown>,
    readiness: Readiness,
    texts: Limit,
    /// Number of texts begun so far.
    begun: AtomicU64,
    /// Locked while a text is written, so that one text is written at a time.
    last: Mutex<Last>,
}

/// The metrics: first the port's own, then the server's, which end with the end marker.
#[derive(Debug)]
struct Shown {
    port: Registry,
    server: Metrics,
}

/// The latest text of `/metrics`.
#[derive(Debug, Default)]
struct Last {
    number: u64,
    text: Option<Bytes>,
}

/// A text that counts against the limit until it is dropped.
struct Text {
    text: String,
    _share: Share,
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Shown {
    fn encode(&self) -> Result<String, fmt::Error> {
        let mut shown = String::new();
        text::encode_registry(&mut shown, &self.port)?;
        shown.push_str(&self.server.encode()?);
        Ok(shown)
    }
}

impl Pages {
    /// Creates the pages.
    #[must_use]
    pub fn new(server: Metrics, readiness: Readiness, own: Vec<OwnPage>) -> Self {
        Self {
            own,
            shown: Arc::new(Shown { port: Registry::default(), server }),
            readiness,
            texts: Limit::new(TEXTS_MAX, Gauge::default()),
            begun: AtomicU64::new(0),
            last: Mutex::default(),
        }
    }

    /// Adds the port's own metrics.
    pub(super) fn set_port_metrics(&mut self, port: Registry) {
        let server = self.shown.server.clone();
        self.shown = Arc::new(Shown { port, server });
    }

    /// Answers a request of the identity `caller`, or of an unknown caller (`None`), who sees only health.
    pub async fn answer<B>(&self, request: Request<B>, caller: Option<&Principal>) -> Page
    where
        B: Body<Error: Into<BoxError>>,
    {
        let path = request.uri().path();
        let sees = Sees::for_caller(caller);
        let is_health = ["/livez", "/readyz"].contains(&path);
        match sees {
            Sees::Health if !is_health => {
                let text = b"needs the token or the client certificate of an identity; with tls-client-ca, every \
                    caller needs a client certificate\n";
                return page(StatusCode::UNAUTHORIZED, Bytes::from_static(text));
            }
            Sees::Denied if !is_health => {
                let text = b"needs the role query or admin, with all tenants and models\n";
                return page(StatusCode::FORBIDDEN, Bytes::from_static(text));
            }
            Sees::Health | Sees::Denied | Sees::All => {}
        }
        if let Some(own) = self.own.iter().find(|own| own.path == path) {
            let reads = [Method::GET, Method::HEAD].contains(request.method());
            if !reads {
                let Some(admin) = caller.filter(|caller| caller.has(Role::Admin)) else {
                    let text = b"needs the role admin\n";
                    return page(StatusCode::FORBIDDEN, Bytes::from_static(text));
                };
                if *request.method() == Method::POST {
                    audit(admin, "POST", &own.path);
                }
            }
            return answer_own(own, request).await;
        }
        if !["/metrics", "/livez", "/readyz"].contains(&path) {
            return page(StatusCode::NOT_FOUND, Bytes::new());
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return page(StatusCode::METHOD_NOT_ALLOWED, Bytes::new());
        }
        match path {
            "/metrics" => self.metrics().await,
            "/readyz" => self.readiness(sees).await,
            _ => page(StatusCode::OK, Bytes::from_static(b"ok\n")),
        }
    }

    /// Returns the page of all metrics, as text.
    async fn metrics(&self) -> Page {
        match self.text().await {
            Ok(text) => {
                let mut page = page(StatusCode::OK, text);
                page.headers_mut()
                    .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static(CONTENT_TYPE));
                page
            }
            Err(error) => {
                tracing::error!(%error, "the metrics cannot be written as text");
                page(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new())
            }
        }
    }

    /// Returns a text that was begun after this call. All waiting callers share it.
    async fn text(&self) -> Result<Bytes, fmt::Error> {
        let begun = self.begun.load(Ordering::Relaxed);
        let mut last = self.last.lock().await;
        if let Some(text) = last.text.as_ref().filter(|_| last.number > begun) {
            return Ok(text.clone());
        }
        let share = match (self.texts.take(1), &last.text) {
            (Some(share), _) => share,
            (None, Some(text)) => return Ok(text.clone()),
            (None, None) => return Err(fmt::Error),
        };
        last.number = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
        let shown = Arc::clone(&self.shown);
        let text = spawn_blocking(move || shown.encode()).await;
        // The task fails only if it panics.
        let text = text.unwrap_or(Err(fmt::Error))?;
        let text = Bytes::from_owner(Text { text, _share: share });
        last.text = Some(text.clone());
        Ok(text)
    }

    /// Returns the page of readiness: 200 if ready, else 503. Only callers with full permission see reasons and
    /// problems.
    async fn readiness(&self, sees: Sees) -> Page {
        let readiness = self.readiness.clone();
        let read = spawn_blocking(move || (readiness.reasons(), readiness.problems())).await;
        let Ok((reasons, problems)) = read else {
            return page(StatusCode::INTERNAL_SERVER_ERROR, Bytes::new());
        };
        let (status, mut text) = if reasons.is_empty() {
            (StatusCode::OK, "ready\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", reasons.join("; ")))
        };
        if sees != Sees::All {
            // Reasons and problems contain names of workers and servers, so only authorised callers see them.
            let word: &'static [u8] = if reasons.is_empty() { b"ready\n" } else { b"not ready\n" };
            return page(status, Bytes::from_static(word));
        }
        for problem in problems {
            text.push_str(&format!("not well: {problem}\n"));
        }
        page(status, Bytes::from(text))
    }
}

/// Answers a request for a page of the program: GET reads, POST sends a text of at most [`REQUEST_BYTES_MAX`].
async fn answer_own<B: Body<Error: Into<BoxError>>>(own: &OwnPage, request: Request<B>) -> Page {
    let sent = match *request.method() {
        Method::GET | Method::HEAD => None,
        Method::POST => {
            let body = Limited::new(request.into_body(), REQUEST_BYTES_MAX).collect();
            let Ok(Ok(body)) = timeout(REQUEST_TIMEOUT, body).await else {
                let text =
                    format!("the text is incomplete, or longer than {REQUEST_BYTES_MAX} bytes\n");
                return page(StatusCode::BAD_REQUEST, Bytes::from(text));
            };
            Some(body.to_bytes())
        }
        _ => return page(StatusCode::METHOD_NOT_ALLOWED, Bytes::new()),
    };
    let text = sent.as_deref().map(str::from_utf8).transpose();
    let answer = text
        .map_err(|_error| "the text is not UTF-8".to_owned())
        .and_then(|text| (own.answer)(text));
    match answer {
        Ok(json) => {
            let mut page = page(StatusCode::OK, Bytes::from(json + "\n"));
            page.headers_mut()
                .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static("application/json"));
            page
        }
        Err(why) => page(StatusCode::BAD_REQUEST, Bytes::from(why + "\n")),
    }
}

fn page(status: StatusCode, text: Bytes) -> Page {
    let mut page = Response::new(Full::new(text));
    *page.status_mut() = status;
    page.headers_mut()
        .insert(CONTENT_TYPE_HEADER, HeaderValue::from_static("text/plain; charset=utf-8"));
    page
}
