use super::{Failure, Side, TierBlock, TransferId};
use crate::identity::BlockIdentity;
use crate::store::RegisterError;
use std::time::Duration;

/// The final result of a transfer. Only [`Verdict::Committed`] registers the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The copy was verified and registered.
    Committed,
    /// Bytes are missing.
    Short {
        /// Bytes that arrived.
        bytes: u64,
    },
    /// Bytes are wrong. A corrupt source was withdrawn, so it is not read again.
    Corrupt {
        /// The corrupt copy.
        side: Side,
    },
    /// The executor reported a failure.
    Failed {
        /// The kind of failure.
        failure: Failure,
    },
    /// The transfer was cancelled and stopped before its end.
    Cancelled,
    /// The transfer was cancelled but completed nevertheless.
    Late,
    /// The pool refused to register the copy.
    Refused {
        /// Why the pool refused.
        error: RegisterError,
    },
}

/// A finished transfer. Its slots can be reused.
#[derive(Debug)]
#[must_use]
pub struct Settled {
    /// The transfer's id.
    pub id: TransferId,
    /// The copied block.
    pub identity: BlockIdentity,
    /// The result.
    pub verdict: Verdict,
    /// The registered copy, in use. Dropping it makes the block inactive.
    pub copy: Option<TierBlock>,
    /// Bytes of the block.
    pub bytes: u64,
    /// Time from the order to the outcome.
    pub took: Duration,
}
