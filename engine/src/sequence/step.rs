use crate::order::{Item, LossSteps, Numbered};
use kvasir_proto::types::{Cursor, Fingerprint, Incarnation};

/// A received batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<I> {
    /// Sequence number, from 0 in each incarnation. See [`Sequencer::believes`](super::Sequencer::believes).
    pub sequence: u64,
    /// Distinguishes the batch from one of another incarnation with the same number.
    pub fingerprint: Fingerprint,
    /// The incarnation that the publisher states with the batch, if any: see
    /// [`stated_incarnation`](super::stated_incarnation).
    pub incarnation: Option<Incarnation>,
    /// Payload of the batch.
    pub item: I,
}

impl<I: Item> Numbered for Received<I> {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn bytes(&self) -> usize {
        self.item.bytes()
    }
}

/// An input: an event at the source's sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<I> {
    /// The live stream is connected and subscribed.
    Connected,
    /// The live stream ended. No more of its batches will come.
    Disconnected,
    /// A batch of the live stream.
    Live(Received<I>),
    /// A batch of a round of replay.
    ReplayReply {
        /// The round, as given by [`Step::StartReplay`].
        round: u64,
        /// The batch.
        received: Received<I>,
    },
    /// A round of replay ended normally.
    ReplayEnd {
        /// The round.
        round: u64,
    },
    /// A round of replay failed: no connection, timeout, or a malformed reply.
    ReplayFailed {
        /// The round.
        round: u64,
    },
    /// Time passed.
    Tick,
}

/// Steps for the driver, to be executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<I> {
    /// The engine restarted, and no batch of its new incarnation is available yet: drop all blocks of the
    /// source.
    Restarted,
    /// A new incarnation begins: drop all blocks of the source. Emitted once per incarnation, before its
    /// first batch or loss, and again if the position in it was wrong.
    NewIncarnation {
        /// Id of the incarnation.
        incarnation: Incarnation,
    },
    /// Apply one batch.
    Apply {
        /// The source's cursor after the batch.
        cursor: Cursor,
        /// Payload of the batch.
        item: I,
    },
    /// Batches were lost: mark the source's blocks as suspect until they are announced again.
    MarkSuspect,
    /// Batches were lost: drop all blocks of the source. The incarnation continues.
    ClearLost,
    /// Drop the blocks that are still suspect.
    DropSuspects,
    /// Disconnected for too long: drop all blocks of the source. It starts over when it returns.
    Expired,
    /// Send a request to the replay socket over a separate connection.
    StartReplay {
        /// Number of this round.
        round: u64,
        /// First batch to request.
        from: u64,
    },
    /// Close the connection of a round.
    CancelReplay {
        /// The round.
        round: u64,
    },
}

impl<I> LossSteps for Step<I> {
    const MARK_SUSPECT: Self = Self::MarkSuspect;
    const CLEAR_LOST: Self = Self::ClearLost;
    const DROP_SUSPECTS: Self = Self::DropSuspects;
}
