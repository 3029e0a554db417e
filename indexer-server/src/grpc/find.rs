//! The two calls with prompts. They are what a server does all day, so they are served without the
//! generated code: requests are read and answers written without messages in between.

use super::{
    access::for_principal,
    status::{status, stopping},
};
use crate::query::Finder;
use futures::{
    Stream,
    future::{self, BoxFuture, Either, Ready},
};
use kvasir_access::Principal;
use kvasir_process::{access::check_partition, port::principal};
use kvasir_proto::{
    convert::{FindAnswer, FindReply, FindRequest, FindStreamReply},
    find_codec::FindCodec,
    limits::GRPC_MESSAGE_BYTES_MAX,
    pb,
};
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{
    Request, Response, Status, Streaming,
    body::Body,
    codegen::http,
    server::{Grpc, NamedService, StreamingService, UnaryService},
};
use tower::Service;

const FIND: &str = "/kvasir.v1.Indexer/FindMatches";
const FIND_STREAM: &str = "/kvasir.v1.Indexer/FindMatchesStream";

/// Serves the calls with prompts, and leaves the others of service `kvasir.v1.Indexer` to `rest`.
#[derive(Clone)]
pub(super) struct FindService<S> {
    prompts: Prompts,
    rest: S,
}

#[derive(Clone)]
struct Prompts {
    finder: Arc<Finder>,
    stop: CancellationToken,
}

impl<S> FindService<S> {
    pub(super) fn new(finder: Finder, stop: CancellationToken, rest: S) -> Self {
        Self { prompts: Prompts { finder: Arc::new(finder), stop }, rest }
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
                let answer = async move { Ok(grpc::<FindReply>().unary(prompts, request).await) };
                Either::Left(Box::pin(answer))
            }
            FIND_STREAM => {
                let prompts = self.prompts.clone();
                let answers =
                    async move { Ok(grpc::<FindStreamReply>().streaming(prompts, request).await) };
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

impl Prompts {
    fn find(&self, principal: &Principal, request: FindRequest) -> Result<FindAnswer, Status> {
        let query = request.query.map_err(status)?;
        check_partition(principal, &query.partition)?;
        self.finder.find(&query).map_err(|error| status(for_principal(error, principal)))
    }

    fn find_in_stream(&self, principal: &Principal, request: FindRequest) -> FindStreamReply {
        let request_id = request.request_id;
        let outcome = self.find(principal, request).map_err(|error| pb::StreamError {
            code: error.code().into(),
            message: error.message().to_owned(),
        });
        FindStreamReply { request_id, outcome }
    }
}

impl UnaryService<FindRequest> for Prompts {
    type Response = FindReply;
    type Future = Ready<Result<Response<FindReply>, Status>>;

    fn call(&mut self, request: Request<FindRequest>) -> Self::Future {
        let principal = principal(&request);
        let request = request.into_inner();
        let request_id = request.request_id;
        let answer = principal.and_then(|principal| self.find(&principal, request));
        future::ready(answer.map(|answer| Response::new(FindReply { request_id, answer })))
    }
}

/// Answers of a busy stream between two looks at whether the server stops.
const UNSTOPPED_MAX: u32 = 64;

/// The answers of one stream. They are made as the client takes them, one request at a time: nothing
/// is queued here, and HTTP/2 flow control holds a client back that sends faster than it reads.
pub(super) struct Replies {
    requests: Streaming<FindRequest>,
    principal: Arc<Principal>,
    prompts: Prompts,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Answers since `stopped` was looked at.
    unstopped: u32,
    ended: bool,
}

impl Stream for Replies {
    type Item = Result<FindStreamReply, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.unstopped < UNSTOPPED_MAX
            && let Poll::Ready(request) = Pin::new(&mut self.requests).poll_next(context)
        {
            self.unstopped += 1;
            self.ended = !matches!(request, Some(Ok(_)));
            let answer = |request| self.prompts.find_in_stream(&self.principal, request);
            return Poll::Ready(request.map(|request| request.map(answer)));
        }
        // Nothing is asked at the moment, or it was for long.
        if self.stopped.as_mut().poll(context).is_ready() {
            self.ended = true;
            return Poll::Ready(Some(Err(stopping())));
        }
        if self.unstopped == UNSTOPPED_MAX {
            self.unstopped = 0;
            return self.poll_next(context);
        }
        self.unstopped = 0;
        Poll::Pending
    }
}

impl StreamingService<FindRequest> for Prompts {
    type Response = FindStreamReply;
    type ResponseStream = Replies;
    type Future = Ready<Result<Response<Replies>, Status>>;

    fn call(&mut self, request: Request<Streaming<FindRequest>>) -> Self::Future {
        future::ready(principal(&request).map(|principal| {
            Response::new(Replies {
            requests: request.into_inner(),
            principal,
            prompts: self.clone(),
            stopped: Box::pin(self.stop.clone().cancelled_owned()),
            unstopped: 0,
            ended: false,
        })}))
    }
}
