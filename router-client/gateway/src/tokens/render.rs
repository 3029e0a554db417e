//! Requests tokens from the engines' own endpoints, which use the same code as for serving the request.

use super::cache::TokenCache;
use super::cut::Cut;
use super::endpoints::{Endpoint, Endpoints, is_closed, is_unknown_model};
use super::tokenize::{Wanted, adds_special, wanted};
use super::{Made, Missing, Tokenised, Unknown};
use crate::error::engine_status;
use crate::hints::read_tokens;
use crate::prompt::{PromptTokens, read_features};
use crate::request::ApiRequest;
use futures::{StreamExt, TryStreamExt, stream};
use hyper::{StatusCode, Uri};
use kvasir_engine_http::{EngineClient, Sent, Whole};
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Maximum servers tried for one request.
const TRIES_MAX: usize = 2;
/// Maximum concurrent calls of `/tokenize` for one request.
const CALLS_MAX: usize = 8;
/// Fields of a request that affect the answer, but not the prompt.
const UNRELATED: [&str; 22] = [
    "stream",
    "stream_options",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "n",
    "seed",
    "stop",
    "stop_token_ids",
    "logprobs",
    "top_logprobs",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "user",
    "request_id",
    "priority",
];

/// Requests tokens from servers.
#[derive(Debug)]
pub struct Renderer {
    client: EngineClient,
    /// Dedicated render server; `None` to use the engines.
    server: Option<Uri>,
    timeout: Duration,
    turn: AtomicUsize,
    endpoints: Endpoints,
}

/// Why a server returned no tokens.
enum Failure {
    /// The endpoint is closed or missing.
    Closed(StatusCode),
    /// The endpoint does not know the request's model.
    UnknownModel(String),
    /// Anything else.
    Other(Missing),
}

impl From<String> for Failure {
    fn from(detail: String) -> Self {
        Self::Other(Missing { why: Unknown::NotRendered, detail })
    }
}

impl Renderer {
    /// Creates a renderer that uses `server`, or the engines if it is `None`, with a timeout.
    #[must_use]
    pub fn new(client: EngineClient, server: Option<Uri>, timeout: Duration) -> Self {
        let endpoints = Endpoints::default();
        Self { client, server, timeout, turn: AtomicUsize::new(0), endpoints }
    }

    /// Number of servers by endpoint, with labels of a metric.
    pub(super) fn counts(&self, engines: &[Uri]) -> Vec<((&'static str, u16), u64)> {
        let counted = self.endpoints.count(&self.servers(engines));
        let count = |endpoint: &Endpoint| counted.get(endpoint).map_or(0, |at| at.0 as u64);
        Endpoint::all_kinds().iter().map(|endpoint| (endpoint.labels(), count(endpoint))).collect()
    }

    /// Servers without a working `/render`, one line for each kind.
    pub(super) fn problems(&self, engines: &[Uri]) -> Vec<String> {
        self.endpoints.problems(&self.servers(engines))
    }

    fn servers(&self, engines: &[Uri]) -> Vec<String> {
        let servers = self.server.as_ref().map_or(engines, std::slice::from_ref);
        servers.iter().map(Uri::to_string).collect()
    }

    /// Returns the tokens of a prompt, from the cache or from a server. Tries at most [`TRIES_MAX`] servers, each
    /// within the timeout. Prompts with images are not cached. `model` is the model that the request's name means.
    pub(super) async fn tokens(
        &self,
        model: &str,
        request: &ApiRequest,
        engines: &[Uri],
        cache: &TokenCache,
    ) -> Made {
        let text = rendered_body(request, &request.model);
        let path = format!("{}/render", request.kind.path());
        let key = TokenCache::key(&[path.as_bytes(), text.as_bytes()]);
        if let Some(tokens) = cache.get(key) {
            return Ok(tokens);
        }
        let servers = self.server.as_ref().map_or(engines, std::slice::from_ref);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let none = "no server's address is known".to_owned();
        let mut missing = Missing { why: Unknown::NotRendered, detail: none };
        for number in 0..servers.len().min(TRIES_MAX) {
            let Some(server) = servers.get((turn + number) % servers.len()) else { continue };
            let asking = self.query_server(server, &path, &text, model, request);
            missing = match timeout(self.timeout, asking).await {
                Ok(Ok(tokens)) => {
                    // The content behind an image's URL may change, so prompts with images are not cached.
                    if !tokens.first.has_images() {
                        cache.insert(key, tokens.clone());
                    }
                    return Ok(tokens);
                }
                Ok(Err(missing)) => missing,
                Err(_late) => {
                    let detail = format!("{server}: no answer within {:?}", self.timeout);
                    Missing { why: Unknown::NotRendered, detail }
                }
            };
            tracing::debug!(%server, detail = missing.detail, "a prompt is not rendered");
        }
        Err(missing)
    }

    /// Queries a server: `/render`, or `/tokenize` if `/render` is closed.
    async fn query_server(
        &self,
        server: &Uri,
        path: &str,
        text: &str,
        model: &str,
        request: &ApiRequest,
    ) -> Made {
        let name = server.to_string();
        let at_server = |failure| match failure {
            Failure::Closed(status) => {
                let detail = format!("{server}: /render and /tokenize are closed, status {status}");
                Missing { why: Unknown::NotRendered, detail }
            }
            Failure::UnknownModel(detail) => {
                Missing { why: Unknown::NotRendered, detail: format!("{server}: {detail}") }
            }
            Failure::Other(Missing { why, detail }) => {
                Missing { why, detail: format!("{server}: {detail}") }
            }
        };
        let closed = match self.endpoints.for_server(&name, Instant::now()) {
            known @ (Endpoint::Render | Endpoint::RenderModels) => {
                match self.render_as(server, known, (path, text), (model, request)).await {
                    Ok((tokens, endpoint)) => {
                        self.endpoints.learn(&name, endpoint, Instant::now());
                        return Ok(tokens);
                    }
                    Err(Failure::Closed(status)) => status,
                    Err(failure) => return Err(at_server(failure)),
                }
            }
            Endpoint::Tokenize(status) => StatusCode::from_u16(status).unwrap_or_default(),
            Endpoint::None(status) => {
                let status = StatusCode::from_u16(status).unwrap_or_default();
                return Err(at_server(Failure::Closed(status)));
            }
        };
        let tokenised = self.tokenize(server, request).await;
        let endpoint = match &tokenised {
            Err(Failure::Closed(_)) => Endpoint::None(closed.as_u16()),
            Ok(_) => Endpoint::Tokenize(closed.as_u16()),
            Err(Failure::UnknownModel(_) | Failure::Other(_)) => {
                return tokenised.map_err(at_server);
            }
        };
        self.endpoints.learn(&name, endpoint, Instant::now());
        tokenised.map_err(at_server)
    }

    /// Queries `/render` by the name in the request, or by `model` if the server renders for models alone. Returns the
    /// tokens, and the server's endpoint.
    async fn render_as(
        &self,
        server: &Uri,
        known: Endpoint,
        (path, text): (&str, &str),
        (model, request): (&str, &ApiRequest),
    ) -> Result<(Tokenised, Endpoint), Failure> {
        if request.model == model {
            return Ok((self.render(server, path, text).await?, known));
        }
        if known == Endpoint::Render {
            match self.render(server, path, text).await {
                Err(Failure::UnknownModel(_)) => {}
                rendered => return Ok((rendered?, Endpoint::Render)),
            }
        }
        let rendered = self.render(server, path, &rendered_body(request, model)).await?;
        Ok((rendered, Endpoint::RenderModels))
    }

    /// Queries `/render`. Only the first prompt of a completion with several prompts counts.
    async fn render(&self, server: &Uri, path: &str, text: &str) -> Result<Tokenised, Failure> {
        let answer = self.post(server, path, text.to_owned()).await?;
        let answer: Value =
            serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        let tokens = |prompt: &Value| {
            let tokens = prompt.get("token_ids").and_then(read_tokens)?;
            let images = read_features(prompt.get("features").unwrap_or(&Value::Null))?;
            PromptTokens::from(tokens).with_images(images).ok()
        };
        // A completion has a list of prompts, of which the first decides.
        let prompts = answer.as_array().map_or(std::slice::from_ref(&answer), Vec::as_slice);
        let prompts: Option<Vec<_>> = prompts.iter().map(tokens).collect();
        let tokenised = prompts.and_then(Tokenised::from_prompts);
        tokenised.ok_or_else(|| {
            "the answer has no token_ids, or features of another form".to_owned().into()
        })
    }

    /// Queries `/tokenize` for each prompt, and truncates as the request demands. Fails if the truncation would have to
    /// keep special tokens, because the answer does not mark them.
    async fn tokenize(&self, server: &Uri, request: &ApiRequest) -> Result<Tokenised, Failure> {
        let unknown = |why: Unknown| {
            let detail = "/tokenize does not cut prompts as this request wants it".to_owned();
            Failure::Other(Missing { why, detail })
        };
        let cut = Cut::from_request(request).map_err(unknown)?;
        let wanted = wanted(request).map_err(|error| error.message().to_owned())?;
        let calls = wanted.into_iter().map(|wanted| self.prompt(server, wanted));
        let prompts: Vec<_> = stream::iter(calls).buffered(CALLS_MAX).try_collect().await?;
        let cut_prompt = |tokens: Vec<u32>| match cut {
            Some(cut) if tokens.len() > cut.count() => {
                // The answer does not mark special tokens, which would have to be kept.
                let is_plain = !adds_special(request);
                is_plain.then(|| cut.apply(&tokens).to_vec())
            }
            Some(_) | None => Some(tokens),
        };
        let prompts: Option<Vec<_>> = prompts.into_iter().map(cut_prompt).collect();
        let prompts = prompts.ok_or_else(|| unknown(Unknown::Truncated))?;
        Tokenised::from_prompts(prompts.into_iter().map(Into::into).collect())
            .ok_or_else(|| "no prompt".to_owned().into())
    }

    /// Returns the tokens of one prompt, from `/tokenize` unless they are given.
    async fn prompt(&self, server: &Uri, wanted: Wanted) -> Result<Vec<u32>, Failure> {
        let body = match wanted {
            Wanted::Call(body) => body.to_string(),
            Wanted::Tokens(tokens) => return Ok(tokens),
        };
        let answer = self.post(server, "/tokenize", body).await?;
        let answer: Value =
            serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        let tokens = answer.get("tokens").and_then(read_tokens);
        tokens.ok_or_else(|| "the answer has no tokens".to_owned().into())
    }

    /// Sends a request to a server and reads the answer. Returns `Failure::Closed` if the server does not offer this
    /// endpoint.
    async fn post(&self, server: &Uri, path: &str, body: String) -> Result<Whole, Failure> {
        let sent = Sent { path, body: body.into(), rank: None, request_id: None };
        let answer = self.client.send(server, sent).await.map_err(|error| error.to_string())?;
        let answer = answer.whole().await.map_err(|error| error.to_string())?;
        match answer.status {
            status if status.is_success() => Ok(answer),
            status if is_closed(status, &answer.body) => Err(Failure::Closed(status)),
            status if is_unknown_model(status, &answer.body) => {
                let model = "it does not know the request's model";
                Err(Failure::UnknownModel(format!("{path}: status {status}, {model}")))
            }
            status => Err(format!("{path}: {}", engine_status(status)).into()),
        }
    }
}

/// Returns the fields of a request for `model` that determine its tokens, as JSON.
fn rendered_body(request: &ApiRequest, model: &str) -> String {
    // If the engine truncates the prompt, the maximum length depends on the room for the answer.
    let is_cut = request.body.get("truncate_prompt_tokens").is_some_and(|at| !at.is_null());
    let is_kept = |name: &str| is_cut && ["max_tokens", "max_completion_tokens"].contains(&name);
    let is_related = |name: &str| is_kept(name) || !UNRELATED.contains(&name);
    let related = request.body.iter().filter(|(name, _)| is_related(name));
    let mut related: Map<_, _> =
        related.map(|(name, value)| (name.clone(), value.clone())).collect();
    related.insert("model".to_owned(), model.into());
    Value::Object(related).to_string()
}
