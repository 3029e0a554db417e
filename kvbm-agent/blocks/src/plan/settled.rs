use super::{Failure, Side, TierBlock, TransferId};
use crate::identity::BlockIdentity;
use crate::store::RegisterError;
use std::time::Duration;

/// What became of a transfer's copy. All but [`Verdict::Committed`] register nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It was verified and registered.
    Committed,
    /// Bytes are missing.
    Short {
        /// Bytes that arrived.
        bytes: u64,
    },
    /// Bytes are wrong. A corrupt source was withdrawn: it will not be read again.
    Corrupt {
        /// Which copy.
        side: Side,
    },
    /// The executor failed.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// It was cancelled, and stopped before its end.
    Cancelled,
    /// It was cancelled, and came to its end nevertheless.
    Late,
    /// The pool refused it.
    Refused {
        /// Why.
        error: RegisterError,
    },
}

/// A transfer that has ended: its slots are free for other things.
#[derive(Debug)]
#[must_use]
pub struct Settled {
    /// Which transfer.
    pub id: TransferId,
    /// Of which block.
    pub identity: BlockIdentity,
    /// How it ended.
    pub verdict: Verdict,
    /// The copy in use, if it was registered. Dropped, it is inactive.
    pub copy: Option<TierBlock>,
    /// Bytes of the block.
    pub bytes: u64,
    /// Time since it was ordered.
    pub took: Duration,
}
