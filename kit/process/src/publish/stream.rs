use super::answer::{Answer, PendingAnswer, fenced, message, refusal, response};
use super::{Session, Sources};
use crate::net::{BatchRoom, Charge};
use crate::outlet::{Last, Outlet};
use kvasir_proto::convert::{Publication, PublishedBatch};
use kvasir_proto::limits::UNANSWERED_BATCHES_MAX;
use kvasir_proto::pb::publish_events_response::Message;
use kvasir_proto::pb::{PublishEventsRequest, PublishEventsResponse, RefusalReason};
use prost::Message as _;
use std::collections::VecDeque;
use std::future::pending;
use std::ops::ControlFlow;
use std::time::Duration;
use tokio::select;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};

/// A stream that has received its hello.
pub(super) struct OpenStream<'a, S> {
    pub(super) sources: &'a S,
    pub(super) answers: &'a Outlet<PublishEventsResponse>,
    pub(super) stop: &'a CancellationToken,
    /// Limit on unanswered batches, in bytes; `None` is unlimited.
    pub(super) room: Option<BatchRoom>,
}

/// Interval at which a batch is checked again for room.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// A batch that waits for its answer.
struct Unanswered {
    sequence: u64,
    answer: PendingAnswer,
    /// The room that its bytes take.
    _held: Option<Charge>,
}

/// A received message.
struct Arrived {
    message: PublishEventsRequest,
    bytes: usize,
}

impl Arrived {
    fn new(message: PublishEventsRequest) -> Self {
        let bytes = message.encoded_len();
        Self { message, bytes }
    }
}

/// Whether the stream continues, or how it ends.
type Flow = ControlFlow<Last<PublishEventsResponse>>;

impl<S: Sources> OpenStream<'_, S> {
    /// Reads batches and sends their answers, in order, each as soon as it is known. Stops reading at
    /// [`UNANSWERED_BATCHES_MAX`] unanswered batches.
    pub(super) async fn serve(
        &self,
        session: &S::Session,
        requests: &mut Streaming<PublishEventsRequest>,
    ) -> Last<PublishEventsResponse> {
        let mut unanswered = VecDeque::new();
        let mut open = true;
        let mut arrived = None;
        loop {
            if let Some(next) = arrived.take() {
                arrived = match self.take_if_fits(session, next, &mut unanswered).await {
                    ControlFlow::Continue(too_much) => too_much,
                    ControlFlow::Break(last) => return last,
                };
            }
            if !open && unanswered.is_empty() && arrived.is_none() {
                return Ok(None);
            }
            let has_room = arrived.is_none();
            let reads = open && has_room && unanswered.len() < UNANSWERED_BATCHES_MAX;
            let flow = select! {
                biased;
                () = self.stop.cancelled() => return Err(self.sources.stopping()),
                () = session.fenced().cancelled() => return Ok(Some(fenced(0))),
                (sequence, answer) = next_answer(&mut unanswered), if !unanswered.is_empty() => {
                    self.forward(session, sequence, answer).await
                }
                request = requests.message(), if reads => {
                    arrived = request?.map(Arrived::new);
                    open = arrived.is_some();
                    ControlFlow::Continue(())
                }
                () = sleep(LOOK_INTERVAL), if !has_room => ControlFlow::Continue(()),
                () = self.answers.queue.closed() => return Ok(None),
            };
            if let ControlFlow::Break(last) = flow {
                return last;
            }
        }
    }

    /// Handles a message if its bytes fit into the room for batches. Otherwise returns the message.
    async fn take_if_fits(
        &self,
        session: &S::Session,
        arrived: Arrived,
        unanswered: &mut VecDeque<Unanswered>,
    ) -> ControlFlow<Last<PublishEventsResponse>, Option<Arrived>> {
        let held = match &self.room {
            Some(room) => match room.reserve_batch(arrived.bytes) {
                Some(held) => Some(held),
                None => return ControlFlow::Continue(Some(arrived)),
            },
            None => None,
        };
        self.handle_request(session, arrived.message, held, unanswered).await?;
        ControlFlow::Continue(None)
    }

    /// Handles a batch or heartbeat. An unreadable batch is refused after the answers to earlier batches; a second
    /// hello or a malformed message ends the stream.
    async fn handle_request(
        &self,
        session: &S::Session,
        request: PublishEventsRequest,
        held: Option<Charge>,
        unanswered: &mut VecDeque<Unanswered>,
    ) -> Flow {
        let batch = match Publication::try_from(request) {
            Ok(Publication::Batch(batch)) => batch,
            Ok(Publication::Heartbeat(heartbeat)) => {
                session.heartbeat(heartbeat).await;
                return ControlFlow::Continue(());
            }
            Ok(Publication::Hello(_)) => {
                let error = "hello must not be set twice: open a new stream";
                session.note_malformed(&error);
                return ControlFlow::Break(Err(Status::invalid_argument(error)));
            }
            Err(error) => {
                session.note_malformed(&error);
                let status = Status::new(error.code().into(), error.to_string());
                return ControlFlow::Break(Err(status));
            }
        };
        let sequence = batch.sequence;
        match PublishedBatch::read(batch, session.block_size()) {
            Ok(batch) => {
                let answer = session.apply(batch).await;
                unanswered.push_back(Unanswered { sequence, answer, _held: held });
                ControlFlow::Continue(())
            }
            Err(error) => {
                self.forward_all(session, unanswered).await?;
                session.note_unreadable(sequence, &error);
                let expected = session.expected().await;
                let reason = RefusalReason::Invalid;
                let refused = refusal(sequence, reason, expected, error.to_string());
                self.send_answer(session, refused).await
            }
        }
    }

    /// Waits for the answers of all unanswered batches, and sends each.
    async fn forward_all(
        &self,
        session: &S::Session,
        unanswered: &mut VecDeque<Unanswered>,
    ) -> Flow {
        while !unanswered.is_empty() {
            let (sequence, answer) = select! {
                () = self.stop.cancelled() => {
                    return ControlFlow::Break(Err(self.sources.stopping()));
                }
                () = session.fenced().cancelled() => {
                    return ControlFlow::Break(Ok(Some(fenced(0))));
                }
                next = next_answer(unanswered) => next,
            };
            self.forward(session, sequence, answer).await?;
        }
        ControlFlow::Continue(())
    }

    /// Sends the answer to a batch. Ends the stream if the session is fenced or the answer is an error.
    async fn forward(
        &self,
        session: &S::Session,
        sequence: u64,
        answer: Result<Answer, Status>,
    ) -> Flow {
        match answer.map(|answer| message(sequence, answer)) {
            Ok(Some(message)) => self.send_answer(session, message).await,
            Ok(None) => ControlFlow::Break(Ok(Some(fenced(sequence)))),
            Err(error) => ControlFlow::Break(Err(error)),
        }
    }

    /// Queues an answer, and waits until there is room. Ends the stream if the client is gone or the session is fenced.
    pub(super) async fn send_answer(&self, session: &S::Session, answer: Message) -> Flow {
        let sent = select! {
            () = self.stop.cancelled() => {
                return ControlFlow::Break(Err(self.sources.stopping()));
            }
            () = session.fenced().cancelled() => {
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

/// Waits for the first batch's answer, and removes the batch from the queue. Returns its number and the answer. Never
/// completes if the queue is empty.
async fn next_answer(unanswered: &mut VecDeque<Unanswered>) -> (u64, Result<Answer, Status>) {
    let Some(first) = unanswered.front_mut() else { return pending().await };
    let answer = first.answer.as_mut().await;
    let sequence = first.sequence;
    unanswered.pop_front();
    (sequence, answer)
}
