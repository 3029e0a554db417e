use std::fmt;

/// Whether the incarnation on disk continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Undecided: no source has proved yet whether its engine survived.
    Pending,
    /// An engine survived, or another source holds blocks: the incarnation continues.
    Continued,
    /// A new incarnation began.
    NewIncarnation(NewIncarnation),
}

/// Why a new incarnation began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewIncarnation {
    /// The folder was empty.
    First,
    /// The mark is missing: an earlier write failed, or a start was interrupted.
    Unmarked,
    /// The journal on disk is damaged.
    Damaged(String),
    /// The journal has another format version.
    Version(u32),
    /// The journal has another block size.
    BlockSize(u32),
    /// The journal has another copy mode.
    CopyMode,
    /// Consolidation was switched on or off.
    Consolidation,
    /// Numbered LoRA adapters had other names, on which block hashes depend.
    LoraNames,
    /// No configured source could prove that its engine survived.
    NoSource,
    /// The engine is another process, is gone, or cannot prove that it is the same.
    Engine,
}

impl Verdict {
    /// Label value for metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Continued => "kept",
            Self::NewIncarnation(NewIncarnation::First) => "first",
            Self::NewIncarnation(NewIncarnation::Unmarked) => "unmarked",
            Self::NewIncarnation(NewIncarnation::Damaged(_)) => "damaged",
            Self::NewIncarnation(NewIncarnation::Version(_)) => "version",
            Self::NewIncarnation(NewIncarnation::BlockSize(_)) => "block_size",
            Self::NewIncarnation(NewIncarnation::CopyMode) => "copy_mode",
            Self::NewIncarnation(NewIncarnation::Consolidation) => "consolidation",
            Self::NewIncarnation(NewIncarnation::LoraNames) => "lora_names",
            Self::NewIncarnation(NewIncarnation::NoSource) => "no_source",
            Self::NewIncarnation(NewIncarnation::Engine) => "engine",
        }
    }

    /// All values of [`as_str`](Self::as_str).
    pub const WORDS: [&str; 12] = [
        "pending",
        "kept",
        "first",
        "unmarked",
        "damaged",
        "version",
        "block_size",
        "copy_mode",
        "consolidation",
        "lora_names",
        "no_source",
        "engine",
    ];
}

impl fmt::Display for NewIncarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the folder is new"),
            Self::Unmarked => f.write_str("a write had failed, or a start was cut off"),
            Self::Damaged(reason) => write!(f, "the journal on disk is damaged: {reason}"),
            Self::Version(found) => write!(f, "format {found} is on disk, another version's"),
            Self::BlockSize(found) => write!(f, "blocks of {found} tokens are on disk"),
            Self::CopyMode => f.write_str("copies are counted otherwise on disk"),
            Self::Consolidation => f.write_str(
                "sources were consolidated when the folder was written and are not now, or the other way round",
            ),
            Self::LoraNames => f.write_str("LoRA adapters have other names on disk"),
            Self::NoSource => f.write_str(
                "no source is configured any more that could prove that its engine survived",
            ),
            Self::Engine => f.write_str("the engine did not prove that it survived"),
        }
    }
}
