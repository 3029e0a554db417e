use crate::identity::{BlockIdentity, Checksum, SlotId};
use crate::tier::BlockTier;
use std::fmt;
use std::time::Duration;

/// From one tier to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Route {
    /// Where blocks are read.
    pub from: BlockTier,
    /// Where they are written.
    pub to: BlockTier,
}

impl Route {
    /// Whether it leads nearer to the engine: an onboard. Else it is an offload.
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

/// One transfer of a lane. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId {
    /// Its lane.
    pub route: Route,
    /// Its number there.
    pub number: u64,
}

/// What an executor has to do: copy one block from slot to slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferOrder {
    /// To be named in the outcome.
    pub id: TransferId,
    /// The block.
    pub identity: BlockIdentity,
    /// Slot to read in the tier that the route comes from.
    pub source: SlotId,
    /// Slot to write in the tier that the route leads to.
    pub destination: SlotId,
    /// Bytes of the block.
    pub bytes: u64,
    /// Checksum that the bytes must have, if it is known.
    pub checksum: Option<Checksum>,
    /// When it is cancelled unless it has ended.
    pub deadline: Duration,
}

/// Which copy of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one that is read.
    Source,
    /// The one that is written.
    Destination,
}

/// Why an executor could not copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The destination has no room (`ENOSPC`).
    NoSpace,
    /// Reading or writing failed (`EIO`).
    Io,
    /// The storage can't be reached.
    Unreachable,
    /// The source has no such bytes.
    NotFound,
}

/// How a transfer ended. It also says that the executor has stopped: it neither reads nor writes for it any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It came to its end.
    Done {
        /// Bytes copied.
        bytes: u64,
        /// Checksum of the bytes that were read.
        read: Checksum,
        /// Checksum of the bytes as they stand in the destination; the same as `read` where an executor computes one
        /// on the way.
        written: Checksum,
    },
    /// Reading or writing ended early.
    Short {
        /// Bytes copied.
        bytes: u64,
    },
    /// The executor found a wrong checksum.
    Corrupt {
        /// In which copy.
        side: Side,
    },
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
    },
    /// It was stopped because it was cancelled.
    Cancelled,
}
