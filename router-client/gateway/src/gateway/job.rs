//! Prepares a request before a worker is chosen: model, tokens and hashes.

use super::fetch::{PARAMETERS, add_plan};
use super::{Gateway, bytes};
use crate::engines::Target;
use crate::error::ApiError;
use crate::request::{ApiRequest, Kind};
use crate::tokens::Found;
use axum::body::Bytes;
use kvasir_access::Principal;
use kvasir_proto::convert::ModelType;
use kvasir_proto::hash::Namespace;
use kvasir_proto::types::{LocalHash, SequenceHash};
use kvasir_router::fleet::Partition;
use kvasir_trace::step;
use router_client::route::FetchPlan;
use router_client::router::{Choice, Hints};
use router_client::{HashedPrompt, Prompt};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::time::Instant;
use tracing::Instrument;

/// Bytes of a prompt per token, an estimate for prompts without known tokens.
const TOKEN_BYTES: usize = 4;

/// A prepared request.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) request: ApiRequest,
    pub(super) target: Target,
    pub(super) partition: Partition,
    /// Without hashes if the tokens are unknown.
    pub(super) prompt: HashedPrompt,
    pub(super) hints: Hints,
    pub(super) began: Instant,
    /// Duration of hashing.
    pub(super) hashing: Duration,
    /// Maximum time until an answer begins.
    pub(super) answer_timeout: Duration,
}

impl Gateway {
    /// Finds the model, its partition and the tokens of a request. Fails as for an unknown model if the caller may not
    /// use it.
    pub(super) async fn job(
        &self,
        caller: &Principal,
        request: ApiRequest,
        began: Instant,
    ) -> Result<Job, ApiError> {
        let directory = &self.parts.directory;
        let tenant = &self.config.tenant;
        let unknown = || self.unknown_model(caller, &request.model);
        let target = directory.target(tenant, &request.model).ok_or_else(unknown)?;
        // Access to an adapter also requires access to its model.
        if !caller.sees(tenant, target.partition.model()) {
            return Err(unknown());
        }
        let partition = self.parts.fleet.partition(&target.partition).ok_or_else(unknown)?;
        let lacking = directory.workers_without(&target);
        let engines = directory.addresses(&target.partition, &lacking);
        let span = step!("tokenize");
        let tokens = self.parts.tokens.of(target.partition.model(), &request, &engines);
        let found = tokens.instrument(span).await?;
        let block_size = partition.block_size.get();
        let hashing_began = Instant::now();
        let prompt = match &found {
            Found::Tokens(tokens, all) => {
                let namespace =
                    Namespace { lora_name: &target.adapter, cache_salt: request.cache_salt() };
                let prompt = Prompt {
                    tenant: target.partition.tenant(),
                    namespace,
                    shared: true,
                    ..Prompt::new(target.partition.model(), block_size, &[])
                };
                let form = || directory.image_tokens(&target.partition);
                HashedPrompt { input_tokens: *all, ..tokens.hashed(prompt, form) }
            }
            Found::Unknown(_) => HashedPrompt {
                model: target.partition.model().to_owned(),
                tenant: target.partition.tenant().to_owned(),
                block_size,
                input_tokens: about(&request),
                local_hashes: Vec::new(),
                next_tokens: Vec::new(),
                minimum_overlap_blocks: 1,
                top_k: 0,
                shared: true,
            },
        };
        let unknown = match found {
            Found::Tokens(..) => None,
            Found::Unknown(why) => Some(why),
        };
        self.parts.metrics.tokens(unknown);
        let mut hints = request.hints().clone();
        hints.queue_timeout = Some(self.config.routing.queue_timeout);
        hints.adapter = Some(target.adapter.clone()).filter(|adapter| !adapter.is_empty());
        for worker in &lacking {
            hints = hints.excluding(worker);
        }
        hints.filter.model_type = Some(match request.kind {
            Kind::Chat => ModelType::Chat,
            Kind::Completion => ModelType::Completions,
        });
        let hashing = hashing_began.elapsed();
        let answer_timeout = self.config.engines.answer_timeout;
        Ok(Job { request, target, partition, prompt, hints, began, hashing, answer_timeout })
    }
}

impl Job {
    /// Deadline for the start of the answer. The wait for a worker does not count.
    pub(super) fn deadline(&self, choice: &Choice) -> Instant {
        let waited = choice.queued.map_or(Duration::ZERO, |queued| queued.waited);
        self.began + waited + self.answer_timeout
    }

    /// Tokens of the prompt, if the engine's cached tokens are comparable with the prediction.
    pub(super) fn comparable_tokens(&self) -> Option<u64> {
        let is_known = !self.prompt.local_hashes.is_empty();
        Some(self.prompt.input_tokens).filter(|_| is_known && self.request.shows_reuse())
    }

    /// Sequence hash of the prompt's first block, if its tokens are known and fill a block. `None` for `token_data`
    /// from the client: engines do not receive it, so it shows nothing about their tokens.
    pub(super) fn first_block(&self) -> Option<SequenceHash> {
        if self.request.extension.token_data.is_some() {
            return None;
        }
        let first = self.prompt.local_hashes.first().copied().map(LocalHash);
        kvasir_proto::hash::sequence_hashes(first.as_slice()).next()
    }

    /// Builds the body for the engine, with the prefill worker's transfer parameters and the fetch plan.
    pub(super) fn body(&self, parameters: Option<Value>, plan: Option<&FetchPlan>) -> Bytes {
        let mut body = self.request.body.clone();
        if self.request.is_stream {
            // The engine then reports the token counts; they are passed on only to clients that requested them.
            let options = body.entry("stream_options").or_insert_with(|| json!({}));
            if let Some(options) = options.as_object_mut() {
                options.insert("include_usage".to_owned(), Value::Bool(true));
            } else {
                *options = json!({"include_usage": true});
            }
        }
        self.request.add_salt(&mut body);
        if let Some(parameters) = parameters {
            body.insert(PARAMETERS.to_owned(), parameters);
        }
        if let Some(plan) = plan {
            add_plan(&mut body, plan);
        }
        bytes(body)
    }
}

/// Estimated number of tokens of a prompt.
fn about(request: &ApiRequest) -> u64 {
    let field = match request.kind {
        Kind::Chat => "messages",
        Kind::Completion => "prompt",
    };
    let text = request.body.get(field).map(Value::to_string).unwrap_or_default();
    (text.len() / TOKEN_BYTES).max(1) as u64
}
