//! Ways to be wrong, which the simulation must notice.

/// What is done wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// The position in the broker's stream is on disk before the images are.
    PositionFirst,
    /// The position is taken after the images, not before them.
    PositionLate,
    /// A batch now and then is not applied, but counts as such.
    SkipBatch,
    /// Batches are applied while a dump is read in, too.
    LiveDuringDump,
    /// What comes over an earlier stream of a source is taken for part of the present one.
    NoFence,
    /// Images that could not be written are not given back.
    ForgetImage,
    /// A new life goes on with the blocks of the one before.
    KeepOldLife,
    /// A dump that broke off counts as complete.
    BrokenDumpEnds,
    /// What a dump did not bring stays.
    KeepDoubtful,
    /// A checkpoint that is cut short leaves new cursors beside old blocks.
    TornImage,
    /// A checkpoint taken in the middle of a dump says where the source stood before it.
    CursorDuringDump,
}

impl Fault {
    pub const ALL: [Self; 11] = [
        Self::PositionFirst,
        Self::PositionLate,
        Self::SkipBatch,
        Self::LiveDuringDump,
        Self::NoFence,
        Self::ForgetImage,
        Self::KeepOldLife,
        Self::BrokenDumpEnds,
        Self::KeepDoubtful,
        Self::TornImage,
        Self::CursorDuringDump,
    ];
}
