use super::publisher::{Answer, Publisher};
use super::refusals::Who;
use super::{Refusals, StreamRefusal};
use kvasir_proto::code::ErrorCode;
use kvasir_proto::convert::{self, ConvertError, Publication, PublishedBatch};
use kvasir_proto::pb::publish_events_response::Message;
use kvasir_proto::pb::{self, RefusalReason};
use kvasir_proto::types::Cursor;
use parking_lot::Mutex;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use tokio::select;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// A source that publishes here.
pub(super) type Source = Arc<Mutex<Publisher>>;

pub(super) type Response = pb::PublishEventsResponse;
pub(super) type Requests = Streaming<pb::PublishEventsRequest>;

/// How a stream ends: plainly, with one more answer, or with an error.
pub(super) type End = Result<Option<Response>, Box<Status>>;

/// Whether it continues, else how it ends.
type Flow = ControlFlow<End>;

/// A stream whose hello was accepted.
pub(super) struct OpenStream<'a> {
    pub(super) who: Who<'a>,
    pub(super) refusals: &'a Refusals,
    pub(super) number: u64,
    /// Cancelled once another stream takes over.
    pub(super) fence: CancellationToken,
    pub(super) block_size: u32,
    pub(super) stall_timeout: Duration,
    pub(super) source: &'a Source,
    pub(super) answers: &'a mpsc::Sender<Result<Response, Status>>,
}

impl OpenStream<'_> {
    /// Every batch is answered before the next is read.
    pub(super) async fn serve(&self, applied: Option<Cursor>, requests: &mut Requests) -> End {
        let accepted = pb::PublishAccepted { applied: applied.map(convert::cursor) };
        let mut flow = self.answer(Message::Accepted(accepted)).await;
        loop {
            if let ControlFlow::Break(end) = flow {
                return end;
            }
            flow = select! {
                biased;
                () = self.fence.cancelled() => return Ok(Some(fenced(0))),
                () = self.answers.closed() => return Ok(None),
                request = requests.message() => match request.map_err(Box::new)? {
                    Some(request) => self.take(request).await,
                    None => return Ok(None),
                },
            };
        }
    }

    async fn take(&self, request: pb::PublishEventsRequest) -> Flow {
        let batch = match Publication::try_from(request) {
            Ok(Publication::Batch(batch)) => batch,
            Ok(Publication::Heartbeat(heartbeat)) => {
                self.source.lock().announce(self.number, heartbeat.head_sequence);
                return ControlFlow::Continue(());
            }
            Ok(Publication::Hello(_)) => {
                let error = "hello must not be set twice: open a new stream";
                self.refusals.stream(StreamRefusal::Malformed, self.who, &error);
                return ControlFlow::Break(Err(Box::new(Status::invalid_argument(error))));
            }
            Err(error) => {
                self.refusals.stream(StreamRefusal::Malformed, self.who, &error);
                return ControlFlow::Break(Err(malformed(&error)));
            }
        };
        let sequence = batch.sequence;
        let message = match PublishedBatch::read(batch, self.block_size) {
            Ok(batch) => match self.apply(batch) {
                Answer::Acked { duplicate, operations: applied, refused: rejected } => {
                    let noop = 0;
                    Message::Ack(pb::PublishAck { sequence, duplicate, applied, noop, rejected })
                }
                Answer::Gap { expected } => {
                    let text = format!("batches before this one are missing: send {expected} next");
                    refusal(sequence, RefusalReason::Gap, expected, text)
                }
                Answer::Fenced => return ControlFlow::Break(Ok(Some(fenced(sequence)))),
                Answer::Later(error) => {
                    self.refusals.stream(StreamRefusal::RankKept, self.who, &error);
                    return ControlFlow::Break(Err(refused(error.code(), &error)));
                }
            },
            Err(error) => {
                self.refusals.batch(sequence, self.who, &error);
                let expected = self.source.lock().expected();
                refusal(sequence, RefusalReason::Invalid, expected, error.to_string())
            }
        };
        self.answer(message).await
    }

    fn apply(&self, batch: PublishedBatch) -> Answer {
        self.source.lock().take(self.number, batch)
    }

    /// Queues an answer. A client that does not read delays only itself.
    async fn answer(&self, answer: Message) -> Flow {
        let sent = select! {
            () = self.fence.cancelled() => return ControlFlow::Break(Ok(Some(fenced(0)))),
            sent = timeout(self.stall_timeout, self.answers.send(Ok(response(answer)))) => sent,
        };
        match sent {
            Ok(Ok(())) => ControlFlow::Continue(()),
            Ok(Err(_gone)) => ControlFlow::Break(Ok(None)),
            Err(_late) => {
                let error = "answers are not taken";
                ControlFlow::Break(Err(Box::new(Status::deadline_exceeded(error))))
            }
        }
    }
}

fn fenced(sequence: u64) -> Response {
    let text = "another stream took this source over".to_owned();
    response(refusal(sequence, RefusalReason::Fenced, 0, text))
}

fn refusal(sequence: u64, reason: RefusalReason, expected: u64, message: String) -> Message {
    let (reason, expected_sequence) = (reason.into(), expected);
    Message::Refusal(pb::PublishRefusal { sequence, reason, expected_sequence, message })
}

fn response(message: Message) -> Response {
    pb::PublishEventsResponse { message: Some(message) }
}

/// An error as a status.
pub(super) fn refused(code: ErrorCode, error: &impl fmt::Display) -> Box<Status> {
    Box::new(Status::new(code.into(), error.to_string()))
}

pub(super) fn malformed(error: &ConvertError) -> Box<Status> {
    refused(error.code(), error)
}
