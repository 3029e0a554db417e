use crate::order::{self, Item, LossSteps};
use kvasir_proto::types::{Cursor, Incarnation};

/// A batch with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered<I> {
    /// Its number within its incarnation.
    pub sequence: u64,
    /// Its payload.
    pub item: I,
}

impl<I: Item> order::Numbered for Numbered<I> {
    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn bytes(&self) -> usize {
        self.item.bytes()
    }
}

/// What happened. `I` is the payload of a batch, `C` a chunk of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<I, C> {
    /// The source opened its live stream.
    Connected {
        /// The incarnation that it states.
        incarnation: Incarnation,
        /// Number of the first batch of that incarnation, if stated.
        first: Option<u64>,
        /// Number of its newest batch, if stated.
        head: Option<u64>,
        /// Whether the transport is a log that preserves the order of incarnations: then the stated
        /// first number of a new one is believed.
        in_order: bool,
    },
    /// The live stream is gone; nothing of it is still to come.
    Disconnected,
    /// What comes from now on is not the newest: a log is read from further back, or the transport
    /// is down. Until [`CaughtUp`](Self::CaughtUp) or
    /// [`Disconnected`](Self::Disconnected) the source is catching up, announced batches are waited
    /// for, and its silence has no meaning.
    Behind,
    /// The log was read to its end.
    CaughtUp,
    /// The source announced itself.
    Announced {
        /// The incarnation that it states.
        incarnation: Incarnation,
        /// Number of its newest batch, if stated.
        head: Option<u64>,
    },
    /// A batch of the live stream.
    Live {
        /// The incarnation of the batch.
        incarnation: Incarnation,
        /// The batch.
        batch: Numbered<I>,
    },
    /// A batch that a round requested.
    RangeBatch {
        /// The round, as given by [`Step::Ask`].
        round: u64,
        /// The batch.
        batch: Numbered<I>,
    },
    /// All batches of a range were sent.
    RangeEnd {
        /// The round.
        round: u64,
        /// Number of the source's newest batch at that moment; none if it has had none.
        head: Option<u64>,
    },
    /// The range cannot be obtained from this incarnation: it is older than what is retained, its numbers are
    /// beyond the newest one, or a batch of it cannot be read.
    RangeGone {
        /// The round.
        round: u64,
    },
    /// The answer came from another incarnation.
    OtherIncarnation {
        /// The round.
        round: u64,
        /// The incarnation that answered.
        present: Incarnation,
    },
    /// A part of a dump.
    DumpChunk {
        /// The round.
        round: u64,
        /// Absolute state of some names.
        chunk: C,
    },
    /// The dump is complete; if there were no chunks, nothing is held.
    DumpEnd {
        /// The round.
        round: u64,
        /// The incarnation it describes.
        incarnation: Incarnation,
        /// Last batch whose effects are in it; none if the source has had none.
        watermark: Option<u64>,
    },
    /// A round broke off: nobody there, too slow, malformed. Such a dump proves nothing.
    RoundFailed {
        /// The round.
        round: u64,
    },
    /// The index dropped blocks of the source, and has room for them now. A dump is to be requested,
    /// once nothing else is missing.
    LacksBlocks,
    /// Time passed.
    Tick,
}

/// Whether messages of an incarnation are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// They are.
    Admitted,
    /// It has ended.
    Past,
    /// It is a new one, and as many ended lately as are remembered.
    TooMany,
}

/// What to request from a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// All batches of an incarnation from a number on.
    Range {
        /// The incarnation.
        incarnation: Incarnation,
        /// Number of the first one.
        from: u64,
    },
    /// All that the source holds.
    Dump {
        /// The incarnation that it is expected to be in.
        incarnation: Incarnation,
    },
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<I, C> {
    /// What follows belongs to this incarnation: drop all that the source stored.
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
    /// A live batch was not taken. Those before it are missing, or its number cannot be believed, or it is
    /// lower than that of the first batch, of which nobody stated that it was the first. The publisher is to send the
    /// one wanted.
    Refuse {
        /// Its number.
        sequence: u64,
        /// The number wanted; any (0) before the first.
        expected: u64,
    },
    /// A dump begins: what the source holds now is suspect until the dump brings it.
    BeginDump,
    /// Set the names of a chunk to the state in it.
    Chunk {
        /// The chunk.
        chunk: C,
    },
    /// The dump is complete: drop what is still suspect.
    FinishDump {
        /// The cursor of the source then; none if it has had no batch.
        cursor: Option<Cursor>,
    },
    /// Batches were lost: what the source holds now is suspect until announced again.
    MarkSuspect,
    /// Batches were lost: drop all that the source stored, in the same incarnation.
    ClearLost,
    /// Drop what is still suspect.
    DropSuspects,
    /// Silent for too long: drop all that the source stored. It starts over once it is back.
    Expired,
    /// Ask the source, over a connection of its own.
    Ask {
        /// Number of this round.
        round: u64,
        /// What for.
        ask: Ask,
    },
    /// Drop the connection of a round.
    Cancel {
        /// The round.
        round: u64,
    },
}

impl<I, C> LossSteps for Step<I, C> {
    const MARK_SUSPECT: Self = Self::MarkSuspect;
    const CLEAR_LOST: Self = Self::ClearLost;
    const DROP_SUSPECTS: Self = Self::DropSuspects;
}
