//! Disaggregated serving in vLLM's protocol: the prefill worker computes the prompt and one token, and returns the
//! parameters with which the decode worker fetches its blocks.

use super::fetch::{PARAMETERS, add_plan};
use super::job::Job;
use super::{Gateway, bytes, while_alive};
use crate::error::engine_status;
use kvasir_engine_http::Sent;
use kvasir_trace::{fail, step};
use router_client::route::FetchPlan;
use router_client::router::Placement;
use serde_json::{Map, Value, json};
use tokio::time::timeout_at;
use tracing::Instrument;

impl Gateway {
    /// Lets the prefill worker compute the prompt. Returns the parameters for the decode worker, or `None` if the
    /// prefill fails; then the decode worker computes the prompt.
    pub(super) async fn prefill(&self, job: &Job, placement: &mut Placement) -> Option<Value> {
        let metrics = &self.parts.metrics;
        let worker = placement.prefill.as_ref()?.worker().clone();
        let lease = self.config.routing.router.active.lease;
        let asked = &*placement;
        let asking = self.ask_prefill(job, asked);
        match while_alive(lease, || asked.is_alive(), asking).await {
            Ok(Some(parameters)) => {
                placement.prefill_done();
                metrics.prefill("done");
                Some(parameters)
            }
            // Without parameters the decode worker cannot fetch blocks, so it computes the prompt itself.
            Ok(None) => {
                tracing::warn!(%worker, "a prefill worker returned no {PARAMETERS}: has it a KV connector?");
                metrics.prefill("without_parameters");
                None
            }
            Err(why) => {
                tracing::warn!(%worker, why, "a prefill worker failed: the decode worker computes the prompt");
                metrics.prefill("failed");
                None
            }
        }
    }

    /// Sends the prompt to the prefill worker. Returns the parameters with which the decode worker finds the blocks.
    /// Returns `None` if the placement lacks a prefill worker, or the answer lacks the parameters.
    async fn ask_prefill(&self, job: &Job, placement: &Placement) -> Result<Option<Value>, String> {
        let Some(reservation) = &placement.prefill else { return Ok(None) };
        let worker = reservation.worker();
        let engine = self.parts.directory.engine(&job.target.partition, &worker.worker);
        let engine = engine.ok_or_else(|| "the engine's address is not known".to_owned())?;
        let sent = Sent {
            path: job.request.kind.path(),
            body: bytes(prefill_body(job, reservation.decision().fetch.as_ref().ok())),
            rank: engine.has_ranks.then_some(worker.rank),
            request_id: Some(reservation.request_id()),
        };
        let asking = async {
            let answer = self.parts.client.send(&engine.address, sent).await;
            let answer = answer.map_err(|error| error.to_string())?;
            let status = answer.status();
            let whole = answer.whole().await.map_err(|error| error.to_string())?;
            if !status.is_success() {
                return Err(engine_status(status));
            }
            serde_json::from_slice::<Value>(&whole.body).map_err(|error| error.to_string())
        };
        let span = step!("prefill", otel.kind = "client", %worker);
        let asking = asking.instrument(span.clone());
        let answer = timeout_at(job.deadline(reservation.choice()), asking).await;
        let answer = answer.unwrap_or_else(|_late| Err("no answer in time".to_owned()));
        let mut answer = answer.inspect_err(|why| fail(&span, why))?;
        let parameters = answer.get_mut(PARAMETERS).map(Value::take);
        Ok(parameters.filter(Value::is_object))
    }
}

/// Builds the request for one token, after which another engine fetches the blocks. With `plan`, the prefill worker
/// itself fetches blocks first.
fn prefill_body(job: &Job, plan: Option<&FetchPlan>) -> Map<String, Value> {
    let mut body = one_token(&job.request.body);
    job.request.add_salt(&mut body);
    let parameters = json!({
        "do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
        "remote_block_ids": null, "remote_host": null, "remote_port": null,
    });
    body.insert(PARAMETERS.to_owned(), parameters);
    if let Some(plan) = plan {
        add_plan(&mut body, plan);
    }
    body
}

/// Returns the request limited to one token, without streaming.
pub(super) fn one_token(body: &Map<String, Value>) -> Map<String, Value> {
    let mut body = body.clone();
    for name in [
        "stream_options",
        "min_tokens",
        "n",
        "best_of",
        "logprobs",
        "top_logprobs",
        "response_format",
    ] {
        body.shift_remove(name);
    }
    body.insert("stream".to_owned(), Value::Bool(false));
    body.insert("max_tokens".to_owned(), 1.into());
    if let Some(most) = body.get_mut("max_completion_tokens") {
        *most = 1.into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_is_asked_for_whatever_the_client_wants() {
        let body = json!({
            "model": "m", "prompt": "p", "stream": true, "stream_options": {"include_usage": true}, "max_tokens": 50,
            "max_completion_tokens": 50, "min_tokens": 9, "n": 3, "temperature": 0.5,
        });
        let Value::Object(body) = body else { panic!("an object") };
        let expected = json!({
            "model": "m", "prompt": "p", "stream": false, "max_tokens": 1, "max_completion_tokens": 1, "temperature": 0.5,
        });
        assert_eq!(Value::Object(one_token(&body)), expected);
    }
}
