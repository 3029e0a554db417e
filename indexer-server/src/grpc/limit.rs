//! Bounds on calls: on those with one answer until it is made, on streams until the transport has been given all of
//! their answers. What is not taken of answers counts by its bytes.

use super::{
    GrpcMetrics,
    config::{
        BODY_TIMEOUT, LARGE_ANSWER_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_TIMEOUT,
        PUBLISHER_STREAMS_RESERVED, QUERY_STREAM_IDLE, SMALL_ANSWER_BYTES_MAX, STREAMS_MAX,
    },
};
use futures::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, Either, Ready, ready},
};
use kvasir_process::net::{
    AnswerBody, AnswerLimits, Limit, Pace, Peer, RequestBody, RequestLimits, Share,
};
use prometheus_client::metrics::counter::Counter;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tonic::{Status, body::Body, codegen::http};
use tower::{Layer, Service};

/// What begins the path of every call of our services: the others, such as health, are not bounded.
const OURS: &str = "/kvasir.v1.";
/// Many requests, each with an answer.
const QUERIES: &str = "/kvasir.v1.Indexer/FindMatchesStream";
/// Many requests, for which some streams are reserved.
const PUBLISHES: &str = "/kvasir.v1.EventIngest/PublishEvents";
/// One request, many answers.
const DUMPS: &str = "/kvasir.v1.Indexer/DumpWorker";
/// Calls with more than one message in a direction.
pub(super) const STREAMS: [&str; 3] = [QUERIES, PUBLISHES, DUMPS];

#[derive(Clone)]
pub(super) struct RequestLimit(Arc<Limits>);

struct Limits {
    calls: Limit,
    streams: Limit,
    /// Streams other than `PublishEvents`.
    asking_streams: Limit,
    message_bytes: Limit,
    answers: AnswerLimits,
    metrics: GrpcMetrics,
}

/// A call within its limits: it counts until this is dropped.
type Admitted = (Share, Share, Option<Share>);

impl RequestLimit {
    pub(super) fn new(calls_max: usize, metrics: GrpcMetrics) -> Self {
        let asking_max = STREAMS_MAX - PUBLISHER_STREAMS_RESERVED;
        Self(Arc::new(Limits {
            calls: Limit::new(calls_max, metrics.in_flight.clone()),
            streams: Limit::new(STREAMS_MAX, metrics.streams.clone()),
            asking_streams: Limit::new(asking_max, metrics.asking_streams.clone()),
            message_bytes: Limit::new(MESSAGE_BYTES_MAX, metrics.message_bytes.clone()),
            answers: AnswerLimits {
                large: Limit::new(LARGE_ANSWER_BYTES_MAX, metrics.large_answer_bytes.clone()),
                small: Limit::new(SMALL_ANSWER_BYTES_MAX, metrics.small_answer_bytes.clone()),
                refused: metrics.limited.clone(),
            },
            metrics,
        }))
    }
}

impl Limits {
    fn admit(&self, path: &str, peer: &Peer) -> Result<Admitted, Status> {
        let metrics = &self.metrics;
        if !STREAMS.contains(&path) {
            let take =
                |limit, what, reason| self.take(limit, (what, reason), &metrics.requests_refused);
            let all = take(&self.calls, "requests are under way", "calls")?;
            let own = "requests of this connection are under way";
            return Ok((all, take(&peer.calls, own, "calls_of_connection")?, None));
        }
        let take = |limit, what, reason| self.take(limit, (what, reason), &metrics.streams_refused);
        let all = take(&self.streams, "streams are open", "streams")?;
        let asking = || {
            let what = "streams other than PublishEvents are open";
            take(&self.asking_streams, what, "asking_streams")
        };
        let asking = (path != PUBLISHES).then(asking).transpose()?;
        let own = "streams of this connection are open";
        Ok((all, take(&peer.streams, own, "streams_of_connection")?, asking))
    }

    /// Takes a share of a limit, or refuses: `what` there is too much of.
    fn take(
        &self,
        limit: &Limit,
        (what, reason): (&str, &'static str),
        refused: &Counter,
    ) -> Result<Share, Status> {
        limit.take(1).ok_or_else(|| {
            refused.inc();
            self.metrics.limited.count(reason);
            let max = limit.max();
            Status::resource_exhausted(format!("{max} {what}, the limit: retry later"))
        })
    }

    fn request(&self, path: &str) -> RequestLimits {
        let message = MESSAGE_TIMEOUT;
        let pace = match path {
            QUERIES => Pace::Stream { message, idle: Some(QUERY_STREAM_IDLE) },
            PUBLISHES => Pace::Stream { message, idle: None },
            _ => Pace::Single(BODY_TIMEOUT),
        };
        let (message_bytes, unread) = (self.message_bytes.clone(), self.metrics.limited.clone());
        RequestLimits { pace, message_bytes, unread }
    }
}

impl<S> Layer<S> for RequestLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limits: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
pub(super) struct Limited<S> {
    inner: S,
    limits: Arc<Limits>,
}

type Answer<E> = Result<http::Response<Body>, E>;

impl<S> Service<http::Request<Body>> for Limited<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Future: Send + 'static>,
{
    type Response = http::Response<Body>;
    type Error = S::Error;
    type Future =
        Either<BoxFuture<'static, Answer<S::Error>>, Either<S::Future, Ready<Answer<S::Error>>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path();
        // Every connection of the port has a peer.
        let peer = request.extensions().get::<Arc<Peer>>().map(Arc::clone);
        let Some(peer) = peer.filter(|_| path.starts_with(OURS)) else {
            return Either::Right(Either::Left(self.inner.call(request)));
        };
        let admitted = match self.limits.admit(path, &peer) {
            Ok(admitted) => admitted,
            Err(refusal) => return Either::Right(Either::Right(ready(Ok(refusal.into_http())))),
        };
        let (limits, is_stream) = (self.limits.request(path), STREAMS.contains(&path));
        let own = Arc::clone(&peer);
        let request = request.map(|body| Body::new(RequestBody::new(body, limits, own)));
        let answers = self.limits.answers.clone();
        let counted = move |response: http::Response<Body>| {
            // Else a client that does not take small answers would hold the places of all calls.
            let kept = Some(admitted).filter(|_| is_stream);
            response.map(|body| Body::new(AnswerBody::new(body, answers, peer, kept)))
        };
        let response = self.inner.call(request);
        Either::Left(response.map_ok(counted).boxed())
    }
}
