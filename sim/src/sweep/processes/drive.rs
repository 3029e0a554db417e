//! Sends requests at their times, whether engines keep up or not (open loop).

use super::fleet::{Fleet, MODEL, Router};
use super::requests::Request;
use crate::engine::openai::client::call_with;
use anyhow::{Context, Result, ensure};
use futures::future::join;
use hyper::{Method, StatusCode};
use indicatif::ProgressBar;
use kvasir_proto::pb;
use serde_json::Value;
use std::net::SocketAddr;
use std::str::from_utf8;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

/// Maximum number of active requests. More mean that the engines do not keep up.
const UNDER_WAY_REQUESTS_MAX: usize = 4_096;
/// Timeout of one request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// Lead time before the first request, so that it is not late.
const LEAD_TIME: Duration = Duration::from_millis(50);

/// Times and token counts of a request, in real time from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) number: usize,
    /// Time between a request's planned and actual sending.
    pub(super) lateness: Duration,
    /// The engine chosen by the router.
    pub(super) engine: usize,
    /// Whether the index answered the router's query, if there was one.
    pub(super) is_informed: bool,
    /// Prompt tokens that the router expected in the cache.
    pub(super) expected_tokens: u64,
    /// Prompt tokens that the engine found there.
    pub(super) cached_tokens: u64,
    pub(super) first_token: Duration,
    pub(super) end: Duration,
}

/// Shared state of all requests.
#[derive(Debug, Clone)]
struct Client {
    router: Router,
    engines: Arc<[SocketAddr]>,
    start: Instant,
}

/// Sends all requests and waits for all answers. Returns the answers in the order of the requests.
///
/// # Errors
/// At the first request that fails, or if too many requests are active.
pub(super) async fn drive(
    fleet: &Fleet,
    requests: &Arc<[Request]>,
    bar: &ProgressBar,
) -> Result<Vec<Reply>> {
    let client = Client {
        router: fleet.router.clone(),
        engines: fleet.addresses().into(),
        start: Instant::now() + LEAD_TIME,
    };
    let mut under_way = JoinSet::new();
    let mut replies = Vec::with_capacity(requests.len());
    let mut note = |done: Result<Result<Reply>, JoinError>| {
        bar.inc(1);
        replies.push(done.context("a request panicked")??);
        anyhow::Ok(())
    };
    for (number, request) in requests.iter().enumerate() {
        let due = sleep_until(client.start + request.due);
        tokio::pin!(due);
        loop {
            tokio::select! {
                biased;
                () = &mut due => break,
                Some(done) = under_way.join_next(), if !under_way.is_empty() => note(done)?,
            }
        }
        ensure!(
            under_way.len() < UNDER_WAY_REQUESTS_MAX,
            "the engines do not keep up: {UNDER_WAY_REQUESTS_MAX} requests are under way"
        );
        under_way.spawn(client.clone().serve(Arc::clone(requests), number));
    }
    while let Some(done) = under_way.join_next().await {
        note(done)?;
    }
    replies.sort_unstable_by_key(|reply| reply.number);
    Ok(replies)
}

// === impl Client ===

impl Client {
    async fn serve(self, requests: Arc<[Request]>, number: usize) -> Result<Reply> {
        let request = requests.get(number).context("a request that is not there")?;
        let reply = self.serve_one(request, number).await;
        reply.with_context(|| format!("request {number}"))
    }

    /// Handles a request like a gateway: selects a worker, sends the request there, and reports its progress.
    async fn serve_one(mut self, request: &Request, number: usize) -> Result<Reply> {
        let lateness = (self.start + request.due).elapsed();
        let request_id = number.to_string();
        let selected = self.router.select_worker(select(request, &request_id)).await?.into_inner();
        let engine: usize = selected.worker_id.trim_start_matches("engine-").parse()?;
        let address = *self.engines.get(engine).context("an engine that is not there")?;

        let (told, heard) = oneshot::channel();
        let mut told = Some(told);
        let answer = self.ask(address, request, || {
            if let Some(told) = told.take() {
                // The receiver waits for this message.
                let _told = told.send(Instant::now());
            }
        });
        let mut router = self.router.clone();
        let marked = async {
            let first = heard.await.context("no token came")?;
            router.mark_prefill_completed(mark(&request_id)).await.context("report the token")?;
            anyhow::Ok(first)
        };
        let (answer, first) = join(answer, marked).await;
        let cached_tokens = answer?;
        let first = first?;
        let end = Instant::now();
        let freed = self.router.free(free(&request_id, cached_tokens)).await;
        let expected = freed.context("report the end")?.into_inner().expected_cached_tokens;
        let since = |at: Instant| at.duration_since(self.start);
        Ok(Reply {
            number,
            lateness,
            engine,
            is_informed: is_informed(selected.index()),
            expected_tokens: expected.unwrap_or(0),
            cached_tokens,
            first_token: since(first),
            end: since(end),
        })
    }

    /// Sends a request to an engine. Returns how many prompt tokens it had cached.
    async fn ask(
        &self,
        address: SocketAddr,
        request: &Request,
        mut on_part: impl FnMut(),
    ) -> Result<u64> {
        let host = address.ip().to_string();
        let to = (host.as_str(), address.port());
        let body = request.body.clone();
        let called =
            call_with(Method::POST, to, "/v1/completions", (body, ANSWER_TIMEOUT), |_part| {
                on_part()
            });
        let (status, answer) = called.await.context("ask the engine")?;
        let answer = from_utf8(&answer)?;
        ensure!(status == StatusCode::OK, "the engine answered {status}: {answer}");
        let (cached, answered) = usage(answer).context("the engine stated no usage")?;
        let wanted = request.answer_tokens as u64;
        ensure!(answered == wanted, "the answer has {answered} tokens, not {wanted}");
        Ok(cached)
    }
}

fn select(request: &Request, request_id: &str) -> pb::SelectWorkerRequest {
    let has_blocks = !request.local_hashes.is_empty();
    pb::SelectWorkerRequest {
        model: MODEL.to_owned(),
        request_id: request_id.to_owned(),
        token_ids: request.token_ids.clone(),
        local_hashes: request.local_hashes.clone(),
        input_tokens: has_blocks.then_some(request.prompt_tokens as u64),
        ..pb::SelectWorkerRequest::default()
    }
}

fn mark(request_id: &str) -> pb::MarkPrefillCompletedRequest {
    pb::MarkPrefillCompletedRequest {
        model: MODEL.to_owned(),
        request_id: request_id.to_owned(),
        ..pb::MarkPrefillCompletedRequest::default()
    }
}

fn free(request_id: &str, cached_tokens: u64) -> pb::FreeRequest {
    pb::FreeRequest {
        model: MODEL.to_owned(),
        request_id: request_id.to_owned(),
        failed: Some(false),
        cached_tokens: Some(cached_tokens),
        ..pb::FreeRequest::default()
    }
}

fn is_informed(outcome: pb::IndexOutcome) -> bool {
    matches!(outcome, pb::IndexOutcome::Answered | pb::IndexOutcome::NotNeeded)
}

/// Cached tokens of the prompt, and tokens of the answer, from the last event of a stream that states them.
fn usage(stream: &str) -> Option<(u64, u64)> {
    let events = stream.lines().rev().filter_map(|line| line.strip_prefix("data: "));
    let usage = |event: &str| {
        let event: Value = serde_json::from_str(event).ok()?;
        let cached = event.pointer("/usage/prompt_tokens_details/cached_tokens")?.as_u64()?;
        Some((cached, event.pointer("/usage/completion_tokens")?.as_u64()?))
    };
    events.take(2).find_map(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usage_is_what_the_end_of_a_stream_says() {
        let usage_event = r#"{"choices": [], "usage": {"completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 64}}}"#;
        let stream =
            format!("data: {{\"usage\": null}}\n\ndata: {usage_event}\n\ndata: [DONE]\n\n");
        assert_eq!(usage(&stream), Some((64, 7)));
        assert_eq!(usage("data: {\"usage\": null}\n\ndata: [DONE]\n\n"), None);
    }
}
