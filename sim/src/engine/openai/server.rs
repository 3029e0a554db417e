//! The HTTP routes and the port.

use super::body::{Body, Kind, Limits};
use super::error::{ApiError, json_response};
use super::generate::begin;
use super::remote::{Held, LoadFailure, PATH};
use super::state::State;
use super::stream::stream;
use super::text::Text;
use crate::engine::live::{LiveConfig, LiveEngine};
use crate::engine::mock::Truth;
use crate::engine::publisher::Endpoints;
use anyhow::{Context, Result, ensure};
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, State as Shared};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use axum::{Router, serve};
use serde_json::json;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Default maximum size of a body, in bytes.
pub const BODY_BYTES_MAX: usize = 16 << 20;
/// Default number of answer tokens.
pub const ANSWER_TOKENS: usize = 256;
/// Timeout at the stop for clients that do not finish their requests.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Media type of the metrics.
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Configuration of an engine with its HTTP port.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerConfig {
    /// The engine.
    pub live: LiveConfig,
    /// ZMQ endpoints of the engine.
    pub endpoints: Endpoints,
    /// Address of the HTTP port.
    pub listen: SocketAddr,
    /// Host at which other engines reach the HTTP port; `None` for the host of `listen`.
    pub transfer_host: Option<String>,
    /// Maximum number of tokens of a prompt with its answer; `None` for the size of the cache.
    pub model_tokens_max: Option<usize>,
    /// Number of answer tokens if the client sets no limit.
    pub answer_tokens: usize,
    /// Maximum size of a body, in bytes.
    pub body_bytes_max: usize,
    /// Treatment of a prompt whose blocks at another engine cannot be fetched.
    pub load_failure: LoadFailure,
    /// Number of prefills for other engines that succeed. Later ones fail with status 500. `None`: all succeed.
    pub prefills_max: Option<u64>,
    /// Whether `/render` answers 403, like vLLM without `--enable-scale-out`.
    pub is_render_closed: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            live: LiveConfig::default(),
            endpoints: Endpoints::any(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            transfer_host: None,
            model_tokens_max: None,
            answer_tokens: ANSWER_TOKENS,
            body_bytes_max: BODY_BYTES_MAX,
            load_failure: LoadFailure::default(),
            prefills_max: None,
            is_render_closed: false,
        }
    }
}

/// A running engine with its HTTP port; dropping it stops both.
#[derive(Debug)]
pub struct EngineServer {
    state: Arc<State>,
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinSet<std::io::Result<()>>,
}

// === impl EngineServer ===

impl EngineServer {
    /// Starts an engine.
    ///
    /// # Errors
    /// If the configuration is invalid, or a socket cannot be bound.
    pub async fn start(config: ServerConfig, text: Text) -> Result<Self> {
        ensure!(config.answer_tokens > 0, "answers have no token");
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.with_context(|| format!("listen at {}", config.listen))?;
        let address = listener.local_addr()?;
        // Parts of an answer are small. Without this, each waits up to 40 ms for the acknowledgement of the previous
        // one.
        let listener = listener.tap_io(|stream| {
            let _slower = stream.set_nodelay(true);
        });
        let cache_tokens = config.live.cache_tokens();
        let limits = Limits {
            model: config.live.model_name.clone(),
            model_tokens_max: config.model_tokens_max.unwrap_or(cache_tokens),
            answer_tokens: config.answer_tokens,
        };
        let host = config.transfer_host.unwrap_or_else(|| address.ip().to_string());
        let state = Arc::new(State {
            start_secs: config.live.engine.time_start_secs,
            engine: LiveEngine::start(config.live, &config.endpoints).await?,
            text,
            limits,
            load_failure: config.load_failure,
            prefills_max: config.prefills_max,
            prefills: AtomicU64::new(0),
            is_render_closed: config.is_render_closed,
            engine_id: format!("{:016x}", rand::random::<u64>()),
            address: (host, address.port()),
            tasks: Arc::new(TaskTracker::new()),
            start: Instant::now(),
        });
        let routes = routes(Arc::clone(&state), config.body_bytes_max);
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        let stopped = stop.clone().cancelled_owned();
        serving.spawn(async move { serve(listener, routes).with_graceful_shutdown(stopped).await });
        Ok(Self { state, address, stop, serving })
    }

    /// Address of the HTTP port.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &LiveEngine {
        &self.state.engine
    }

    /// Stops the engine. Active streams end with an error.
    ///
    /// # Errors
    /// If the port failed.
    pub async fn stop(mut self) -> Result<()> {
        self.state.engine.halt();
        self.stop.cancel();
        // Clients that are left after this time lose their connections when the process ends.
        if let Ok(Some(served)) = timeout(DRAIN_TIMEOUT, self.serving.join_next()).await {
            served.context("the port panicked")?.context("the port failed")?;
        }
        self.state.tasks.close();
        self.state.tasks.wait().await;
        if let Some(state) = Arc::into_inner(self.state) {
            state.engine.stop().await;
        }
        Ok(())
    }
}

type Given = Result<Bytes, BytesRejection>;
type At = Shared<Arc<State>>;

fn routes(state: Arc<State>, body_bytes_max: usize) -> Router {
    Router::new()
        .route("/v1/completions", post(completion))
        .route("/v1/completions/render", post(render_completion))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/chat/completions/render", post(render_chat))
        .route("/tokenize", post(tokenize))
        .route("/v1/models", get(models))
        .route("/health", get(|| async { StatusCode::OK }))
        .route("/metrics", get(metrics))
        .route("/mock/truth", get(truth))
        .route(&format!("{PATH}/{{engine}}/{{request}}"), post(held).delete(release))
        .fallback(|| async { ApiError::with(StatusCode::NOT_FOUND, "Not Found") })
        .method_not_allowed_fallback(|| async {
            ApiError::with(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .layer(DefaultBodyLimit::max(body_bytes_max))
        .with_state(state)
}

async fn completion(Shared(state): At, body: Given) -> Result<Response, ApiError> {
    answer(&state, Kind::Completion, body).await
}

async fn chat(Shared(state): At, body: Given) -> Result<Response, ApiError> {
    answer(&state, Kind::Chat, body).await
}

async fn answer(state: &Arc<State>, kind: Kind, body: Given) -> Result<Response, ApiError> {
    let (generation, is_stream) = begin(state, kind, &whole(body)?).await?;
    if is_stream { Ok(stream(generation)) } else { generation.whole().await }
}

async fn render_completion(Shared(state): At, body: Given) -> Result<Response, ApiError> {
    state.check_render()?;
    let body = Body::read(&whole(body)?)?;
    let tokens = body.tokens(Kind::Completion, &state.text, &state.limits)?;
    Ok(json_response(StatusCode::OK, &json!([{"token_ids": tokens, "features": null}])))
}

async fn render_chat(Shared(state): At, body: Given) -> Result<Response, ApiError> {
    state.check_render()?;
    let body = Body::read(&whole(body)?)?;
    let tokens = body.tokens(Kind::Chat, &state.text, &state.limits)?;
    let id = format!("chatcmpl-{:016x}", rand::random::<u64>());
    let rendered = json!({"request_id": id, "token_ids": tokens, "features": null});
    Ok(json_response(StatusCode::OK, &rendered))
}

/// Answers a chat or a plain prompt, depending on the fields of the body.
async fn tokenize(Shared(state): At, body: Given) -> Result<Response, ApiError> {
    let body = Body::read(&whole(body)?)?;
    let kind = if body.has_messages() { Kind::Chat } else { Kind::Completion };
    let tokens = body.tokens(kind, &state.text, &state.limits)?;
    let count = tokens.len();
    let most = state.limits.model_tokens_max;
    let answer =
        json!({"count": count, "max_model_len": most, "tokens": tokens, "token_strs": null});
    Ok(json_response(StatusCode::OK, &answer))
}

fn whole(body: Given) -> Result<Bytes, ApiError> {
    body.map_err(|rejected| ApiError::with(rejected.status(), rejected.body_text()))
}

async fn models(Shared(state): At) -> Response {
    let Limits { model, model_tokens_max, .. } = &state.limits;
    let entry = json!({
        "id": model, "object": "model", "created": state.start_secs, "owned_by": "kvasir", "root": model,
        "parent": null, "max_model_len": model_tokens_max,
    });
    json_response(StatusCode::OK, &json!({"object": "list", "data": [entry]}))
}

async fn metrics(Shared(state): At) -> Result<Response, ApiError> {
    let text = state.engine.metrics().await?;
    let kind = HeaderValue::from_static(METRICS_TYPE);
    Ok(([(CONTENT_TYPE, kind)], text).into_response())
}

async fn truth(Shared(state): At) -> Result<Response, ApiError> {
    let Truth { copies, last_sequence } = state.engine.truth().await?;
    let truth = json!({"copies": copies, "last_sequence": last_sequence});
    Ok(json_response(StatusCode::OK, &truth))
}

/// Another engine begins to fetch blocks.
async fn held(
    Shared(state): At,
    Path((engine, request)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let id = own_request(&state, &engine, &request)?;
    let prompt = state.engine.held(id).await?.ok_or_else(not_held)?;
    Ok(json_response(StatusCode::OK, &json!(Held::of(&prompt))))
}

/// Another engine has fetched the blocks.
async fn release(
    Shared(state): At,
    Path((engine, request)): Path<(String, String)>,
) -> Result<StatusCode, ApiError> {
    let id = own_request(&state, &engine, &request)?;
    let is_released = state.engine.release(id).await?;
    is_released.then_some(StatusCode::NO_CONTENT).ok_or_else(not_held)
}

fn own_request(state: &State, engine: &str, request: &str) -> Result<usize, ApiError> {
    let id = request.parse().ok().filter(|_| engine == state.engine_id);
    id.ok_or_else(not_held)
}

fn not_held() -> ApiError {
    ApiError::with(StatusCode::NOT_FOUND, "no blocks of such a request are held")
}
