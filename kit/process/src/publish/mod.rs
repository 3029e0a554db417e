//! Serves streams of `EventIngest.PublishEvents`, for every program that receives events: first the hello, then exactly
//! one answer per batch, in order.

mod answer;
mod stream;

pub use answer::{Answer, PendingAnswer};

use crate::net::BatchRoom;
use crate::outlet::{Last, outlet};
use crate::port::client;
use futures::stream::{BoxStream, StreamExt};
use kvasir_proto::convert::{Heartbeat, Hello, Publication, PublishedBatch, cursor};
use kvasir_proto::pb::publish_events_response::Message;
use kvasir_proto::pb::{PublishAccepted, PublishEventsRequest, PublishEventsResponse};
use kvasir_proto::types::Cursor;
use std::fmt;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use stream::OpenStream;
use tokio::select;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::{Request, Response, Status, Streaming};

/// Timeout for a publisher's hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of answers in one stream's send queue. While it is full, no batch is read (backpressure).
const ANSWERS_QUEUED_MAX: usize = 64;

/// The answers of one stream.
pub type Answers = BoxStream<'static, Result<PublishEventsResponse, Status>>;

/// Receiver of the streams' events.
pub trait Sources: Send + Sync + 'static {
    /// Session of an accepted stream.
    type Session: Session;

    /// Accepts a stream of a source. Also returns the last applied batch of the source's incarnation.
    ///
    /// # Errors
    /// If the source is rejected.
    fn open(
        &self,
        hello: &Hello,
        peer: Option<SocketAddr>,
    ) -> impl Future<Output = Result<(Self::Session, Option<Cursor>), Status>> + Send;

    /// Records that a stream ended: its first message was late, or was another one than a hello.
    fn note_no_hello(&self, peer: Option<SocketAddr>, error: &Status);

    /// The status that ends streams when the program stops.
    fn stopping(&self) -> Status;
}

/// An accepted stream of one source. Call [`close`](Self::close) at its end.
pub trait Session: Send + Sync {
    /// Cancelled when another stream of the source takes over (fencing).
    fn fenced(&self) -> &CancellationToken;

    /// Tokens per block.
    fn block_size(&self) -> u32;

    /// Submits a batch. Answers arrive in the order of submission.
    fn apply(&self, batch: PublishedBatch) -> impl Future<Output = PendingAnswer> + Send;

    /// Handles a heartbeat of the source.
    fn heartbeat(&self, heartbeat: Heartbeat) -> impl Future<Output = ()> + Send;

    /// The next expected batch number, after everything submitted is applied; 0 (any number) before the first batch.
    fn expected(&self) -> impl Future<Output = u64> + Send;

    /// Records a batch that cannot be decoded and is rejected.
    fn note_unreadable(&self, sequence: u64, error: &dyn fmt::Display);

    /// Records a message that breaks the contract and ends the stream.
    fn note_malformed(&self, error: &dyn fmt::Display);

    /// Handles the end of the stream.
    fn close(self) -> impl Future<Output = ()> + Send;
}

/// Serves a stream in a task of `tasks` until `stop` is cancelled. `place` is dropped at the end.
pub fn publish_events<S: Sources>(
    sources: Arc<S>,
    request: Request<Streaming<PublishEventsRequest>>,
    (tasks, stop): (&TaskTracker, &CancellationToken),
    place: impl Send + 'static,
) -> Response<Answers> {
    let (answers, stream) = outlet(ANSWERS_QUEUED_MAX);
    let room = request.extensions().get::<BatchRoom>().cloned();
    let peer = client(&request);
    let mut requests = request.into_inner();
    let stop = stop.clone();
    tasks.spawn(async move {
        let first = select! {
            () = stop.cancelled() => Err(sources.stopping()),
            first = timeout(HELLO_TIMEOUT, requests.message()) => match first {
                // The client has disconnected.
                Ok(Err(error)) => Err(error),
                Ok(Ok(first)) => hello(first).inspect_err(|error| sources.note_no_hello(peer, error)),
                Err(_late) => Err(Status::deadline_exceeded("hello is missing"))
                    .inspect_err(|error| sources.note_no_hello(peer, error)),
            },
        };
        let last = match first {
            Ok(hello) => {
                let answers = &answers;
                let stop = &stop;
                let sources = &*sources;
                let stream = OpenStream { answers, stop, sources, room };
                serve(stream, &hello, peer, &mut requests).await
            }
            Err(error) => Err(error),
        };
        answers.end(last);
        drop(place);
    });
    Response::new(stream.boxed())
}

/// Opens the source, answers the hello, and then serves the stream.
async fn serve<S: Sources>(
    stream: OpenStream<'_, S>,
    hello: &Hello,
    peer: Option<SocketAddr>,
    requests: &mut Streaming<PublishEventsRequest>,
) -> Last<PublishEventsResponse> {
    let (session, applied) = stream.sources.open(hello, peer).await?;
    let accepted = Message::Accepted(PublishAccepted { applied: applied.map(cursor) });
    let last = match stream.send_answer(&session, accepted).await {
        ControlFlow::Continue(()) => stream.serve(&session, requests).await,
        ControlFlow::Break(last) => last,
    };
    session.close().await;
    last
}

/// Reads the first message, which must be a hello.
fn hello(first: Option<PublishEventsRequest>) -> Result<Hello, Status> {
    let Some(request) = first else {
        return Err(Status::invalid_argument("hello is required: send it first"));
    };
    let publication = Publication::try_from(request);
    match publication.map_err(|error| Status::new(error.code().into(), error.to_string()))? {
        Publication::Hello(hello) => Ok(hello),
        Publication::Batch(_) | Publication::Heartbeat(_) => {
            Err(Status::invalid_argument("hello is required before the first batch"))
        }
    }
}

#[cfg(test)]
#[path = "publish_test.rs"]
mod tests;
