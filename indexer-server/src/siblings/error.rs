use crate::partitions::WriterGone;
use kvasir_index::IndexError;
use kvasir_process::answer_timer::Late;
use kvasir_proto::convert::ConvertError;
use kvasir_proto::limits::WORKERS_MAX;

/// Why a sibling's list of workers, or the copy of a worker, failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The sibling does not answer, or the connection broke.
    #[error("{0}")]
    Unreachable(String),
    /// The answer is missing or too slow.
    #[error(transparent)]
    Late(#[from] Late),
    /// The sibling does not have the worker any more.
    #[error("the sibling has removed the worker")]
    Unknown,
    /// A change of the worker aborted its dump.
    #[error("{0}")]
    CutOff(String),
    /// The request was refused.
    #[error("{0}")]
    Refused(String),
    /// A part of the answer violates the protocol.
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
    /// Parts contradict each other.
    #[error("malformed answer: {0}")]
    Contradiction(&'static str),
    /// The worker has too many records.
    #[error("the worker has more than {0} records, the limit")]
    TooMany(usize),
    /// The sibling lists too many workers.
    #[error("it lists more than {WORKERS_MAX} workers, the limit")]
    TooManyWorkers,
    /// The worker has no cursor to resume from.
    #[error("no source of the worker has a cursor at the sibling")]
    Nothing,
    /// The index refuses the copy.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

impl CopyError {
    /// Whether the error concerns the sibling itself, so that further requests are useless.
    pub(super) const fn is_of_sibling(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Late(_))
    }
}
