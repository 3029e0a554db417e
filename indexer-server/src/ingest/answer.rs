//! Replies to submitted batches.

use super::IngestError;
use kvasir_proto::types::BlockCounts;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

pub(super) type Reply = oneshot::Sender<Result<BatchAnswer, IngestError>>;

/// A batch that is not answered yet.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) sequence: u64,
    pub(super) reply: Reply,
}

impl Waiting {
    pub(super) fn answer(self, answer: Result<BatchAnswer, IngestError>) {
        // Fails if the stream is gone.
        let _gone = self.reply.send(answer);
    }
}

/// Why a batch was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Another stream took over, or the worker was removed.
    Fenced,
    /// Batches before this one are missing.
    Gap {
        /// The next expected sequence number.
        expected: u64,
    },
}

/// Outcome of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchAnswer {
    /// The batch is in the index.
    Acked {
        /// The batch was already in the index, or arrived another way.
        duplicate: bool,
        /// Outcomes of the batch's operations.
        counts: BlockCounts,
    },
    /// The batch is not in the index.
    Refused(Refusal),
}

/// The pending reply to a batch.
#[derive(Debug)]
pub struct PendingAnswer(pub(super) oneshot::Receiver<Result<BatchAnswer, IngestError>>);

impl PendingAnswer {
    /// Waits until the batch is in the index, or refused. Cancel-safe.
    ///
    /// # Errors
    /// If the index refuses the source, or the server is stopping.
    pub async fn wait(&mut self) -> Result<BatchAnswer, IngestError> {
        // No reply means that the stream is over.
        (&mut self.0).await.unwrap_or(Ok(BatchAnswer::Refused(Refusal::Fenced)))
    }

    /// Whether the reply has arrived, or will never come. Consumes the reply.
    pub fn is_there(&mut self) -> bool {
        !matches!(self.0.try_recv(), Err(TryRecvError::Empty))
    }
}
