//! Processes a request from its body to its answer.

use super::answer::{Head, Usage};
use super::body::{Asked, Body, Kind, KvTransferParams};
use super::error::{ApiError, json_response};
use super::remote::{Claim, LoadFailure};
use super::state::State;
use super::text::Answer;
use crate::engine::live::{Progress, Submission, Ticket};
use crate::engine::pool::BlockId;
use axum::http::StatusCode;
use axum::response::Response;
use std::sync::Arc;

/// An active request. Dropping it cancels the request, and releases its blocks at another engine.
pub(super) struct Generation {
    pub(super) head: Head,
    pub(super) answer: Answer,
    pub(super) ticket: Ticket,
    pub(super) claim: Option<Claim>,
    prompt_tokens: usize,
    is_cut: bool,
    is_held: bool,
    engine_id: String,
    address: (String, u16),
}

/// Starts the request of a body. Returns true if the answer is to be streamed.
pub(super) async fn begin(
    state: &Arc<State>,
    kind: Kind,
    body: &[u8],
) -> Result<(Generation, bool), ApiError> {
    let asked = Body::read(body)?.asked(kind, &state.text, &state.limits)?;
    let is_stream = asked.is_stream;
    Ok((submit(state, asked).await?, is_stream))
}

async fn submit(state: &State, asked: Asked) -> Result<Generation, ApiError> {
    let is_held = asked.transfer.do_remote_decode;
    if is_held && !state.may_prefill() {
        let message = "this engine's prefills fail, as it was started to do";
        return Err(ApiError::with(StatusCode::INTERNAL_SERVER_ERROR, message));
    }
    let claim = claim(state, &asked).await?;
    let answer = match asked.answer {
        Some(mut tokens) => {
            tokens.truncate(asked.answer_tokens);
            state.text.written(tokens)
        }
        None => state.text.answer(&asked.prompt, asked.answer_tokens),
    };
    let answer = answer.map_err(|why| {
        ApiError::with(StatusCode::INTERNAL_SERVER_ERROR, format!("no answer: {why:#}"))
    })?;
    let prompt_tokens = asked.prompt.len();
    let submission = Submission {
        prompt: asked.prompt,
        answer: answer.tokens.clone(),
        salt: asked.salt,
        is_cut: asked.is_cut,
        is_remote: claim.is_some(),
        is_held,
    };
    let ticket = state.engine.submit(submission).await?;
    let prefix = match asked.kind {
        Kind::Completion => "cmpl",
        Kind::Chat => "chatcmpl",
    };
    let head = Head {
        kind: asked.kind,
        id: format!("{prefix}-{}-{}", state.engine_id, ticket.id()),
        created: state.now_secs(),
        model: state.limits.model.clone(),
        has_usage: asked.has_usage,
    };
    let engine_id = state.engine_id.clone();
    let address = state.address.clone();
    let is_cut = asked.is_cut;
    Ok(Generation {
        head,
        answer,
        ticket,
        claim,
        prompt_tokens,
        is_cut,
        is_held,
        engine_id,
        address,
    })
}

/// Claims the request's blocks at another engine, if the request names such an engine.
async fn claim(state: &State, asked: &Asked) -> Result<Option<Claim>, ApiError> {
    if !asked.transfer.do_remote_prefill {
        return Ok(None);
    }
    let claim = Claim::ask(&asked.transfer, &asked.prompt, Arc::clone(&state.tasks)).await;
    match (claim, state.load_failure) {
        (Ok(claim), _) => Ok(Some(claim)),
        (Err(_), LoadFailure::Recompute) => Ok(None),
        (Err(why), LoadFailure::Fail) => {
            let message = format!("the blocks of the prompt cannot be fetched: {why:#}");
            Err(ApiError::with(StatusCode::INTERNAL_SERVER_ERROR, message))
        }
    }
}

impl Generation {
    /// The complete answer.
    pub(super) async fn whole(mut self) -> Result<Response, ApiError> {
        let gone = || ApiError::with(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped");
        self.ticket.further(0).await.ok_or_else(gone)?;
        // The blocks of the other engine have arrived here.
        self.claim = None;
        let done = self.ticket.done().await.ok_or_else(gone)?;
        let text = self.answer.pieces.concat();
        let transfer = self.transfer(&done.held);
        let whole = self.head.whole(&text, self.reason(), self.usage(&done), transfer.as_ref());
        Ok(json_response(StatusCode::OK, &whole))
    }

    pub(super) const fn reason(&self) -> &'static str {
        if self.is_cut { "length" } else { "stop" }
    }

    pub(super) const fn usage(&self, done: &Progress) -> Usage {
        Usage { prompt: self.prompt_tokens, cached: done.cached_tokens, answer: done.out }
    }

    /// The parameters that another engine needs to fetch the blocks.
    pub(super) fn transfer(&self, blocks: &[BlockId]) -> Option<KvTransferParams> {
        self.is_held.then(|| KvTransferParams {
            do_remote_decode: false,
            do_remote_prefill: true,
            remote_engine_id: Some(self.engine_id.clone()),
            remote_request_id: Some(self.ticket.id().to_string()),
            remote_block_ids: Some(blocks.to_vec()),
            remote_host: Some(self.address.0.clone()),
            remote_port: Some(self.address.1),
            tp_size: Some(1),
        })
    }
}
