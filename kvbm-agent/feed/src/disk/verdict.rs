use std::fmt;

/// Whether the life that is on disk goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// No source was heard yet that could tell.
    Pending,
    /// An engine lived on: the life goes on.
    Kept,
    /// A new one began.
    NewLife(NewLife),
}

/// Why a new life began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewLife {
    /// The folder was empty.
    First,
    /// A write had failed, or a start was cut off, since when the folder does not count.
    Unmarked,
    /// What is there is damaged.
    Damaged(String),
    /// Another version wrote it.
    Version(u32),
    /// It was written for blocks of another size.
    BlockSize(u32),
    /// Copies were counted otherwise.
    CopyMode,
    /// Numbered LoRA adapters had other names, by which blocks were hashed.
    LoraNames,
    /// None of what fed the agent is configured any more, or can say whether it lived on.
    NoSource,
    /// The engine is another one, is gone, or cannot prove that it is the same.
    Engine,
}

impl Verdict {
    /// In a word, for metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Kept => "kept",
            Self::NewLife(NewLife::First) => "first",
            Self::NewLife(NewLife::Unmarked) => "unmarked",
            Self::NewLife(NewLife::Damaged(_)) => "damaged",
            Self::NewLife(NewLife::Version(_)) => "version",
            Self::NewLife(NewLife::BlockSize(_)) => "block_size",
            Self::NewLife(NewLife::CopyMode) => "copy_mode",
            Self::NewLife(NewLife::LoraNames) => "lora_names",
            Self::NewLife(NewLife::NoSource) => "no_source",
            Self::NewLife(NewLife::Engine) => "engine",
        }
    }

    /// All words of [`as_str`](Self::as_str).
    pub const WORDS: [&str; 11] = [
        "pending",
        "kept",
        "first",
        "unmarked",
        "damaged",
        "version",
        "block_size",
        "copy_mode",
        "lora_names",
        "no_source",
        "engine",
    ];
}

impl fmt::Display for NewLife {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the folder is new"),
            Self::Unmarked => f.write_str("a write had failed, or a start was cut off"),
            Self::Damaged(reason) => write!(f, "what is on disk is damaged: {reason}"),
            Self::Version(found) => write!(f, "format {found} is on disk, another version's"),
            Self::BlockSize(found) => write!(f, "blocks of {found} tokens are on disk"),
            Self::CopyMode => f.write_str("copies are counted otherwise on disk"),
            Self::LoraNames => f.write_str("LoRA adapters have other names on disk"),
            Self::NoSource => {
                f.write_str("no source is configured any more that could say whether it lived on")
            }
            Self::Engine => f.write_str("the engine did not prove that it lived on"),
        }
    }
}
