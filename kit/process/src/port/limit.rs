//! Admission control: limits the calls of a port. A call with one answer counts until its answer is made; a stream
//! counts until the transport has received all answers. Unread answers count by their bytes.

use super::config::{
    BATCH_BYTES_MAX, BODY_TIMEOUT, LARGE_ANSWER_BYTES_MAX, MESSAGE_BYTES_MAX, MESSAGE_TIMEOUT,
    PUBLISH_STREAMS_RESERVED, QUERY_STREAM_IDLE, QUERY_STREAM_IDLE_CROWDED, READ_STREAMS_RESERVED,
    REQUEST_TIMEOUT, SIDE_CALLS_MAX, SMALL_ANSWER_BYTES_MAX, STREAMS_MAX, WORK_TIMEOUT,
};
use super::deadline::{Deadlines, exceeded};
use super::{PortMetrics, StreamKind, Streams};
use crate::net::{
    AnswerBody, AnswerLimits, BatchRoom, Call, Ending, IdleLimit, Limit, Pace, Peer, RequestBody,
    RequestLimits, Share,
};
use futures::FutureExt;
use futures::future::{BoxFuture, Either, Ready, pending, ready};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::select;
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http;
use tower::{Layer, Service};

/// Path prefix of all calls of our services. Calls of other services, such as health, are small.
pub(super) const OURS: &str = "/kvasir.v1.";

/// Limits the calls of a port. Clones share the limits.
#[derive(Clone)]
pub(super) struct RequestLimit(Arc<Limits>);

struct Limits {
    kinds: Streams,
    calls: Limit,
    streams: Limit,
    /// Streams other than publishers'.
    asking_streams: Limit,
    /// Streams of queries, a part of `asking_streams`.
    query_streams: Limit,
    /// Calls of health and reflection.
    side_calls: Limit,
    message_bytes: Limit,
    /// Bytes of publishers' unanswered batches.
    batch_bytes: Limit,
    answers: AnswerLimits,
    metrics: PortMetrics,
    stop: CancellationToken,
}

/// An admitted call: it counts against its limits until this is dropped.
type Admitted = Vec<Share>;

/// A limit, the text for what exceeds it, and the reason in metrics.
type Bound<'a> = (&'a Limit, &'static str, &'static str);

impl RequestLimit {
    /// Creates the limits. Health and reflection calls end when `stop` is cancelled, because a client may watch health
    /// without end.
    pub(super) fn new(
        kinds: Streams,
        calls_max: usize,
        metrics: PortMetrics,
        stop: &CancellationToken,
    ) -> Self {
        let asking_max = STREAMS_MAX - PUBLISH_STREAMS_RESERVED;
        let bytes = |max, held: &Gauge| {
            Limit::new(max, held.clone()).counted_in(metrics.in_flight_bytes.clone())
        };
        Self(Arc::new(Limits {
            kinds,
            calls: Limit::new(calls_max, metrics.in_flight.clone()),
            streams: Limit::new(STREAMS_MAX, metrics.streams.clone()),
            asking_streams: Limit::new(asking_max, metrics.asking_streams.clone()),
            query_streams: Limit::new(asking_max - READ_STREAMS_RESERVED, Gauge::default()),
            side_calls: Limit::new(SIDE_CALLS_MAX, Gauge::default()),
            stop: stop.clone(),
            message_bytes: bytes(MESSAGE_BYTES_MAX, &metrics.message_bytes),
            batch_bytes: bytes(BATCH_BYTES_MAX, &metrics.batch_bytes),
            answers: AnswerLimits {
                large: bytes(LARGE_ANSWER_BYTES_MAX, &metrics.large_answer_bytes),
                small: bytes(SMALL_ANSWER_BYTES_MAX, &metrics.small_answer_bytes),
                refused: metrics.limited.clone(),
            },
            metrics,
        }))
    }
}

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One request, one answer.
    Unary,
    Stream(StreamKind),
    /// A call of health or reflection, which every port has.
    Side,
}

impl Limits {
    fn kind(&self, path: &str) -> Kind {
        let stream = self.kinds.iter().find(|(of, _)| *of == path);
        match stream {
            Some(&(_, kind)) => Kind::Stream(kind),
            None if path.starts_with(OURS) => Kind::Unary,
            None => Kind::Side,
        }
    }

    /// Counts a call against the limits of its kind: the port's and the connection's. Fails at the first limit that is
    /// reached.
    fn admit(&self, kind: Kind, peer: &Peer) -> Result<Admitted, Status> {
        let metrics = &self.metrics;
        let calls = [
            (&self.calls, "requests are under way", "calls"),
            (&peer.calls, "requests of this connection are under way", "calls_of_connection"),
        ];
        let streams = [
            (&self.streams, "streams are open", "streams"),
            (&peer.streams, "streams of this connection are open", "streams_of_connection"),
        ];
        let asking = [
            (&self.asking_streams, "streams other than PublishEvents are open", "asking_streams"),
            (
                &peer.asking_streams,
                "streams of this connection other than PublishEvents are open",
                "asking_streams_of_connection",
            ),
        ];
        let queries = [(&self.query_streams, "streams of queries are open", "query_streams")];
        let side = [
            (&self.side_calls, "calls of health and reflection are under way", "side_calls"),
            (
                &peer.side_calls,
                "calls of health and reflection of this connection are under way",
                "side_calls_of_connection",
            ),
        ];
        let streams_refused = &metrics.streams_refused;
        match kind {
            Kind::Side => self.take_shares(side.iter(), &metrics.requests_refused),
            Kind::Unary => self.take_shares(calls.iter(), &metrics.requests_refused),
            Kind::Stream(StreamKind::Publish) => self.take_shares(streams.iter(), streams_refused),
            Kind::Stream(StreamKind::Hold) => {
                let held = [(&peer.held_streams, "streams are held open", "held_streams")];
                self.take_shares(streams.iter().chain(&held), streams_refused)
            }
            Kind::Stream(StreamKind::Read | StreamKind::Watch | StreamKind::Work) => {
                self.take_shares(streams.iter().chain(&asking), streams_refused)
            }
            Kind::Stream(StreamKind::Query) => {
                self.take_shares(streams.iter().chain(&asking).chain(&queries), streams_refused)
            }
        }
    }

    /// Takes a share of each limit. Rejects the call, and counts the reason, if a limit is reached.
    fn take_shares<'a>(
        &self,
        limits: impl Iterator<Item = &'a Bound<'a>>,
        refused: &Counter,
    ) -> Result<Admitted, Status> {
        let take = |(limit, what, reason): &Bound<'_>| {
            limit.take(1).ok_or_else(|| {
                refused.inc();
                self.metrics.limited.count(reason);
                let max = limit.max();
                Status::resource_exhausted(format!("{max} {what}, the limit: retry later"))
            })
        };
        limits.map(take).collect()
    }

    /// Returns the limits on the request of a call: how fast it must arrive, and its bytes.
    fn request(&self, kind: Kind) -> RequestLimits {
        let idle = || IdleLimit {
            usual: QUERY_STREAM_IDLE,
            crowded: QUERY_STREAM_IDLE_CROWDED,
            streams: self.query_streams.clone(),
        };
        let pace = match kind {
            Kind::Stream(StreamKind::Query) => Pace::Idle(MESSAGE_TIMEOUT, idle()),
            Kind::Stream(StreamKind::Publish) | Kind::Side => Pace::Endless(MESSAGE_TIMEOUT),
            Kind::Stream(
                StreamKind::Read | StreamKind::Watch | StreamKind::Hold | StreamKind::Work,
            )
            | Kind::Unary => Pace::Single(BODY_TIMEOUT),
        };
        let message_bytes = self.message_bytes.clone();
        let unread = self.metrics.limited.clone();
        RequestLimits { pace, message_bytes, unread }
    }

    /// Returns a future of the status that ends an answer before its source ends: the client's deadline, the
    /// connection's age, the server's stop. Returns `None` for a call that only its source ends.
    fn end(
        &self,
        kind: Kind,
        peer: &Peer,
        deadline: Option<Instant>,
    ) -> Option<BoxFuture<'static, Status>> {
        // Clients may watch health without end.
        let (stop, aged) = match kind {
            // The answer is already complete.
            Kind::Unary => return None,
            Kind::Side => (Some(self.stop.clone()), Some(peer.aged.clone())),
            Kind::Stream(StreamKind::Watch) => (None, Some(peer.aged.clone())),
            // The connection's age ends their requests, except held streams; the server's stop ends their services.
            Kind::Stream(_) if deadline.is_none() => return None,
            Kind::Stream(_) => (None, None),
        };
        let limited = self.metrics.limited.clone();
        let end = async move {
            let late = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => pending().await,
                }
            };
            select! {
                biased;
                () = cancelled(stop) => Status::unavailable("the server is stopping"),
                () = late => {
                    limited.count("deadline");
                    exceeded()
                }
                // The client reconnects and opens a new stream.
                () = cancelled(aged) => Status::ok(""),
            }
        };
        Some(end.boxed())
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

/// Ready when the token is cancelled. Pending forever if it is absent.
async fn cancelled(token: Option<CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => pending().await,
    }
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
        // Every connection of the port has a peer.
        let Some(peer) = request.extensions().get::<Arc<Peer>>().map(Arc::clone) else {
            return Either::Right(Either::Left(self.inner.call(request)));
        };
        let kind = self.limits.kind(request.uri().path());
        let admitted = match self.limits.admit(kind, &peer) {
            Ok(admitted) => admitted,
            Err(refusal) => return Either::Right(Either::Right(ready(Ok(refusal.into_http())))),
        };
        let call = Call::new(request.uri(), &self.limits.metrics.too_long);
        let limits = self.limits.request(kind);
        let own = Arc::clone(&peer);
        let is_work = kind == Kind::Stream(StreamKind::Work);
        let most = if is_work { WORK_TIMEOUT } else { REQUEST_TIMEOUT };
        let deadlines = Deadlines::from_headers(request.headers(), most, Instant::now());
        let mut request = request.map(|body| Body::new(RequestBody::new(body, limits, own)));
        if kind == Kind::Stream(StreamKind::Publish) {
            let room = BatchRoom::new(self.limits.batch_bytes.clone(), Arc::clone(&peer));
            request.extensions_mut().insert(room);
        }
        let limits = Arc::clone(&self.limits);
        let response = self.inner.call(request);
        let counted = move |limits: &Limits, response: http::Response<Body>| {
            // Otherwise a client that does not read small answers would occupy the slots of all calls.
            let kept = Some(admitted).filter(|_| kind != Kind::Unary);
            call.look(response.headers());
            let end = limits.end(kind, &peer, deadlines.end);
            response.map(|body| {
                let body = match end {
                    Some(end) => Body::new(Ending::new(body, end)),
                    None => body,
                };
                Body::new(AnswerBody::new(body, limits.answers.clone(), peer, call, kept))
            })
        };
        let answered = async move {
            match timeout_at(deadlines.head, response).await {
                Ok(response) => Ok(counted(&limits, response?)),
                Err(_late) => {
                    limits.metrics.limited.count("deadline");
                    Ok(exceeded().into_http())
                }
            }
        };
        Either::Left(answered.boxed())
    }
}

#[cfg(test)]
#[path = "limit_test.rs"]
mod tests;
