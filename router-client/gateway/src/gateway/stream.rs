//! Streams an answer: passes each event to the client as it arrives.

use super::job::Job;
use super::next_turn::NextTurn;
use super::serving::{Ending, Serving};
use super::{Failure, Gateway, respond};
use crate::answer::{EventKind, Events};
use crate::error::ApiError;
use crate::metrics::End;
use axum::body::{Body, Bytes};
use axum::response::Response;
use futures::{Stream, stream};
use hyper::StatusCode;
use hyper::header::HeaderValue;
use kvasir_engine_http::{Answer, EngineError};
use kvasir_trace::fail;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tracing::Span;

/// A stream to a client.
struct Streaming<S> {
    gateway: Arc<Gateway>,
    events: Events<S>,
    /// `None` after the answer has ended.
    serving: Option<Serving>,
    next: Option<NextTurn>,
    /// The event received before the client got the answer's head.
    first: Option<Bytes>,
    wants_usage: bool,
    stall_timeout: Duration,
    ending: Ending,
}

impl Gateway {
    /// Waits for the first event; until it arrives, another worker may answer instead. Then returns a response that
    /// passes the events to the client.
    pub(super) async fn stream(
        self: &Arc<Self>,
        job: &Job,
        answer: Answer,
        mut serving: Serving,
        next: Option<NextTurn>,
        ending: &mut Ending,
    ) -> Result<Response, Failure> {
        let mut events = Events::new(answer.pieces());
        let first = match self.alive(&mut serving, events.next()).await {
            Some(Ok(Some(first))) => first,
            Some(Ok(None)) => return Err(serving.fail("the answer is empty".to_owned())),
            Some(Err(error)) => return Err(serving.fail(error.to_string())),
            None => return Err(serving.fail("no answer in time".to_owned())),
        };
        let content_type = HeaderValue::from_static("text/event-stream; charset=utf-8");
        let response = respond(&serving, StatusCode::OK, Some(content_type), Body::empty());
        let streaming = Streaming {
            gateway: Arc::clone(self),
            events,
            serving: Some(serving),
            next,
            first: Some(first),
            wants_usage: job.request.wants_usage,
            stall_timeout: self.config.engines.stall_timeout,
            ending: ending.hand_on(),
        };
        let pieces = stream::unfold(streaming, |mut streaming| async {
            let event = streaming.next().await?;
            Some((Ok::<_, Infallible>(event), streaming))
        });
        Ok(response.map(|_empty| Body::from_stream(pieces)))
    }
}

impl<S> Streaming<S>
where
    S: Stream<Item = Result<Bytes, EngineError>> + Unpin,
{
    /// Returns the next event for the client, or `None` at the end. If the stream breaks, returns an error event.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let serving = self.serving.as_mut()?;
            let event = match self.first.take() {
                Some(first) => Ok(Some(first)),
                None => match timeout(self.stall_timeout, self.events.next()).await {
                    Ok(event) => event.map_err(|error| error.to_string()),
                    Err(_late) => Err("the engine has stalled".to_owned()),
                },
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return Some(self.broken("the stream ended early")),
                Err(why) => return Some(self.broken(&why)),
            };
            match serving.event(&event) {
                EventKind::Part => return Some(event),
                EventKind::Usage if self.wants_usage => return Some(event),
                EventKind::Usage => {}
                EventKind::Done => {
                    self.complete();
                    return Some(event);
                }
                EventKind::Error => {
                    self.failed("the engine's stream ended with an error");
                    return Some(event);
                }
            }
        }
    }

    fn complete(&mut self) {
        if let Some(serving) = self.serving.take() {
            let tally = serving.complete();
            self.ending.set(End::Complete);
            self.gateway.go_on(self.next.take(), &tally);
        }
    }

    fn failed(&mut self, why: &str) {
        if let Some(mut serving) = self.serving.take() {
            tracing::warn!(worker = %serving.worker(), why, "an answer broke off");
            fail(&Span::current(), &why);
            self.ending.set(End::Failed);
            let _reported = serving.fail(why.to_owned());
        }
    }

    /// Reports a failure to a client that already has a part of the answer, in the form of an engine's error.
    fn broken(&mut self, why: &str) -> Bytes {
        self.failed(why);
        let error = ApiError::failed(format!("The answer broke off: {why}"));
        format!("data: {}\n\n", error.json()).into()
    }
}
