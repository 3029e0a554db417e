use futures::future::BoxFuture;
use kvasir_proto::limits::SEQUENCES_AHEAD_MAX;
use kvasir_proto::pb::publish_events_response::Message;
use kvasir_proto::pb::{PublishAck, PublishEventsResponse, PublishRefusal, RefusalReason};
use tonic::Status;

/// The future answer to a batch. An error ends the stream. Cancel-safe.
pub type PendingAnswer = BoxFuture<'static, Result<Answer, Status>>;

/// Result of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The batch is applied.
    Acked {
        /// The batch had been applied before.
        duplicate: bool,
        /// Block operations that had an effect.
        applied: u64,
        /// Block operations that changed nothing.
        noop: u64,
        /// Block operations that were rejected.
        rejected: u64,
    },
    /// Batches before this one are missing.
    Gap {
        /// The expected sequence number.
        expected: u64,
    },
    /// Another stream of the source took over (fencing).
    Fenced,
}

/// Converts the answer to batch `sequence` to a message, or returns `None` if the stream is fenced.
pub(super) fn message(sequence: u64, answer: Answer) -> Option<Message> {
    match answer {
        Answer::Acked { duplicate, applied, noop, rejected } => {
            Some(Message::Ack(PublishAck { sequence, duplicate, applied, noop, rejected }))
        }
        Answer::Gap { expected } => {
            Some(refusal(sequence, RefusalReason::Gap, expected, text_of_gap(sequence, expected)))
        }
        Answer::Fenced => None,
    }
}

/// Error text for a batch with an unexpected sequence number.
fn text_of_gap(sequence: u64, expected: u64) -> String {
    if sequence < expected {
        return format!(
            "sequence {sequence} is below the first that came of this incarnation, and its hello did not state \
             first_sequence: send {expected} next, or begin a new incarnation"
        );
    }
    if sequence - expected < SEQUENCES_AHEAD_MAX {
        return format!("batches before this one are missing: send {expected} next");
    }
    let first = match expected {
        0 => "; if the incarnation begins here, state first_sequence in the hello",
        _ => "",
    };
    format!(
        "sequence {sequence} is {SEQUENCES_AHEAD_MAX} or more beyond the expected one, which is not believed: send \
         {expected} next{first}"
    )
}

pub(super) fn fenced(sequence: u64) -> PublishEventsResponse {
    let text = "another stream took this source over, or the worker was removed".to_owned();
    response(refusal(sequence, RefusalReason::Fenced, 0, text))
}

/// Builds the refusal of a batch.
pub(super) fn refusal(
    sequence: u64,
    reason: RefusalReason,
    expected: u64,
    message: String,
) -> Message {
    let reason = reason.into();
    let expected_sequence = expected;
    Message::Refusal(PublishRefusal { sequence, reason, expected_sequence, message })
}

pub(super) const fn response(message: Message) -> PublishEventsResponse {
    PublishEventsResponse { message: Some(message) }
}
