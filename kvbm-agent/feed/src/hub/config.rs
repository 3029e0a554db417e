use crate::consolidate::SOURCES_MAX;
use crate::journal::AppendError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::types::{CopyMode, DpRank};
use std::time::Duration;

/// Bounds of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubConfig {
    /// Most sources at a time, 1 to [`SOURCES_MAX`].
    pub sources_max: u8,
    /// Whether several sources may publish for one rank, and are consolidated. Else each rank is one
    /// source's, and passed through.
    pub consolidate: bool,
    /// Most names that consolidated sources hold, each source's and rank's counted by itself; further
    /// ones are not taken.
    pub names_max: usize,
    /// How long batches wait for others.
    pub batching: BatchingConfig,
}

impl HubConfig {
    /// One source.
    pub const DEFAULT: Self = Self {
        sources_max: 1,
        consolidate: false,
        names_max: 8 << 20,
        batching: BatchingConfig::DEFAULT,
    };
}

impl Default for HubConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Longest that anything may wait.
pub const BATCH_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Most blocks that may wait.
pub const BATCH_BLOCKS_MAX: usize = 65_536;

/// How long sources' batches wait for others, to be published together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchingConfig {
    /// How long the first of them waits, at most [`BATCH_INTERVAL_MAX`]; 0 to publish each at once.
    pub interval: Duration,
    /// Once so many blocks wait, stored and removed ones over all ranks, they are published: 1 to
    /// [`BATCH_BLOCKS_MAX`].
    pub blocks_max: usize,
}

impl BatchingConfig {
    /// Each batch is published at once.
    pub const DEFAULT: Self = Self { interval: Duration::ZERO, blocks_max: 4_096 };

    /// Whether nothing waits ever.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.interval.is_zero()
    }

    /// Checks it.
    ///
    /// # Errors
    /// If a value is out of its range.
    pub fn check(&self) -> Result<(), HubError> {
        if self.interval > BATCH_INTERVAL_MAX {
            return Err(HubError::BatchInterval(self.interval));
        }
        if !(1..=BATCH_BLOCKS_MAX).contains(&self.blocks_max) {
            return Err(HubError::BatchBlocks(self.blocks_max));
        }
        Ok(())
    }
}

/// Why a source, or what it publishes, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// The configured number is out of range.
    #[error("sources_max is {0}, must be 1 to {SOURCES_MAX}")]
    SourcesMax(u8),
    /// The configured time is out of range.
    #[error("batches may wait for {BATCH_INTERVAL_MAX:?} at most, not for {0:?}")]
    BatchInterval(Duration),
    /// The configured number is out of range.
    #[error("so many blocks may wait: 1 to {BATCH_BLOCKS_MAX}, not {0}")]
    BatchBlocks(usize),
    /// Consolidation knows what is held, not how often.
    #[error(
        "the agent's copy mode is counted, and consolidated sources need copy mode set: set it"
    )]
    NotSet,
    /// What waits is not on disk, and its source would resume behind it.
    #[error("batch_interval and journal_dir do not go together: set one of them")]
    DiskWaits,
    /// What is passed through is read as the agent's stream is.
    #[error(
        "source {name:?} publishes with copy_mode {requested}, and this agent takes {present}: publish with {present}, or \
         start the agent with another --engine (vllm takes counted; sglang, trtllm and custom take set, and so does \
         every engine with --consolidate)"
    )]
    CopyMode {
        /// The source.
        name: String,
        /// As it states.
        requested: CopyMode,
        /// As the agent's stream is read.
        present: CopyMode,
    },
    /// There are as many as may be.
    #[error(
        "source {name:?} is one more than the {limit} that this agent takes: raise --sources-max, or end another first"
    )]
    TooManySources {
        /// The source.
        name: String,
        /// The most that are taken.
        limit: u8,
    },
    /// The name is taken.
    #[error("source {0:?} exists already: give each source a name of its own")]
    NameTaken(String),
    /// It was closed.
    #[error("the source was closed")]
    Closed,
    /// The rank is another source's.
    #[error(
        "rank {rank} is source {owner:?}'s already: give each source its own ranks, or consolidate them"
    )]
    RankTaken {
        /// The rank.
        rank: DpRank,
        /// Its source.
        owner: String,
    },
    /// The rank is reserved for a source whose engine may have survived.
    #[error("rank {rank} is reserved for source {owner:?}, which may continue: try again later")]
    RankReserved {
        /// The rank.
        rank: DpRank,
        /// The source that it is reserved for.
        owner: String,
    },
    /// A further rank.
    #[error("rank {rank} is one more than the {limit} that a worker may have")]
    TooManyRanks {
        /// The rank.
        rank: DpRank,
        /// The most that are taken.
        limit: usize,
    },
    /// The journal's answer.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl HubError {
    /// Code to report it with.
    #[must_use]
    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::SourcesMax(_)
            | Self::BatchInterval(_)
            | Self::BatchBlocks(_)
            | Self::Append(_) => ErrorCode::InvalidArgument,
            Self::NotSet
            | Self::DiskWaits
            | Self::CopyMode { .. }
            | Self::NameTaken(_)
            | Self::RankTaken { .. } => ErrorCode::FailedPrecondition,
            Self::TooManySources { .. } | Self::TooManyRanks { .. } => ErrorCode::ResourceExhausted,
            Self::RankReserved { .. } | Self::Closed => ErrorCode::Unavailable,
        }
    }
}
