//! `speculative_prefill`: after an answer, the gateway prefills the conversation with the answer on the same worker.
//! The next turn then finds the complete conversation in that worker's cache.

use super::job::Job;
use super::prefill::one_token;
use super::{Gateway, SPECULATIONS_MAX, bytes};
use crate::answer::Tally;
use crate::error::engine_status;
use crate::request::{ApiRequest, Kind, Prompt};
use kvasir_access::Principal;
use kvasir_engine_http::Sent;
use kvasir_proto::types::WorkerKey;
use kvasir_trace::step;
use router_client::route::Pin;
use router_client::router::{Ended, Hints};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tracing::Instrument;

/// A request whose conversation is prefilled ahead.
#[derive(Debug)]
pub(super) struct NextTurn {
    request: ApiRequest,
    worker: WorkerKey,
}

impl NextTurn {
    /// The next turn of a request; `None` unless the request enables it.
    pub(super) fn from_job(job: &Job, worker: WorkerKey) -> Option<Self> {
        let is_asked = job.request.extension.speculative_prefill;
        is_asked.then(|| Self { request: job.request.clone(), worker })
    }

    /// Returns the conversation with the answer, to be prefilled with one output token, and the worker. Returns `None`
    /// if the next turn cannot be predicted.
    fn with_answer(self, answer: &str) -> Option<(ApiRequest, WorkerKey)> {
        let Self { mut request, worker } = self;
        let mut body = one_token(&request.body);
        match request.kind {
            Kind::Chat => {
                let messages = body.get_mut("messages")?.as_array_mut()?;
                messages.push(json!({"role": "assistant", "content": answer}));
                // The next turn continues after the answer, without the prompt for another answer.
                body.insert("add_generation_prompt".to_owned(), Value::Bool(false));
            }
            Kind::Completion => {
                let prompts = request.prompts().ok()?;
                let [Prompt::Text(prompt)] = prompts.as_slice() else { return None };
                body.insert("prompt".to_owned(), Value::String(format!("{prompt}{answer}")));
            }
        }
        request.body = body;
        request.is_stream = false;
        request.extension.speculative_prefill = false;
        request.extension.token_data = None;
        Some((request, worker))
    }
}

impl Gateway {
    /// Starts to prefill the next turn in the background. Only counts the reason if the answer lacks text or too many
    /// prefills run, and returns immediately if `next` is `None`.
    pub(super) fn go_on(self: &Arc<Self>, next: Option<NextTurn>, tally: &Tally) {
        let Some(next) = next else { return };
        let metrics = &self.parts.metrics;
        let turn = tally.text().and_then(|answer| next.with_answer(answer));
        let Some((request, worker)) = turn else {
            metrics.speculation("no_text");
            return;
        };
        if self.speculations.len() >= SPECULATIONS_MAX || self.stop.is_cancelled() {
            metrics.speculation("too_many");
            return;
        }
        let gateway = Arc::clone(self);
        let computing_ahead = async move {
            let computing = Box::pin(gateway.compute_ahead(request, worker));
            match gateway.stop.run_until_cancelled(computing).await {
                Some(Ok(())) => gateway.parts.metrics.speculation("done"),
                Some(Err(why)) => {
                    tracing::debug!(why, "a conversation is not computed ahead");
                    gateway.parts.metrics.speculation("failed");
                }
                None => gateway.parts.metrics.speculation("failed"),
            }
        };
        self.speculations.spawn(computing_ahead.instrument(step!("compute_ahead")));
    }

    /// Sends the conversation to the worker with one output token, so that its cache has the conversation before the
    /// next turn. Fails if the worker is busy.
    async fn compute_ahead(&self, request: ApiRequest, worker: WorkerKey) -> Result<(), String> {
        // The caller's access to this conversation was already checked.
        let caller = Principal::anyone();
        let job = self.job(&caller, request, Instant::now()).await;
        let job = job.map_err(|error| error.message().to_owned())?;
        let mut hints = Hints {
            // Only if the worker is idle: no wait in the queue.
            queue_timeout: Some(Duration::ZERO),
            expected_output_tokens: Some(1),
            ..job.hints.clone()
        };
        hints.filter.model_type = None;
        hints.filter.pin = Some(Pin { worker: worker.worker.clone(), rank: Some(worker.rank) });
        let router = job.partition.router_for(&hints.filter);
        let reservation = router.select_hashed(&job.prompt, &hints).await;
        let reservation = reservation.map_err(|error| error.to_string())?;
        let engine = self.parts.directory.engine(&job.target.partition, &worker.worker);
        let engine = engine.ok_or_else(|| "the engine's address is not known".to_owned())?;
        let mut body = job.request.body.clone();
        job.request.add_salt(&mut body);
        let sent = Sent {
            path: job.request.kind.path(),
            body: bytes(body),
            rank: engine.has_ranks.then_some(worker.rank),
            request_id: Some(reservation.request_id()),
        };
        let asking = async {
            let answer = self.parts.client.send(&engine.address, sent).await?;
            answer.whole().await
        };
        let answer = timeout_at(job.deadline(reservation.choice()), asking).await;
        let answer = answer.map_err(|_late| "no answer in time".to_owned());
        let answer = answer?.map_err(|error| error.to_string())?;
        // A failure here does not count against the worker's health.
        let _freed = reservation.end(Ended::default());
        if answer.status.is_success() { Ok(()) } else { Err(engine_status(answer.status)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvasir_proto::types::WorkerId;

    fn next(kind: Kind, body: &Value) -> Option<Value> {
        let request = ApiRequest::read(kind, body.to_string().as_bytes()).expect("a request");
        let worker = WorkerKey { worker: WorkerId::new("w").expect("a name"), rank: 0 };
        let (request, _) = NextTurn { request, worker }.with_answer("answer")?;
        Some(Value::Object(request.body))
    }

    #[test]
    fn the_next_turn_begins_with_the_answer() {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": true});
        let expected = json!({
            "model": "m",
            "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "answer"}],
            "stream": false, "max_tokens": 1, "add_generation_prompt": false,
        });
        assert_eq!(next(Kind::Chat, &body), Some(expected));
        let expected =
            json!({"model": "m", "prompt": "p answer", "stream": false, "max_tokens": 1});
        assert_eq!(next(Kind::Completion, &json!({"model": "m", "prompt": "p "})), Some(expected));
        assert_eq!(next(Kind::Completion, &json!({"model": "m", "prompt": [1, 2]})), None);
    }
}
