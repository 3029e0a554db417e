//! Proves the wiring of one engine: sends a prompt twice and compares what the engine does with what the index says.
//!
//! The prompt is random text under a salt of its own, so that it shares no block with any other prompt. It takes about
//! three blocks; the engine answers with one token.

use crate::report::{Report, Step};
use futures::TryFutureExt;
use hyper::Uri;
use kvasir_discovery::Seen;
use kvasir_engine_http::{EngineClient, Sent};
use kvasir_gateway::request::{ApiRequest, Kind};
use kvasir_gateway::tokens::{Found, Tokens, Unknown};
use kvasir_proto::convert::ImageTokens;
use kvasir_proto::hash::Namespace;
use kvasir_proto::pb::indexer_client::IndexerClient as Stub;
use kvasir_proto::pb::{ListWorkersRequest, Reason, SourceInfo, WorkerInfo, WorkerState};
use kvasir_tls::Channel;
use rand::Rng;
use router_client::{HashedPrompt, IndexerClient, Overlap, Prompt};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Maximum wait for one answer of the engine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for the connection to the engine's events, and then for the prompt's events.
const EVENTS_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of asking the index.
const ASK_INTERVAL: Duration = Duration::from_millis(50);
/// Blocks of the prompt.
const BLOCKS: u32 = 3;
/// Words of the first prompt, which shows how many tokens a word takes.
const FIRST_WORDS: u64 = 16;
/// Tokens of the model's maximum length that are left for the template and the answer.
const SPARE_TOKENS: u64 = 64;

/// Checks engines.
#[derive(Debug)]
pub struct Checker {
    /// Makes tokens as the gateway does.
    pub tokens: Tokens,
    /// Asks the engines.
    pub client: EngineClient,
    /// Queries the index as the gateway does.
    pub index: IndexerClient,
    /// Lists the workers of the index.
    pub workers: Stub<Channel>,
}

/// Steps so far; the error ends the check.
type Steps = Vec<Step>;

/// The prompt of a check, as the gateway sees it.
struct Asked {
    request: ApiRequest,
    prompt: HashedPrompt,
}

impl Checker {
    /// Checks an engine that is registered at the index.
    pub async fn check(&self, seen: &Seen) -> Report {
        let mut steps = vec![facts(seen)];
        if let Err(step) = self.steps(seen, &mut steps).await {
            steps.push(step);
        }
        Report { engine: seen.spec.name(), steps }
    }

    async fn steps(&self, seen: &Seen, steps: &mut Steps) -> Result<(), Step> {
        if seen.facts.caches_prefixes == Some(false) {
            let why = "the engine caches no prefixes: start vLLM with --enable-prefix-caching";
            return Err(step("prefix caching", Err(why.to_owned())));
        }
        steps.push(self.connection(seen).await?);
        let asked = self.tokenise(seen).await.map_err(|why| step("tokens", Err(why)))?;
        let Some(asked) = asked else {
            steps.push(step("tokens", Ok("none, so nothing else is checked".to_owned())));
            return Ok(());
        };
        let tokens = asked.prompt.input_tokens;
        steps.push(step("tokens", Ok(format!("a prompt of {tokens} tokens"))));
        let before = self.settled(seen).await.map_err(|why| step("events", Err(why)))?;
        let first =
            self.send(seen, &asked.request).await.map_err(|why| step("request", Err(why)))?;
        if let Some(counted) = first.prompt_tokens.filter(|counted| *counted != tokens) {
            return Err(step("tokens", Err(other_tokens(tokens, counted))));
        }
        steps.push(self.events(seen, &asked.prompt, &before).await?);
        steps.push(self.replay(seen).await?);
        steps.push(self.hit(seen, &asked).await?);
        Ok(())
    }

    /// Waits until the index is connected to the engine's events.
    async fn connection(&self, seen: &Seen) -> Result<Step, Step> {
        const NAME: &str = "event socket";
        let deadline = Instant::now() + EVENTS_TIMEOUT;
        loop {
            let sources = self.sources(seen).await.map_err(|why| step(NAME, Err(why)))?;
            let apart: Vec<_> = sources.iter().filter(|at| !at.connected).collect();
            let Some(first) = apart.first() else {
                let names: Vec<_> = sources.iter().map(|at| at.source.as_str()).collect();
                return Ok(step(NAME, Ok(format!("connected to {}", names.join(", ")))));
            };
            if Instant::now() > deadline {
                let why = format!(
                    "no connection to {}: state its address with events=tcp://HOST:PORT, or start the engine with \
                     --kv-events-config '{{\"enable_kv_cache_events\": true, \"publisher\": \"zmq\", \"endpoint\": \
                     \"tcp://*:5557\", \"replay_endpoint\": \"tcp://*:5558\"}}'",
                    first.source
                );
                return Err(step(NAME, Err(why)));
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    /// The worker, once the index has read earlier events from the replay sockets, or after a timeout.
    async fn settled(&self, seen: &Seen) -> Result<WorkerInfo, String> {
        let deadline = Instant::now() + EVENTS_TIMEOUT;
        let is_behind = |at: &SourceInfo| {
            matches!(at.state(), WorkerState::Cold | WorkerState::CatchingUp | WorkerState::Gap)
        };
        loop {
            let worker = self.worker(seen).await?;
            if !worker.sources.iter().any(is_behind) || Instant::now() > deadline {
                return Ok(worker);
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    /// Makes a random prompt of about [`BLOCKS`] blocks, and its tokens as the gateway would. A model without a chat
    /// template gets a completion. `None` if the gateway uses no tokens.
    async fn tokenise(&self, seen: &Seen) -> Result<Option<Asked>, String> {
        let mut why = String::new();
        for kind in [Kind::Chat, Kind::Completion] {
            match self.random_prompt(kind, FIRST_WORDS, seen).await {
                Ok(Some(first)) => {
                    let block_size = u64::from(seen.facts.block_size);
                    let room = seen.facts.model_tokens_max.unwrap_or(u64::MAX);
                    let room = room.saturating_sub(SPARE_TOKENS);
                    let wanted = (u64::from(BLOCKS) * block_size + block_size / 2).min(room);
                    let words = (wanted * FIRST_WORDS).div_ceil(first.prompt.input_tokens.max(1));
                    let asked = self.random_prompt(kind, words, seen).await?;
                    if asked.as_ref().is_some_and(|asked| asked.prompt.local_hashes.is_empty()) {
                        return Err(format!(
                            "the model's maximum length of {room} tokens has no room for a block of {block_size}"
                        ));
                    }
                    return Ok(asked);
                }
                Ok(None) => return Ok(None),
                Err(reason) => why = reason,
            }
        }
        Err(format!(
            "the gateway gets no tokens of prompts ({why}): start vLLM with --enable-scale-out, or state the model's \
             tokenizer with --tokenizer FILE"
        ))
    }

    async fn random_prompt(
        &self,
        kind: Kind,
        words: u64,
        seen: &Seen,
    ) -> Result<Option<Asked>, String> {
        let request = random_request(kind, words, &seen.facts.model)?;
        let found =
            self.tokens.of(&seen.facts.model, &request, std::slice::from_ref(&seen.spec.url)).await;
        let tokens = match found {
            Ok(Found::Tokens(tokens, _)) => tokens,
            Ok(Found::Unknown(Unknown::Off)) => return Ok(None),
            Ok(Found::Unknown(reason)) => return Err(reason.word().to_owned()),
            Err(error) => return Err(error.message().to_owned()),
        };
        let namespace = Namespace { lora_name: "", cache_salt: request.cache_salt() };
        let plain = Prompt::new(&seen.facts.model, seen.facts.block_size, &[]);
        let prompt = Prompt { namespace, ..plain };
        let prompt = tokens.hashed(prompt, || ImageTokens::Identifier);
        Ok(Some(Asked { request, prompt }))
    }

    /// Waits until the index has the prompt's blocks. `before` is the worker before the request.
    async fn events(
        &self,
        seen: &Seen,
        prompt: &HashedPrompt,
        before: &WorkerInfo,
    ) -> Result<Step, Step> {
        const NAME: &str = "events";
        let expected = prompt.local_hashes.len();
        let deadline = Instant::now() + EVENTS_TIMEOUT;
        loop {
            let held = self.held(seen, prompt).await.map_err(|why| step(NAME, Err(why)))?;
            let blocks = held.as_ref().map_or(0, |held| held.main_group_blocks as usize);
            if blocks >= expected {
                return Ok(step(NAME, Ok(format!("{blocks} of {expected} blocks of the prompt"))));
            }
            if Instant::now() > deadline {
                let worker = self.worker(seen).await.map_err(|why| step(NAME, Err(why)))?;
                let is_stated = seen.spec.block_size.is_some();
                let counts = (blocks, expected);
                return Err(step(NAME, Err(missing_blocks(before, &worker, counts, is_stated))));
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    /// Waits until the index has asked the engine's replay socket whether it has all events.
    async fn replay(&self, seen: &Seen) -> Result<Step, Step> {
        const NAME: &str = "replay socket";
        let deadline = Instant::now() + EVENTS_TIMEOUT;
        loop {
            let sources = self.sources(seen).await.map_err(|why| step(NAME, Err(why)))?;
            let is_verified =
                |at: &&SourceInfo| matches!(at.state(), WorkerState::Exact | WorkerState::Partial);
            let Some(behind) = sources.iter().find(|at| !is_verified(at)) else {
                let names: Vec<_> = sources.iter().map(|at| at.replay_endpoint.as_str()).collect();
                return Ok(step(NAME, Ok(format!("{} answers", names.join(", ")))));
            };
            if behind.state() == WorkerState::Degraded || Instant::now() > deadline {
                let why = format!(
                    "{} does not answer: missed events would be lost; set \"replay_endpoint\" in --kv-events-config, or \
                     state its address with replay=tcp://HOST:PORT",
                    behind.replay_endpoint
                );
                return Err(step(NAME, Err(why)));
            }
            sleep(ASK_INTERVAL).await;
        }
    }

    /// Sends the prompt again, and compares the engine's cached tokens with the prediction.
    async fn hit(&self, seen: &Seen, asked: &Asked) -> Result<Step, Step> {
        const NAME: &str = "cache hit";
        let failed = |why| step(NAME, Err(why));
        let held = self.held(seen, &asked.prompt).await.map_err(failed)?;
        let predicted = held.map_or(0, |held| held.reusable_tokens);
        let again = self.send(seen, &asked.request).await.map_err(failed)?;
        match again.cached_tokens {
            Some(cached) if cached == predicted => {
                Ok(step(NAME, Ok(format!("{cached} tokens, as predicted"))))
            }
            None => Ok(step(
                NAME,
                Ok(format!(
                    "{predicted} tokens predicted; the engine reports none (vLLM does with --enable-prompt-tokens-details)"
                )),
            )),
            Some(cached) => Err(failed(format!(
                "the engine reused {cached} tokens, the index predicted {predicted}: another client may have evicted them; \
                 if it repeats, the model has KV-cache groups or speculation that the engine does not announce"
            ))),
        }
    }

    /// The blocks of a prompt that the index has of the engine's best rank.
    async fn held(&self, seen: &Seen, prompt: &HashedPrompt) -> Result<Option<Overlap>, String> {
        let answer = self.index.find_hashed(prompt).map_err(|error| error.to_string()).await?;
        let name = seen.spec.name();
        let of_engine = answer.overlaps.into_iter().filter(|at| at.worker.worker.as_str() == name);
        Ok(of_engine.max_by_key(|at| at.main_group_blocks))
    }

    async fn sources(&self, seen: &Seen) -> Result<Vec<SourceInfo>, String> {
        Ok(self.worker(seen).await?.sources)
    }

    async fn worker(&self, seen: &Seen) -> Result<WorkerInfo, String> {
        let request =
            ListWorkersRequest { model: Some(seen.facts.model.clone()), ..Default::default() };
        let listed = self.workers.clone().list_workers(request).await;
        let listed = listed.map_err(|status| status.message().to_owned())?.into_inner();
        let name = seen.spec.name();
        let worker = listed.workers.into_iter().find(|worker| worker.worker_id == name);
        worker.ok_or_else(|| "the engine is not registered".to_owned())
    }

    async fn send(&self, seen: &Seen, request: &ApiRequest) -> Result<Usage, String> {
        let body = Value::Object(request.body.clone()).to_string();
        // With several ranks, both requests go to one of them.
        let rank = seen.facts.ranks.first().copied().filter(|_| seen.facts.ranks.len() > 1);
        let sent = Sent { path: request.kind.path(), body: body.into(), rank, request_id: None };
        let engine: &Uri = &seen.spec.url;
        let answering = async { self.client.send(engine, sent).await?.whole().await };
        let answer = timeout(ANSWER_TIMEOUT, answering).await;
        let answer = answer.map_err(|_late| format!("no answer within {ANSWER_TIMEOUT:?}"))?;
        let answer = answer.map_err(|error| error.to_string())?;
        let body = String::from_utf8_lossy(&answer.body);
        if !answer.status.is_success() {
            let body: String = body.chars().take(200).collect();
            return Err(format!("{} answers {}: {body}", request.kind.path(), answer.status));
        }
        Ok(Usage::read(&body))
    }
}

/// Counts in an engine's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Usage {
    prompt_tokens: Option<u64>,
    cached_tokens: Option<u64>,
}

impl Usage {
    fn read(body: &str) -> Self {
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let count = |path| body.pointer(path).and_then(Value::as_u64);
        Self {
            prompt_tokens: count("/usage/prompt_tokens"),
            cached_tokens: count("/usage/prompt_tokens_details/cached_tokens"),
        }
    }
}

const fn step(name: &'static str, outcome: Result<String, String>) -> Step {
    Step { name, outcome }
}

fn facts(seen: &Seen) -> Step {
    let facts = &seen.facts;
    let version = facts.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
    let blocks = facts.blocks.map_or(String::new(), |blocks| format!(", {blocks} blocks"));
    let other = facts.other_block_size;
    let other = other.map_or(String::new(), |size| format!(" (stated; its /metrics says {size})"));
    let text = format!(
        "{}{version}, model {}, {} tokens per block{other}{blocks}",
        facts.kind, facts.model, facts.block_size
    );
    step("engine", Ok(text))
}

/// A request with a random prompt, and a salt of its own.
fn random_request(kind: Kind, words: u64, model: &str) -> Result<ApiRequest, String> {
    let mut random = rand::rng();
    let words: Vec<_> = (0..words).map(|_| random.random_range(100..1_000).to_string()).collect();
    let text = words.join(" ");
    let salt = format!("kvasir-check-{:032x}", random.random::<u128>());
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(model));
    body.insert("max_tokens".to_owned(), json!(1));
    body.insert("temperature".to_owned(), json!(0));
    body.insert("cache_salt".to_owned(), json!(salt));
    match kind {
        Kind::Chat => {
            body.insert("messages".to_owned(), json!([{"role": "user", "content": text}]))
        }
        Kind::Completion => body.insert("prompt".to_owned(), json!(text)),
    };
    ApiRequest::read(kind, Value::Object(body).to_string().as_bytes())
        .map_err(|error| error.message().to_owned())
}

fn other_tokens(ours: u64, engines: u64) -> String {
    format!(
        "the gateway counts {ours} tokens, the engine {engines}: the gateway's tokenizer or chat template is another one; \
         take the model's own tokenizer.json and tokenizer_config.json, or leave --tokenizer out"
    )
}

/// Explains why the index has `blocks` of the prompt, while the engine computed `expected`. `before` is the worker before
/// the request. `is_stated`: the user states the block size, not the engine.
fn missing_blocks(
    before: &WorkerInfo,
    worker: &WorkerInfo,
    (blocks, expected): (usize, usize),
    is_stated: bool,
) -> String {
    let reasons = worker.sources.iter().flat_map(|source| &source.reasons);
    let found = reasons.clone().find(|reason| reason.reason() == Reason::BlockSize);
    if let Some(found) = found {
        let size = worker.block_size;
        let fix = if is_stated {
            format!("remove block-size={size}, or correct it")
        } else {
            "events=tcp://HOST:PORT is another engine's address, or state the size of the events with block-size=TOKENS"
                .to_owned()
        };
        return format!(
            "the events have blocks of another size ({}) than {size}: {fix}",
            found.example
        );
    }
    // Earlier events may have come from the replay socket.
    let cursor = |worker: &WorkerInfo| {
        worker.sources.iter().map(|source| source.applied.clone()).collect::<Vec<_>>()
    };
    if cursor(before) == cursor(worker) {
        let names: Vec<_> = worker.sources.iter().map(|at| at.source.as_str()).collect();
        return format!(
            "connected to {}, but no event came of the prompt: another program listens there, or the engine's events are off \
             (--kv-events-config with enable_kv_cache_events); state the right address with events=tcp://HOST:PORT",
            names.join(", ")
        );
    }
    let shown: Vec<_> = reasons
        .take(3)
        .map(|reason| format!("{} ({})", reason.reason().as_str_name(), reason.example))
        .collect();
    let shown = if shown.is_empty() { String::new() } else { format!("; {}", shown.join(", ")) };
    format!(
        "events came, but with {blocks} of {expected} blocks of the prompt: events=tcp://HOST:PORT is another engine's address, \
         or the tokens differ from the engine's (tokenizer or chat template){shown}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::pb::{Cursor, StateReason};

    fn worker(sources: Vec<SourceInfo>) -> WorkerInfo {
        WorkerInfo { block_size: 16, sources, ..Default::default() }
    }

    fn heard(reasons: Vec<StateReason>) -> SourceInfo {
        SourceInfo {
            source: "tcp://gpu:5557".to_owned(),
            applied: Some(Cursor::default()),
            reasons,
            ..Default::default()
        }
    }

    #[test]
    fn missing_blocks_are_explained_with_the_fix() {
        let reason = StateReason {
            reason: Reason::BlockSize.into(),
            example: "block_size=32".to_owned(),
            ..Default::default()
        };
        let silent = worker(vec![SourceInfo { applied: None, ..heard(Vec::new()) }]);
        let other_size = worker(vec![heard(vec![reason])]);
        let text = missing_blocks(&silent, &other_size, (0, 3), true);
        assert!(text.contains("block_size=32") && text.contains("remove block-size=16"), "{text}");
        let text = missing_blocks(&silent, &other_size, (0, 3), false);
        assert!(text.contains("is another engine's address") && text.contains("TOKENS"), "{text}");
        // Nothing ever came, or nothing since the request.
        for same in [silent.clone(), worker(vec![heard(Vec::new())])] {
            let text = missing_blocks(&same, &same, (0, 3), false);
            assert!(text.contains("no event came") && text.contains("tcp://gpu:5557"), "{text}");
        }
        let text = missing_blocks(&silent, &worker(vec![heard(Vec::new())]), (1, 3), false);
        assert!(text.contains("1 of 3 blocks") && text.contains("template"), "{text}");
    }

    #[test]
    fn usage_is_read_where_the_engine_states_it() {
        let body =
            r#"{"usage": {"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 48}}}"#;
        assert_eq!(Usage::read(body), Usage { prompt_tokens: Some(50), cached_tokens: Some(48) });
        let body = r#"{"usage": {"prompt_tokens": 50, "prompt_tokens_details": null}}"#;
        assert_eq!(Usage::read(body), Usage { prompt_tokens: Some(50), cached_tokens: None });
        assert_eq!(Usage::read("no JSON"), Usage { prompt_tokens: None, cached_tokens: None });
    }
}
