//! Answers to submitted batches.

use super::IngestError;
use kvasir_proto::types::BlockCounts;
use tokio::sync::oneshot::{self, error::TryRecvError};

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
        /// The one wanted.
        expected: u64,
    },
}

/// Outcome of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchAnswer {
    /// It is in the index.
    Acked {
        /// It was there before, or came another way.
        duplicate: bool,
        /// Outcome of its operations.
        counts: BlockCounts,
    },
    /// It is not.
    Refused(Refusal),
}

/// The answer to a batch, when it is there.
#[derive(Debug)]
pub struct PendingAnswer(pub(super) oneshot::Receiver<Result<BatchAnswer, IngestError>>);

impl PendingAnswer {
    /// Waits for it: until the batch is in the index, or refused. Cancel-safe.
    ///
    /// # Errors
    /// If the index refuses the source, or the server is stopping.
    pub async fn wait(&mut self) -> Result<BatchAnswer, IngestError> {
        // Without an answer the stream is over.
        (&mut self.0).await.unwrap_or(Ok(BatchAnswer::Refused(Refusal::Fenced)))
    }

    /// Whether it is there, or none will come. Takes it.
    pub fn is_there(&mut self) -> bool {
        !matches!(self.0.try_recv(), Err(TryRecvError::Empty))
    }
}
