use futures::future::BoxFuture;
use kvasir_proto::pb::publish_events_response::Message;
use kvasir_proto::pb::{PublishAck, PublishEventsResponse, PublishRefusal, RefusalReason};
use tonic::Status;

/// The answer to a batch, when it is there; an error ends the stream. Cancel-safe.
pub type PendingAnswer = BoxFuture<'static, Result<Answer, Status>>;

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is applied.
    Acked {
        /// It had been applied before.
        duplicate: bool,
        /// Block operations that had an effect.
        applied: u64,
        /// Block operations that changed nothing.
        noop: u64,
        /// Block operations that cannot be applied.
        rejected: u64,
    },
    /// Batches before it are missing.
    Gap {
        /// The one expected.
        expected: u64,
    },
    /// Another stream took over.
    Fenced,
}

/// The answer to batch `sequence`; none if the stream is fenced.
pub(super) fn message(sequence: u64, answer: Answer) -> Option<Message> {
    match answer {
        Answer::Acked { duplicate, applied, noop, rejected } => {
            Some(Message::Ack(PublishAck { sequence, duplicate, applied, noop, rejected }))
        }
        Answer::Gap { expected } => {
            let text = format!("batches before this one are missing: send {expected} next");
            Some(refusal(sequence, RefusalReason::Gap, expected, text))
        }
        Answer::Fenced => None,
    }
}

pub(super) fn fenced(sequence: u64) -> PublishEventsResponse {
    let text = "another stream took this source over, or the worker was removed".to_owned();
    response(refusal(sequence, RefusalReason::Fenced, 0, text))
}

pub(super) fn refusal(
    sequence: u64,
    reason: RefusalReason,
    expected: u64,
    message: String,
) -> Message {
    let (reason, expected_sequence) = (reason.into(), expected);
    Message::Refusal(PublishRefusal { sequence, reason, expected_sequence, message })
}

pub(super) const fn response(message: Message) -> PublishEventsResponse {
    PublishEventsResponse { message: Some(message) }
}
