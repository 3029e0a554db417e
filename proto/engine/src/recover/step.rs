use crate::order::{self, Item, LossSteps};
use kvasir_proto::types::{Cursor, Incarnation};

/// A batch with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered<I> {
    /// Its number within the life of its source.
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
        /// The life it says it lives.
        incarnation: Incarnation,
        /// Number of the first batch of that life, if it says so.
        first: Option<u64>,
        /// Number of its newest batch, if it says so.
        head: Option<u64>,
        /// Whether a log brings it that keeps lives in the order in which they were lived: then one
        /// that is new begins where it says.
        in_order: bool,
    },
    /// The live stream is gone; nothing of it is still to come.
    Disconnected,
    /// What comes from now on is not the newest: a log is read from further back, or the way to the
    /// source is down for reasons that are not its own. Until [`CaughtUp`](Self::CaughtUp) or
    /// [`Disconnected`](Self::Disconnected) the source is catching up, what it announces is waited for,
    /// and its silence says nothing.
    Behind,
    /// The log was read to its end.
    CaughtUp,
    /// The source says that it is there.
    Announced {
        /// The life it says it lives.
        incarnation: Incarnation,
        /// Number of its newest batch, if it says so.
        head: Option<u64>,
    },
    /// A batch of the live stream.
    Live {
        /// The life it belongs to.
        incarnation: Incarnation,
        /// The batch.
        batch: Numbered<I>,
    },
    /// A batch that a round asked for.
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
    /// The range cannot be had from this life: it is older than what is kept, its numbers are
    /// beyond the newest one, or a batch of it cannot be read.
    RangeGone {
        /// The round.
        round: u64,
    },
    /// Who was asked lives another life.
    OtherIncarnation {
        /// The round.
        round: u64,
        /// The life it lives.
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
        /// The life it describes.
        incarnation: Incarnation,
        /// Last batch whose effects are in it; none if the source has had none.
        watermark: Option<u64>,
    },
    /// A round broke off: nobody there, too slow, malformed. A dump that did so says nothing.
    RoundFailed {
        /// The round.
        round: u64,
    },
    /// The index lacks blocks of the source for reasons of its own, and has room for them now: a dump
    /// is wanted, which waits for whatever else is missing.
    LacksBlocks,
    /// Time passed.
    Tick,
}

/// What to ask a source for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// All batches of a life from a number on.
    Range {
        /// The life.
        incarnation: Incarnation,
        /// The first wanted.
        from: u64,
    },
    /// All that the source holds.
    Dump {
        /// The life it is expected to live.
        incarnation: Incarnation,
    },
}

/// What to do, in this order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<I, C> {
    /// What follows belongs to this life: drop all that the source stored.
    NewIncarnation {
        /// Id of the life.
        incarnation: Incarnation,
    },
    /// Apply one batch.
    Apply {
        /// The source's cursor once it is applied.
        cursor: Cursor,
        /// Its payload.
        item: I,
    },
    /// A live batch was not taken: those before it are missing, and the publisher is to send them.
    Refuse {
        /// Its number.
        sequence: u64,
        /// The number wanted.
        expected: u64,
    },
    /// A dump begins: what the source holds now is doubtful until the dump brings it.
    BeginDump,
    /// Bring the names of a chunk to the state that it says.
    Chunk {
        /// The chunk.
        chunk: C,
    },
    /// The dump is complete: drop what is still doubtful.
    FinishDump {
        /// Where the source stands then; none if it has had no batch.
        cursor: Option<Cursor>,
    },
    /// Batches were lost: what the source holds now is doubtful until announced again.
    MarkSuspect,
    /// Batches were lost: drop all that the source stored, in the same life.
    ClearLost,
    /// Drop what is still doubtful.
    DropSuspects,
    /// Not heard of for too long: drop all that the source stored. It begins afresh once it is back.
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
