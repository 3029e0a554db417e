use crate::identity::{BlockIdentity, Checksum, SlotId};
use crate::tier::BlockTier;
use std::fmt;
use std::time::Duration;

/// Source and destination tier of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Tier that blocks are read from.
    pub from: BlockTier,
    /// Tier that blocks are written to.
    pub to: BlockTier,
}

impl Route {
    /// Whether the route leads to a tier nearer to the engine (onboard). Otherwise it is an offload.
    #[must_use]
    pub fn is_up(self) -> bool {
        self.to < self.from
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}_to_{}", self.from, self.to)
    }
}

/// Id of a transfer. Numbers are never reused within a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    /// The transfer's lane.
    pub route: Route,
    /// The transfer's number in its lane.
    pub number: u64,
}

/// Instruction for an executor: copy one block from slot to slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferOrder {
    /// Id to report in the outcome.
    pub id: TransferId,
    /// The block.
    pub identity: BlockIdentity,
    /// Slot to read, in the source tier.
    pub source: SlotId,
    /// Slot to write, in the destination tier.
    pub destination: SlotId,
    /// Bytes of the block.
    pub bytes: u64,
    /// Expected checksum of the bytes, if known.
    pub checksum: Option<Checksum>,
    /// When the transfer is cancelled if it is not finished.
    pub deadline: Duration,
}

/// One of a transfer's two copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The copy that is read.
    Source,
    /// The copy that is written.
    Destination,
}

/// Why an executor failed to copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The destination has no room (`ENOSPC`).
    NoSpace,
    /// Reading or writing failed (`EIO`).
    Io,
    /// The storage can't be reached.
    Unreachable,
    /// The source does not have the block's bytes.
    NotFound,
}

/// The result of a transfer. Reporting it also confirms that the executor has stopped: it no longer reads or writes for
/// this transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// All bytes were copied.
    Done {
        /// Bytes copied.
        bytes: u64,
        /// Checksum of the bytes that were read.
        read: Checksum,
        /// Checksum of the bytes in the destination. Equal to `read` if the executor computes the checksum while
        /// copying.
        written: Checksum,
    },
    /// Reading or writing ended early.
    Short {
        /// Bytes copied.
        bytes: u64,
    },
    /// The executor found a wrong checksum.
    Corrupt {
        /// The copy with the wrong checksum.
        side: Side,
    },
    /// Reading or writing failed.
    Failed {
        /// The kind of failure.
        failure: Failure,
    },
    /// The transfer was cancelled and has stopped.
    Cancelled,
}
