//! The HTTP port: OpenAI's endpoints over HTTP/1, with limits on connections, requests and bodies. Also serves
//! `/health` and the side port's pages, where load generators expect them.

use crate::error::ApiError;
use crate::gateway::Gateway;
use crate::request::{ApiRequest, Kind};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Path, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use http_body_util::BodyExt;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, StatusCode, Uri};
use hyper_util::service::TowerToHyperService;
use kvasir_access::{Principal, Role};
use kvasir_process::access::Guard;
use kvasir_process::http::{Pages, serve_connection};
use kvasir_process::net::{
    ConnectionLimits, ConnectionMetrics, LimitedListener, Patience, Peer, PeerLimits, Reasons,
};
use kvasir_process::quota::Quota;
use kvasir_process::shares::{LargestShare, SharedLimit, TakenShare};
use kvasir_process::telemetry::{Readiness, TracedBody, record_status, request_span};
use kvasir_process::tls::{Accepting, warn_if_open};
use kvasir_tls::{Protocol, ServerTls};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::select;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Timeout for the head of a request, on a new or a kept-alive connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(75);
/// Timeouts of connections. A client sends no data while it receives its answer, so the idle timeout is very long.
const PATIENCE: Patience = Patience {
    first_byte: Duration::from_secs(10),
    idle: Duration::from_secs(86_400),
    untaken: Duration::from_secs(60),
};

/// Maximum bytes of the bodies of all active requests, at most half of them from one identity.
const BODIES_BYTES_MAX: usize = 1 << 30;
/// Error message when this limit is reached.
const BODIES_FULL: &str = "the bodies of the requests under way are too large together";

/// Health page, without authentication: whether requests are served. Engines have the same page.
const HEALTH: &str = "/health";
/// Pages of the side port that this port also serves.
const SIDE_PAGES: [&str; 2] = ["/metrics", "/busy_threshold"];

/// Limits of the port.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Maximum connections.
    pub connections: usize,
    /// Maximum concurrent requests.
    pub in_flight: usize,
    /// Maximum size of a request's body in bytes.
    pub body_bytes: usize,
    /// Maximum wait for a request's body.
    pub body_timeout: Duration,
}

/// Pages that the port serves beside the API.
#[derive(Debug, Clone)]
pub struct SidePages {
    /// The pages of the side port.
    pub pages: Arc<Pages>,
    /// State that `/health` reports.
    pub readiness: Readiness,
}

#[derive(Debug, Clone)]
struct Server {
    gateway: Arc<Gateway>,
    side: SidePages,
    limits: ServerLimits,
    places: Arc<Semaphore>,
    bodies: Arc<SharedLimit>,
}

/// Serves until `stop` is cancelled and active requests are answered.
pub async fn serve(
    (listener, guard): (TcpListener, Guard),
    gateway: Arc<Gateway>,
    side: SidePages,
    (limits, metrics): (ServerLimits, ConnectionMetrics),
    stop: CancellationToken,
) {
    let connections = TaskTracker::new();
    let connection_limits = ConnectionLimits {
        connections: limits.connections,
        patience: PATIENCE,
        peer: PeerLimits::default(),
    };
    if let Ok(address) = listener.local_addr() {
        warn_if_open("listen", address, &guard);
    }
    let listener = LimitedListener::new(listener, connection_limits, metrics);
    let mut accepting =
        Accepting::new(listener, guard.tls.clone().map(|tls| (tls, Protocol::Http1)));
    let places = Arc::new(Semaphore::new(limits.in_flight));
    let bodies = Arc::new(SharedLimit::new(BODIES_BYTES_MAX, LargestShare::HALF));
    let server = Server { gateway: Arc::clone(&gateway), side, limits, places, bodies };
    let shared =
        SIDE_PAGES.iter().fold(Router::new(), |pages, path| pages.route(path, any(side_page)));
    let pages = shared
        .route(Kind::Chat.path(), post(chat))
        .route(Kind::Completion.path(), post(completion))
        .route("/v1/models", get(models))
        .route("/v1/models/{*id}", get(model))
        .route(HEALTH, get(health))
        .fallback(no_page)
        .method_not_allowed_fallback(no_method)
        .with_state(server);
    loop {
        select! {
            () = stop.cancelled() => break,
            socket = accepting.accept() => {
                let peer = Arc::clone(socket.peer());
                let limited = gateway.metrics().limited.clone();
                let caller = Caller { guard: guard.clone(), peer, limited };
                let pages = pages.clone().layer(from_fn_with_state(caller, identify));
                let service = TowerToHyperService::new(pages);
                let times = (HEAD_TIMEOUT, guard.connection_age);
                connections.spawn(serve_connection(socket, service, times, stop.clone()));
            }
        }
    }
    drop(accepting);
    connections.close();
    connections.wait().await;
    gateway.end().await;
}

/// The client of a connection.
#[derive(Debug, Clone)]
struct Caller {
    guard: Guard,
    peer: Arc<Peer>,
    /// Counts requests that exceed a rate.
    limited: Reasons,
}

/// Identity of a request's caller, and its rate limit.
type Identified = (Arc<Principal>, Option<Quota>);

/// Authenticates a request, and attaches the identity for the handlers. Health checks need no identity.
async fn identify(State(caller): State<Caller>, mut request: Request, next: Next) -> Response {
    if request.uri().path() == HEALTH {
        return next.run(request).await;
    }
    let certificate = caller.peer.certificate.get();
    let demands = caller.guard.tls.as_ref().is_some_and(ServerTls::demands_certificates);
    if demands && certificate.is_none() {
        return ApiError::no_identity().into_response();
    }
    let Some(principal) = caller.guard.access.principal(request.headers(), certificate) else {
        return ApiError::no_identity().into_response();
    };
    if let Err(denied) = principal.check_role(Role::Query) {
        return ApiError::denied(denied).into_response();
    }
    let quota = caller.guard.access.quota(&principal, &caller.limited);
    request.extensions_mut().insert((principal, quota));
    next.run(request).await
}

async fn chat(
    State(server): State<Server>,
    Extension(caller): Extension<Identified>,
    request: Request,
) -> Response {
    server.completion(Kind::Chat, caller, request).await
}

async fn completion(
    State(server): State<Server>,
    Extension(caller): Extension<Identified>,
    request: Request,
) -> Response {
    server.completion(Kind::Completion, caller, request).await
}

async fn models(
    State(server): State<Server>,
    Extension((caller, _)): Extension<Identified>,
) -> Response {
    json(&server.gateway.models(&caller))
}

async fn model(
    State(server): State<Server>,
    Extension((caller, _)): Extension<Identified>,
    Path(id): Path<String>,
) -> Response {
    let model = server.gateway.model(&caller, &id);
    model.map_or_else(|error| server.refuse(error), |model| json(&model))
}

async fn health(State(server): State<Server>) -> StatusCode {
    let is_ready = server.side.readiness.reasons().is_empty();
    if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }
}

async fn side_page(
    State(server): State<Server>,
    Extension((caller, _)): Extension<Identified>,
    request: Request,
) -> Response {
    server.side.pages.answer(request, Some(&caller)).await.map(Body::new)
}

async fn no_page(State(server): State<Server>, uri: Uri) -> Response {
    server.refuse(ApiError::no_page(uri.path()))
}

async fn no_method(State(server): State<Server>, method: Method) -> Response {
    server.refuse(ApiError::no_method(method.as_str()))
}

fn json(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

/// Reads a body, and counts its bytes in `counted`.
async fn read_body(
    mut body: Body,
    bytes_max: usize,
    counted: &mut TakenShare,
) -> Result<Bytes, ApiError> {
    let mut kept = Vec::new();
    while let Some(frame) = body.frame().await {
        let broken = |error| ApiError::malformed(format!("The body cannot be read: {error}"));
        let Ok(data) = frame.map_err(broken)?.into_data() else { continue };
        if kept.len() + data.len() > bytes_max {
            return Err(ApiError::too_large(bytes_max));
        }
        if !counted.grow(data.len()) {
            return Err(ApiError::overloaded(BODIES_FULL));
        }
        kept.extend_from_slice(&data);
    }
    Ok(kept.into())
}

impl Server {
    fn refuse(&self, error: ApiError) -> Response {
        self.gateway.metrics().error(error.status());
        error.into_response()
    }

    /// Serves a completion. Checks in this order the limit of active requests, the size of the body, and its content.
    async fn completion(
        &self,
        kind: Kind,
        (caller, quota): Identified,
        request: Request,
    ) -> Response {
        let headers = request.headers();
        let span = request_span(kind.path(), |name| headers.get(name)?.to_str().ok());
        let serving = self.serve_completion(kind, (caller, quota), request);
        let response = serving.instrument(span.clone()).await;
        if span.is_none() {
            return response;
        }
        record_status(&span, response.status());
        response.map(|body| Body::new(TracedBody::new(body, span)))
    }

    async fn serve_completion(
        &self,
        kind: Kind,
        (caller, quota): Identified,
        request: Request,
    ) -> Response {
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            let why = format!("{} requests are under way already", self.limits.in_flight);
            return self.refuse(ApiError::overloaded(why));
        };
        let (body, counted) = match self.body(request, caller.name()).await {
            Ok(body) => body,
            Err(error) => return self.refuse(error),
        };
        let request = match ApiRequest::read(kind, &body) {
            Ok(request) => request,
            Err(error) => return self.refuse(error),
        };
        drop(body);
        let response = Box::pin(self.gateway.serve((&caller, quota.as_ref()), request)).await;
        // The request keeps its permit until its answer has been sent.
        response.map(|body| {
            let held = body.map_frame(move |frame| {
                let _held = (&place, &counted);
                frame
            });
            Body::new(held)
        })
    }

    async fn body(&self, request: Request, caller: &str) -> Result<(Bytes, TakenShare), ApiError> {
        let counted = self.bodies.take(caller, 0);
        let mut counted = counted.map_err(|_full| ApiError::overloaded(BODIES_FULL))?;
        let reading = read_body(request.into_body(), self.limits.body_bytes, &mut counted);
        let body = timeout(self.limits.body_timeout, reading).await;
        Ok((body.map_err(|_late| ApiError::too_slow())??, counted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bodies_count_until_their_requests_end() {
        let limit = SharedLimit::new(100, LargestShare::HALF);
        let body = async |bytes: usize| {
            let mut counted = limit.take("a", 0).expect("nothing");
            let read = read_body(Body::from(vec![b'x'; bytes]), 40, &mut counted).await;
            read.map(|body| (body, counted))
        };
        let (first, counted) = body(30).await.expect("room");
        assert_eq!(first.len(), 30);
        let refused = body(30).await.expect_err("an identity may have half");
        assert_eq!(refused.status().as_u16(), 503);
        let refused = body(41).await.expect_err("one body may have 40 bytes");
        assert_eq!(refused.status().as_u16(), 413);
        drop(counted);
        body(40).await.expect("the first one has ended");
    }
}
