//! Streams answers as server-sent events.

use super::answer::{DONE, event};
use super::error::ApiError;
use super::generate::Generation;
use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::Response;
use futures::stream::unfold;
use serde_json::json;
use std::convert::Infallible;

/// An answer that is being sent.
struct Streamed {
    generation: Generation,
    /// Number of tokens sent.
    sent: usize,
}

/// A streamed response. If the client disconnects, the response is dropped.
pub(super) fn stream(generation: Generation) -> Response {
    let parts = unfold(Some(Streamed { generation, sent: 0 }), |streamed| async {
        let (text, streamed) = streamed?.next().await;
        Some((Ok::<_, Infallible>(Bytes::from(text)), streamed))
    });
    let mut response = Response::new(Body::from_stream(parts));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

impl Streamed {
    /// The next events, and the rest of the answer.
    async fn next(mut self) -> (String, Option<Self>) {
        let Self { generation, sent } = &mut self;
        let Some(progress) = generation.ticket.further(*sent).await else {
            let stopped = ApiError::with(StatusCode::SERVICE_UNAVAILABLE, "the engine has stopped");
            return (event(&stopped.json()), None);
        };
        generation.claim = None;
        let mut text = String::new();
        if let Some(begin) = generation.head.begin().filter(|_| *sent == 0) {
            text += &event(&begin);
        }
        let all = generation.answer.pieces.len();
        for (at, piece) in
            generation.answer.pieces.iter().enumerate().take(progress.out).skip(*sent)
        {
            let is_last = at + 1 == all;
            let mut part = generation.head.part(piece, is_last.then(|| generation.reason()));
            if let Some(transfer) = generation.transfer(&progress.held).filter(|_| is_last) {
                part["kv_transfer_params"] = json!(transfer);
            }
            text += &event(&part);
        }
        *sent = progress.out;
        if !progress.is_done {
            return (text, Some(self));
        }
        if generation.head.has_usage {
            text += &event(&generation.head.usage(generation.usage(&progress)));
        }
        text += DONE;
        (text, None)
    }
}
