//! Tokens by the engines' own endpoint: the same code that serves the request makes them.

use super::cache::TokenCache;
use super::{Found, TokenList, Unknown};
use crate::engines::{EngineClient, Sent};
use crate::hints::read_tokens;
use crate::request::ApiRequest;
use hyper::Uri;
use serde_json::{Map, Value};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::timeout;

/// Most servers that are asked for one request.
const TRIES_MAX: usize = 2;
/// Fields of a request that say how it is answered, not what its prompt is.
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

/// Asks servers for tokens.
#[derive(Debug)]
pub struct Renderer {
    client: EngineClient,
    /// A server for nothing else.
    server: Option<Uri>,
    timeout: Duration,
    turn: AtomicUsize,
}

impl Renderer {
    /// Asks `server`, or the engines if it is none, and waits for `timeout` at most.
    #[must_use]
    pub const fn new(client: EngineClient, server: Option<Uri>, timeout: Duration) -> Self {
        Self { client, server, timeout, turn: AtomicUsize::new(0) }
    }

    pub(super) async fn tokens(
        &self,
        request: &ApiRequest,
        engines: &[Uri],
        cache: &TokenCache,
    ) -> Found {
        let is_unrelated = |name: &String| UNRELATED.contains(&name.as_str());
        let asked: Map<_, _> = request
            .body
            .iter()
            .filter(|(name, _)| !is_unrelated(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let text = Value::Object(asked).to_string();
        let path = format!("{}/render", request.kind.path());
        let key = TokenCache::key(&[path.as_bytes(), text.as_bytes()]);
        let found = |tokens: TokenList| {
            let count = tokens.len() as u64;
            Found::Tokens(tokens, count)
        };
        if let Some(tokens) = cache.get(key) {
            return found(tokens);
        }
        let servers = self.server.as_ref().map_or(engines, std::slice::from_ref);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        for number in 0..servers.len().min(TRIES_MAX) {
            let Some(server) = servers.get((turn + number) % servers.len()) else { continue };
            let asking = self.ask(server, &path, text.clone());
            match timeout(self.timeout, asking).await {
                Ok(Ok(tokens)) => {
                    cache.put(key, TokenList::clone(&tokens));
                    return found(tokens);
                }
                Ok(Err(error)) => tracing::debug!(%server, %error, "a prompt is not rendered"),
                Err(_late) => tracing::debug!(%server, "a prompt is not rendered in time"),
            }
        }
        Found::Unknown(Unknown::NotRendered)
    }

    async fn ask(&self, server: &Uri, path: &str, body: String) -> Result<TokenList, String> {
        let sent = Sent { path, body: body.into(), rank: None, request_id: None };
        let answer = self.client.send(server, sent).await.map_err(|error| error.to_string())?;
        let answer = answer.whole().await.map_err(|error| error.to_string())?;
        if !answer.status.is_success() {
            return Err(format!("status {}", answer.status));
        }
        let answer: Value =
            serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        // A completion has a list of prompts; of several the first decides.
        let prompt = answer.get(0).unwrap_or(&answer);
        let tokens = prompt.get("token_ids").and_then(read_tokens);
        tokens.map(TokenList::from).ok_or_else(|| "the answer has no token_ids".to_owned())
    }
}
