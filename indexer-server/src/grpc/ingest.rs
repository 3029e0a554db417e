use super::{
    Parts,
    config::{ANSWERS_QUEUED_MAX, HELLO_TIMEOUT},
    outlet::{Last, Outlet, outlet},
    status::{status, stopping},
};
use crate::ingest::{Accepted, BatchAnswer, IngestError, PendingAnswer, Refusal, Session};
use futures::Stream;
use kvasir_proto::{
    convert::{self, Hello, Publication, PublishedBatch},
    limits::UNANSWERED_BATCHES_MAX,
    pb::{self, event_ingest_server::EventIngest, publish_events_response::Message},
};
use std::{collections::VecDeque, future::pending, ops::ControlFlow, pin::Pin};
use tokio::{select, time::timeout};
use tonic::{Request, Response, Status, Streaming};

/// The service `kvasir.v1.EventIngest`.
pub(super) struct EventIngestService {
    pub(super) parts: Parts,
}

type Answer = Result<pb::PublishEventsResponse, Status>;
type Requests = Streaming<pb::PublishEventsRequest>;

#[tonic::async_trait]
impl EventIngest for EventIngestService {
    type PublishEventsStream = Pin<Box<dyn Stream<Item = Answer> + Send>>;

    /// The stream is served by a task of its own, which ends with the server.
    async fn publish_events(
        &self,
        request: Request<Requests>,
    ) -> Result<Response<Self::PublishEventsStream>, Status> {
        let (answers, stream) = outlet(ANSWERS_QUEUED_MAX);
        let (parts, requests) = (self.parts.clone(), request.into_inner());
        self.parts.tasks.spawn(async move {
            let last = serve(&parts, requests, &answers).await;
            answers.end(last);
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

async fn serve(
    parts: &Parts,
    mut requests: Requests,
    answers: &Outlet<pb::PublishEventsResponse>,
) -> Last<pb::PublishEventsResponse> {
    let hello = select! {
        () = parts.stop.cancelled() => return Err(stopping()),
        hello = timeout(HELLO_TIMEOUT, read_hello(&mut requests)) => hello,
    };
    let hello = hello.map_err(|_late| Status::deadline_exceeded("hello is missing"))??;
    let Accepted { session, applied } = parts.ingest.open(&hello, false).await.map_err(status)?;
    let _agent_stream = session.agent_stream(&hello);
    let accepted = pb::PublishAccepted { applied: applied.map(convert::cursor) };
    let stream = OpenStream { parts, session: &session, answers };
    let last = match stream.answer(Message::Accepted(accepted)).await {
        ControlFlow::Continue(()) => stream.serve(&mut requests).await,
        ControlFlow::Break(last) => last,
    };
    session.close().await;
    last
}

async fn read_hello(requests: &mut Requests) -> Result<Hello, Status> {
    let Some(request) = requests.message().await? else {
        return Err(Status::invalid_argument("hello is required: send it first"));
    };
    match Publication::try_from(request).map_err(status)? {
        Publication::Hello(hello) => Ok(hello),
        Publication::Batch(_) | Publication::Heartbeat(_) => {
            Err(Status::invalid_argument("hello is required before the first batch"))
        }
    }
}

/// A stream whose hello was accepted.
struct OpenStream<'a> {
    parts: &'a Parts,
    session: &'a Session,
    answers: &'a Outlet<pb::PublishEventsResponse>,
}

/// A batch that is not answered yet.
struct Unanswered {
    sequence: u64,
    answer: PendingAnswer,
}

/// Whether the stream continues, or how it ends.
type Flow = ControlFlow<Last<pb::PublishEventsResponse>>;

impl OpenStream<'_> {
    /// Answers come in the order of the batches, each once it is known; meanwhile more are read.
    async fn serve(&self, requests: &mut Requests) -> Last<pb::PublishEventsResponse> {
        let mut unanswered = VecDeque::new();
        let mut open = true;
        loop {
            if !open && unanswered.is_empty() {
                return Ok(None);
            }
            let reads = open && unanswered.len() < UNANSWERED_BATCHES_MAX;
            let flow = select! {
                biased;
                () = self.parts.stop.cancelled() => return Err(stopping()),
                () = self.session.fenced().cancelled() => return Ok(Some(fenced(0))),
                (sequence, answer) = next_answer(&mut unanswered), if !unanswered.is_empty() => {
                    self.forward(sequence, answer).await
                }
                request = requests.message(), if reads => match request? {
                    Some(request) => self.take(request, &mut unanswered).await,
                    None => {
                        open = false;
                        ControlFlow::Continue(())
                    }
                },
                () = self.answers.queue.closed() => return Ok(None),
            };
            if let ControlFlow::Break(outcome) = flow {
                return outcome;
            }
        }
    }

    async fn take(
        &self,
        request: pb::PublishEventsRequest,
        unanswered: &mut VecDeque<Unanswered>,
    ) -> Flow {
        let batch = match Publication::try_from(request) {
            Ok(Publication::Batch(batch)) => batch,
            Ok(Publication::Heartbeat(heartbeat)) => {
                self.session.heartbeat(heartbeat).await;
                return ControlFlow::Continue(());
            }
            Ok(Publication::Hello(_)) => {
                let error = "hello must not be set twice: open a new stream";
                return ControlFlow::Break(Err(Status::invalid_argument(error)));
            }
            Err(error) => return ControlFlow::Break(Err(status(error))),
        };
        let sequence = batch.sequence;
        match PublishedBatch::read(batch, self.session.block_size()) {
            Ok(batch) => {
                let answer = self.session.apply(batch).await;
                unanswered.push_back(Unanswered { sequence, answer });
                ControlFlow::Continue(())
            }
            Err(error) => self.refuse(sequence, error.to_string(), unanswered).await,
        }
    }

    /// Refuses a batch that cannot be read, after all before it are answered.
    async fn refuse(
        &self,
        sequence: u64,
        message: String,
        unanswered: &mut VecDeque<Unanswered>,
    ) -> Flow {
        while let Some(mut first) = unanswered.pop_front() {
            let answer = select! {
                () = self.parts.stop.cancelled() => return ControlFlow::Break(Err(stopping())),
                () = self.session.fenced().cancelled() => {
                    return ControlFlow::Break(Ok(Some(fenced(0))));
                }
                answer = first.answer.wait() => answer,
            };
            self.forward(first.sequence, answer).await?;
        }
        self.session.count_invalid();
        let expected = self.session.expected().await;
        self.answer(refusal(sequence, pb::RefusalReason::Invalid, expected, message)).await
    }

    async fn forward(&self, sequence: u64, answer: Result<BatchAnswer, IngestError>) -> Flow {
        match answer {
            Ok(BatchAnswer::Acked { duplicate, counts }) => {
                let (noop, rejected) = (counts.noop, counts.rejected);
                let applied = counts.applied + counts.conflict;
                let ack = pb::PublishAck { sequence, duplicate, applied, noop, rejected };
                self.answer(Message::Ack(ack)).await
            }
            Ok(BatchAnswer::Refused(Refusal::Gap { expected })) => {
                let message = format!("batches before this one are missing: send {expected} next");
                self.answer(refusal(sequence, pb::RefusalReason::Gap, expected, message)).await
            }
            Ok(BatchAnswer::Refused(Refusal::Fenced)) => {
                ControlFlow::Break(Ok(Some(fenced(sequence))))
            }
            Err(error) => ControlFlow::Break(Err(status(error))),
        }
    }

    /// Queues an answer. A client that does not read holds up no one but itself.
    async fn answer(&self, answer: Message) -> Flow {
        let sent = select! {
            () = self.parts.stop.cancelled() => return ControlFlow::Break(Err(stopping())),
            () = self.session.fenced().cancelled() => {
                return ControlFlow::Break(Ok(Some(fenced(0))));
            }
            sent = self.answers.queue.send(response(answer)) => sent,
        };
        match sent {
            Ok(()) => ControlFlow::Continue(()),
            Err(_gone) => ControlFlow::Break(Ok(None)),
        }
    }
}

/// Waits for the answer to the first batch, and takes it out.
async fn next_answer(
    unanswered: &mut VecDeque<Unanswered>,
) -> (u64, Result<BatchAnswer, IngestError>) {
    let Some(first) = unanswered.front_mut() else { return pending().await };
    let answer = first.answer.wait().await;
    let sequence = first.sequence;
    unanswered.pop_front();
    (sequence, answer)
}

fn fenced(sequence: u64) -> pb::PublishEventsResponse {
    let message = "another stream took this source over, or the worker was removed";
    response(refusal(sequence, pb::RefusalReason::Fenced, 0, message.to_owned()))
}

fn refusal(sequence: u64, reason: pb::RefusalReason, expected: u64, message: String) -> Message {
    let (reason, expected_sequence) = (reason.into(), expected);
    Message::Refusal(pb::PublishRefusal { sequence, reason, expected_sequence, message })
}

fn response(message: Message) -> pb::PublishEventsResponse {
    pb::PublishEventsResponse { message: Some(message) }
}
