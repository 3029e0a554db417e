use crate::partitions::WriterGone;
use kvasir_index::IndexError;
use kvasir_process::answer_timer::Late;
use kvasir_proto::{convert::ConvertError, limits::WORKERS_MAX};

/// Why a sibling gives no list, or no copy of a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// No one answers there, or the connection broke off.
    #[error("{0}")]
    Unreachable(String),
    /// The answer does not come, or too slowly.
    #[error(transparent)]
    Late(#[from] Late),
    /// It does not know the worker any more.
    #[error("the worker is not registered there any more")]
    Unknown,
    /// A change of the worker cut its dump off.
    #[error("{0}")]
    CutOff(String),
    /// The request was refused.
    #[error("{0}")]
    Refused(String),
    /// A part breaks the contract.
    #[error("malformed answer: {0}")]
    Malformed(#[from] ConvertError),
    /// Parts contradict each other.
    #[error("malformed answer: {0}")]
    Contradiction(&'static str),
    /// It holds too much.
    #[error("the worker has more than {0} records, the limit")]
    TooMany(usize),
    /// It lists too many workers.
    #[error("it lists more than {WORKERS_MAX} workers, the limit")]
    TooManyWorkers,
    /// It has no cursor that events could resume from.
    #[error("no source of the worker has a cursor there")]
    Nothing,
    /// The index refuses it.
    #[error(transparent)]
    Index(#[from] IndexError),
    /// The server is stopping.
    #[error(transparent)]
    Stopping(#[from] WriterGone),
}

impl CopyError {
    /// Whether the sibling is not worth another request.
    pub(super) const fn is_of_sibling(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Late(_))
    }
}
