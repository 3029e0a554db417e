use crate::order::{Item, LossSteps, Numbered};
use kvasir_proto::types::{Cursor, Fingerprint, Incarnation};

/// A batch as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received<I> {
    /// Its number, from 0 in each incarnation. See [`Sequencer::believes`](super::Sequencer::believes).
    pub sequence: u64,
    /// Distinguishes it from a batch of another incarnation with the same number.
    pub fingerprint: Fingerprint,
    /// The incarnation that the publisher states with it, if any: see
    /// [`stated_incarnation`](super::stated_incarnation).
    pub incarnation: Option<Incarnation>,
    /// Its payload.
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

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<I> {
    /// The live stream is connected and subscribed.
    Connected,
    /// The live stream is gone; nothing of it is still to come.
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
    /// A round of replay ended as it should.
    ReplayEnd {
        /// The round.
        round: u64,
    },
    /// A round of replay broke off: not reachable, too slow, malformed.
    ReplayFailed {
        /// The round.
        round: u64,
    },
    /// Time passed.
    Tick,
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<I> {
    /// The engine restarted, and nothing of its new incarnation is at hand yet: drop all that the source stored.
    Restarted,
    /// What follows belongs to this incarnation: drop all that the source stored. Once for each
    /// incarnation, before its first batch or loss; once more where the position in it was wrong.
    NewIncarnation {
        /// Id of the incarnation.
        incarnation: Incarnation,
    },
    /// Apply one batch.
    Apply {
        /// The source's cursor once it is applied.
        cursor: Cursor,
        /// Its payload.
        item: I,
    },
    /// Batches were lost: what the source holds now is suspect until announced again.
    MarkSuspect,
    /// Batches were lost: drop all that the source stored, in the same incarnation.
    ClearLost,
    /// Drop what is still suspect.
    DropSuspects,
    /// Disconnected for too long: drop all that the source stored. It starts over once it is back.
    Expired,
    /// Send a request to the replay socket, over a connection of its own.
    StartReplay {
        /// Number of this round.
        round: u64,
        /// First batch to request.
        from: u64,
    },
    /// Drop the connection of a round.
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
