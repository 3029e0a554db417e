use crate::order::{self, Item, LossSteps};
use kvasir_proto::types::{Cursor, Incarnation};

/// A batch with its sequence number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered<I> {
    /// Sequence number within the incarnation.
    pub sequence: u64,
    /// Payload of the batch.
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

/// An input: an event at the source or its transport. `I` is the payload of a batch, `C` a chunk of a dump.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input<I, C> {
    /// The source opened its live stream.
    Connected {
        /// The incarnation that the source states.
        incarnation: Incarnation,
        /// Number of the incarnation's first batch, if stated.
        first: Option<u64>,
        /// Number of the incarnation's newest batch, if stated.
        head: Option<u64>,
        /// Whether the transport is a log that preserves the order of incarnations. If so, the stated first
        /// number of a new incarnation counts.
        in_order: bool,
    },
    /// The live stream ended. No more of its batches will come.
    Disconnected,
    /// The following batches are not the newest: a log is read from an older offset, or the transport is
    /// down. The source is catching up until [`CaughtUp`](Self::CaughtUp) or
    /// [`Disconnected`](Self::Disconnected). Until then, announced batches are not missing, and silence has
    /// no meaning.
    Behind,
    /// The log was read to its end.
    CaughtUp,
    /// The source announced itself.
    Announced {
        /// The incarnation that the source states.
        incarnation: Incarnation,
        /// Number of the incarnation's newest batch, if stated.
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
    /// The end of a requested range.
    RangeEnd {
        /// The round.
        round: u64,
        /// Number of the source's newest batch at that moment; `None` before its first batch.
        head: Option<u64>,
    },
    /// The range cannot be obtained from this incarnation: it is no longer retained, its numbers are beyond
    /// the newest one, or a batch is unreadable.
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
    /// The dump is complete. Without any chunk, the source has no blocks.
    DumpEnd {
        /// The round.
        round: u64,
        /// The incarnation that the dump describes.
        incarnation: Incarnation,
        /// Last batch that the dump includes; `None` before the source's first batch.
        watermark: Option<u64>,
    },
    /// A round failed: no connection, timeout, or a malformed answer. An incomplete dump proves nothing.
    RoundFailed {
        /// The round.
        round: u64,
    },
    /// The index evicted blocks of the source, and has room again. Request a dump, once no batches are
    /// missing.
    LacksBlocks,
    /// Time passed.
    Tick,
}

/// Whether messages of an incarnation are accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// Messages are accepted.
    Admitted,
    /// The incarnation has ended.
    Past,
    /// The incarnation is new, but the memory of recently ended ones is full.
    TooMany,
}

/// A request to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// All batches of an incarnation from a number on.
    Range {
        /// The incarnation.
        incarnation: Incarnation,
        /// Number of the first batch.
        from: u64,
    },
    /// All blocks of the source.
    Dump {
        /// The incarnation that the source should be in.
        incarnation: Incarnation,
    },
}

/// Steps for the driver, to be executed in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<I, C> {
    /// A new incarnation begins: drop all blocks of the source.
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
    /// A live batch was refused, and the publisher must send the expected one. Either earlier batches are
    /// missing, or the number is implausible, or it is below the first batch, which was not stated to be the
    /// first.
    Refuse {
        /// Number of the refused batch.
        sequence: u64,
        /// The expected number; any (0) before the first batch.
        expected: u64,
    },
    /// A dump begins: mark the source's blocks as suspect until the dump contains them.
    BeginDump,
    /// Replace the state of the chunk's names.
    Chunk {
        /// The chunk.
        chunk: C,
    },
    /// The dump is complete: drop the blocks that are still suspect.
    FinishDump {
        /// The source's cursor after the dump; `None` if it has no batch yet.
        cursor: Option<Cursor>,
    },
    /// Batches were lost: mark the source's blocks as suspect until they are announced again.
    MarkSuspect,
    /// Batches were lost: drop all blocks of the source. The incarnation continues.
    ClearLost,
    /// Drop the blocks that are still suspect.
    DropSuspects,
    /// Silent for too long: drop all blocks of the source. It starts over when it returns.
    Expired,
    /// Query the source over a separate connection.
    Ask {
        /// Number of this round.
        round: u64,
        /// The request.
        ask: Ask,
    },
    /// Close the connection of a round.
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
