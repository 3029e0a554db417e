//! Engines that have no cache: they make tokens of bytes, name adapters, and answer with one token.

use crate::fleet::MODEL;
use anyhow::Result;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// What an engine does, which may change while it runs.
#[derive(Debug, Clone, Default)]
pub struct Behaviour {
    /// Adapters beside the model.
    pub adapters: Vec<&'static str>,
    /// Further names of the model.
    pub names: Vec<&'static str>,
    /// Status of `/render`, 200 if `None`.
    pub render: Option<u16>,
    /// Whether `/render` knows the model alone, and not its adapters, as in vLLM 0.19.
    pub renders_no_adapter: bool,
    /// What `/render` says about images: null, if nothing.
    pub features: Value,
    /// Status of `/tokenize`, 200 if `None`.
    pub tokenize: Option<u16>,
    /// Whether completions are streams that end early.
    pub breaks_off: bool,
    /// Key that paths below `/v1` demand, as in vLLM with `--api-key`.
    pub key: Option<&'static str>,
}

/// A running engine; dropping it closes its port.
pub struct Fake {
    pub address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<std::io::Result<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    behaviour: Mutex<Behaviour>,
    calls: Mutex<BTreeMap<&'static str, usize>>,
    /// Header `traceparent` of the last completion.
    traceparent: Mutex<Option<String>>,
}

impl Shared {
    fn behaviour(&self) -> Behaviour {
        self.behaviour.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn count(&self, page: &'static str) {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        *calls.entry(page).or_default() += 1;
    }
}

impl Fake {
    pub async fn start(behaviour: Behaviour) -> Result<Self> {
        let shared = Arc::new(Shared { behaviour: Mutex::new(behaviour), ..Shared::default() });
        let pages = Router::new()
            .route("/v1/models", get(models))
            .route("/v1/completions", post(complete))
            .route("/v1/chat/completions", post(complete))
            .route("/v1/completions/render", post(render))
            .route("/v1/chat/completions/render", post(render))
            .route("/tokenize", post(tokenize))
            .layer(from_fn_with_state(Arc::clone(&shared), demand_key))
            .with_state(Arc::clone(&shared));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut serving = JoinSet::new();
        serving.spawn(async move { serve(listener, pages).await });
        Ok(Self { address, shared, _serving: serving })
    }

    /// From now on, the engine does this.
    pub fn change(&self, behaviour: Behaviour) {
        *self.shared.behaviour.lock().unwrap_or_else(PoisonError::into_inner) = behaviour;
    }

    /// How often a page was asked.
    pub fn calls(&self, page: &str) -> usize {
        let calls = self.shared.calls.lock().unwrap_or_else(PoisonError::into_inner);
        calls.get(page).copied().unwrap_or(0)
    }

    /// Header `traceparent` of the last completion.
    pub fn traceparent(&self) -> Option<String> {
        self.shared.traceparent.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Tokens of a text, as these engines make them.
pub fn tokens(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

type At = State<Arc<Shared>>;

fn refused(status: Option<u16>) -> Option<Response> {
    let status = StatusCode::from_u16(status?).unwrap_or(StatusCode::IM_A_TEAPOT);
    Some((status, "{\"error\": {\"message\": \"closed\"}}").into_response())
}

fn read(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_default()
}

async fn demand_key(State(shared): At, request: Request, next: Next) -> Response {
    let key = shared.behaviour().key.map(|key| format!("Bearer {key}"));
    let shown = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let is_guarded = key.is_some() && request.uri().path().starts_with("/v1");
    if is_guarded && key.as_deref() != shown {
        if request.uri().path().ends_with("completions") {
            shared.count("unauthorized");
        }
        return (StatusCode::UNAUTHORIZED, "{\"error\": \"Unauthorized\"}").into_response();
    }
    next.run(request).await
}

async fn models(State(shared): At) -> String {
    shared.count("models");
    let Behaviour { adapters, names, .. } = shared.behaviour();
    let names = [MODEL].into_iter().chain(names);
    let named = names.map(|name| json!({"id": name, "root": "/m", "parent": null}));
    let adapters = adapters.iter().map(|name| json!({"id": name, "root": "/a", "parent": "m"}));
    let models: Vec<_> = named.chain(adapters).collect();
    json!({"object": "list", "data": models}).to_string()
}

async fn complete(State(shared): At, headers: HeaderMap) -> Response {
    shared.count("complete");
    let traceparent = headers.get("traceparent").and_then(|value| value.to_str().ok());
    *shared.traceparent.lock().unwrap_or_else(PoisonError::into_inner) =
        traceparent.map(str::to_owned);
    if shared.behaviour().breaks_off {
        let half = "data: {\"choices\": [{\"index\": 0, \"text\": \"half\"}]}\n\n";
        return ([("content-type", "text/event-stream")], half).into_response();
    }
    let choice =
        json!({"index": 0, "text": "x", "message": {"content": "x"}, "finish_reason": "length"});
    let usage = json!({"prompt_tokens": 1, "completion_tokens": 1});
    json!({"choices": [choice], "usage": usage}).to_string().into_response()
}

async fn render(State(shared): At, body: String) -> Response {
    shared.count("render");
    let Behaviour { render, features, renders_no_adapter, .. } = shared.behaviour();
    if let Some(refused) = refused(render) {
        return refused;
    }
    let body = read(&body);
    if renders_no_adapter && body["model"] != MODEL {
        let message = format!("The model {} does not exist.", body["model"]);
        let error = json!({"error": {"message": message, "param": "model"}}).to_string();
        return (StatusCode::NOT_FOUND, error).into_response();
    }
    let rendered = |text: &str| json!({"token_ids": tokens(text), "features": features});
    let answer = match &body["prompt"] {
        Value::String(prompt) => json!([rendered(prompt.as_str())]),
        Value::Array(prompts) => prompts.iter().filter_map(Value::as_str).map(rendered).collect(),
        _ => rendered(body["messages"].to_string().as_str()),
    };
    answer.to_string().into_response()
}

async fn tokenize(State(shared): At, body: String) -> Response {
    shared.count("tokenize");
    if let Some(refused) = refused(shared.behaviour().tokenize) {
        return refused;
    }
    let body = read(&body);
    let text = body["prompt"].as_str().map_or_else(|| body["messages"].to_string(), str::to_owned);
    let tokens = tokens(&text);
    let answer = json!({"count": tokens.len(), "max_model_len": 4_096, "tokens": tokens});
    answer.to_string().into_response()
}
