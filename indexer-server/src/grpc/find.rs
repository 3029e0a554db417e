//! The two calls with prompts: most of a server's work. They bypass the generated code: requests are decoded and
//! answers encoded without intermediate messages.

use super::access::{Caller, for_principal};
use super::large::{Large, Waiting};
use super::status::{status, stopping};
use crate::query::Finder;
use futures::future::{self, BoxFuture, Either, Ready};
use futures::{FutureExt, Stream};
use kvasir_proto::convert::{
    ConvertError, FindAnswer, FindQuery, FindReply, FindRequest, FindStreamReply, WriteAnswer,
};
use kvasir_proto::find_codec::FindCodec;
use kvasir_proto::limits::GRPC_MESSAGE_BYTES_MAX;
use kvasir_proto::pb;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, NamedService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
const FIND_STREAM: &str = "/kvasir.v1.Indexer/FindMatchesStream";

/// Serves the calls with prompts. Forwards the other calls of service `kvasir.v1.Indexer` to `rest`.
#[derive(Clone)]
pub(super) struct FindService<S> {
    prompts: Prompts,
    rest: S,
}

#[derive(Clone)]
struct Prompts {
    finder: Arc<Finder>,
    large: Large,
    stop: CancellationToken,
}

impl<S> FindService<S> {
    pub(super) fn new(finder: Finder, stop: CancellationToken, rest: S) -> Self {
        let finder = Arc::new(finder);
        let large = Large::new();
        Self { prompts: Prompts { finder, large, stop }, rest }
    }
}

impl<S: NamedService> NamedService for FindService<S> {
    const NAME: &'static str = S::NAME;
}

type Answered = Result<http::Response<Body>, Infallible>;

impl<S> Service<http::Request<Body>> for FindService<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Either<BoxFuture<'static, Answered>, S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.rest.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path() {
            FIND => {
                let prompts = self.prompts.clone();
                let answer =
                    async move { Ok(grpc::<Made<FindReply>>().unary(prompts, request).await) };
                Either::Left(Box::pin(answer))
            }
            FIND_STREAM => {
                let prompts = self.prompts.clone();
                let answers = async move {
                    Ok(grpc::<Made<FindStreamReply>>().streaming(prompts, request).await)
                };
                Either::Left(Box::pin(answers))
            }
            _ => Either::Right(self.rest.call(request)),
        }
    }
}

fn grpc<A>() -> Grpc<FindCodec<A>>
where
    FindCodec<A>: tonic::codec::Codec,
{
    Grpc::new(FindCodec::default())
        .max_decoding_message_size(GRPC_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(GRPC_MESSAGE_BYTES_MAX)
}

/// An answer, encoded or still to be encoded.
pub(super) enum Made<A> {
    Answer(A),
    Written(Vec<u8>),
}

impl<A: WriteAnswer> WriteAnswer for Made<A> {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Answer(answer) => answer.write(out),
            Self::Written(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// An answer that is ready, or a future for a slow one.
type Soon<T> = Either<Result<FindAnswer, Status>, BoxFuture<'static, T>>;

impl Prompts {
    /// Answers a small query immediately. A large query waits for a permit; `reply` then encodes its answer on another
    /// thread.
    fn find<A: WriteAnswer + Send + 'static>(
        &self,
        query: Result<FindQuery, ConvertError>,
        caller: &Caller,
        reply: impl FnOnce(FindAnswer) -> A + Send + 'static,
    ) -> Soon<Result<Made<A>, Status>> {
        let query = match query {
            Ok(query) => query,
            Err(error) => return Either::Left(Err(status(error))),
        };
        if let Err(refused) = caller.admit_query(&query.partition) {
            return Either::Left(Err(refused));
        }
        let principal = &caller.principal;
        match self.finder.find_small(&query) {
            Ok(Some(answer)) => Either::Left(Ok(answer)),
            Err(error) => Either::Left(Err(status(for_principal(error, principal)))),
            Ok(None) => {
                let finder = Arc::clone(&self.finder);
                let principal = Arc::clone(principal);
                let work = move |caller: &Waiting| {
                    let found = finder.find(&query, || caller.waits());
                    let found = found.map_err(|error| status(for_principal(error, &principal)))?;
                    // The caller has gone, so this error is never seen.
                    let answer = found.ok_or_else(|| Status::cancelled("the caller is gone"))?;
                    let mut written = Vec::new();
                    reply(answer).write(&mut written);
                    Ok(Made::Written(written))
                };
                let answered = self.large.clone().run(caller.peer.clone(), work);
                Either::Right(answered.map(|done| done.flatten()).boxed())
            }
        }
    }

    /// Answers a query of a stream: immediately, or later if the query is large. Errors are sent in the stream, too.
    fn find_in_stream(&self, request: FindRequest, caller: &Caller) -> InStream {
        let request_id = request.request_id;
        let reply = move |answer| FindStreamReply { request_id, outcome: Ok(answer) };
        match self.find(request.query, caller, reply) {
            Either::Left(found) => Either::Left(in_stream(request_id, found)),
            Either::Right(large) => {
                let failed = move |error| in_stream(request_id, Err(error));
                Either::Right(large.map(move |made| made.unwrap_or_else(failed)).boxed())
            }
        }
    }
}

type StreamReply = Made<FindStreamReply>;
type InStream = Either<StreamReply, BoxFuture<'static, StreamReply>>;

/// The outcome of one request of a stream.
fn in_stream(request_id: u64, found: Result<FindAnswer, Status>) -> StreamReply {
    let outcome = found.map_err(|error| pb::StreamError {
        code: error.code().into(),
        message: error.message().to_owned(),
    });
    Made::Answer(FindStreamReply { request_id, outcome })
}

type Replied<T> = Result<Response<T>, Status>;

impl UnaryService<FindRequest> for Prompts {
    type Response = Made<FindReply>;
    type Future =
        Either<Ready<Replied<Self::Response>>, BoxFuture<'static, Replied<Self::Response>>>;

    fn call(&mut self, request: Request<FindRequest>) -> Self::Future {
        let caller = match Caller::from_request(&request) {
            Ok(caller) => caller,
            Err(fault) => return Either::Left(future::ready(Err(fault))),
        };
        let FindRequest { request_id, query } = request.into_inner();
        let reply = move |answer| FindReply { request_id, answer };
        match self.find(query, &caller, reply) {
            Either::Left(found) => {
                let replied = found.map(|answer| Response::new(Made::Answer(reply(answer))));
                Either::Left(future::ready(replied))
            }
            Either::Right(large) => {
                Either::Right(large.map(|made| made.map(Response::new)).boxed())
            }
        }
    }
}

/// Number of answers of a busy stream between two checks whether the server stops.
const UNSTOPPED_MAX: u32 = 64;
/// Time for the answers of a busy stream before it yields to other tasks.
const BUSY_MAX: Duration = Duration::from_millis(1);

/// Answers of one stream, created as the client reads them, one request at a time. Without a queue here, HTTP/2 flow
/// control slows a client that sends faster than it reads (backpressure).
pub(super) struct Replies {
    requests: Streaming<FindRequest>,
    caller: Caller,
    prompts: Prompts,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    /// The pending answer to a large query.
    large: Option<BoxFuture<'static, StreamReply>>,
    /// Number of answers since `stopped` was last checked.
    unstopped: u32,
    /// Time spent since the stream last yielded.
    busy: Duration,
    ended: bool,
}

impl Replies {
    /// Polls for the answer to the next received request. The stream ends with the requests, or with the first
    /// transport error.
    fn poll_answer(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamReply, Status>>> {
        if let Some(large) = &mut self.large {
            let made = ready!(large.as_mut().poll(context));
            self.large = None;
            return Poll::Ready(Some(Ok(made)));
        }
        let request = match ready!(Pin::new(&mut self.requests).poll_next(context)) {
            Some(Ok(request)) => request,
            ended => {
                self.ended = true;
                return Poll::Ready(ended.and_then(Result::err).map(Err));
            }
        };
        let begun = Instant::now();
        let answer = self.prompts.find_in_stream(request, &self.caller);
        self.busy += begun.elapsed();
        match answer {
            Either::Left(made) => Poll::Ready(Some(Ok(made))),
            Either::Right(large) => {
                self.large = Some(large);
                self.poll_answer(context)
            }
        }
    }
}

impl Stream for Replies {
    type Item = Result<StreamReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.busy >= BUSY_MAX {
            self.busy = Duration::ZERO;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.unstopped < UNSTOPPED_MAX
            && let Poll::Ready(answer) = self.poll_answer(context)
        {
            self.unstopped += 1;
            return Poll::Ready(answer);
        }
        // No request is waiting, or the stream has been busy for long.
        if self.stopped.as_mut().poll(context).is_ready() {
            self.ended = true;
            return Poll::Ready(Some(Err(stopping())));
        }
        if self.unstopped == UNSTOPPED_MAX {
            self.unstopped = 0;
            return self.poll_next(context);
        }
        (self.unstopped, self.busy) = (0, Duration::ZERO);
        Poll::Pending
    }
}

impl StreamingService<FindRequest> for Prompts {
    type Response = StreamReply;
    type ResponseStream = Replies;
    type Future = Ready<Result<Response<Replies>, Status>>;

    fn call(&mut self, request: Request<Streaming<FindRequest>>) -> Self::Future {
        future::ready(Caller::from_request(&request).map(|caller| {
            Response::new(Replies {
                caller,
                requests: request.into_inner(),
                prompts: self.clone(),
                stopped: Box::pin(self.stop.clone().cancelled_owned()),
                large: None,
                unstopped: 0,
                busy: Duration::ZERO,
                ended: false,
            })
        }))
    }
}
