use crate::consolidate::SOURCES_MAX;
use crate::journal::AppendError;
use kvasir_proto::code::ErrorCode;
use kvasir_proto::types::{CopyMode, DpRank};
use std::time::Duration;

/// Limits and options of a hub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HubConfig {
    /// Maximum number of sources, 1 to [`SOURCES_MAX`].
    pub sources_max: u8,
    /// Whether several sources may publish for one rank, and are consolidated. Otherwise each rank belongs to one
    /// source, whose events pass unchanged.
    pub consolidate: bool,
    /// Maximum number of names in all consolidated sources, counted per source and rank. Further names are refused.
    pub names_max: usize,
    /// How long batches wait to be published together.
    pub batching: BatchingConfig,
}

impl HubConfig {
    /// One source, not consolidated.
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

/// Upper limit of [`BatchingConfig::interval`].
pub const BATCH_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// Upper limit of [`BatchingConfig::blocks_max`].
pub const BATCH_BLOCKS_MAX: usize = 65_536;

/// How long sources' batches wait to be published together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchingConfig {
    /// How long the first waiting batch waits, at most [`BATCH_INTERVAL_MAX`]. 0 publishes each batch immediately.
    pub interval: Duration,
    /// Number of waiting blocks at which they are published: stored and removed blocks over all ranks, 1 to
    /// [`BATCH_BLOCKS_MAX`].
    pub blocks_max: usize,
}

impl BatchingConfig {
    /// Publishes each batch immediately.
    pub const DEFAULT: Self = Self { interval: Duration::ZERO, blocks_max: 4_096 };

    /// Whether batches are published immediately.
    #[must_use]
    pub const fn is_off(&self) -> bool {
        self.interval.is_zero()
    }

    /// Checks the ranges of the values.
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

/// Why a source or its events are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HubError {
    /// `sources_max` is out of range.
    #[error("sources_max is {0}, must be 1 to {SOURCES_MAX}")]
    SourcesMax(u8),
    /// `interval` is out of range.
    #[error("the batch interval is {0:?}, must be at most {BATCH_INTERVAL_MAX:?}")]
    BatchInterval(Duration),
    /// `blocks_max` is out of range.
    #[error("the batch limit is {0} blocks, must be 1 to {BATCH_BLOCKS_MAX}")]
    BatchBlocks(usize),
    /// Consolidation tracks whether a block is held, not how often.
    #[error(
        "the agent's copy mode is counted, and consolidated sources need copy mode set: set it"
    )]
    NotSet,
    /// Waiting batches are not on disk, but their source would resume after them.
    #[error("batch_interval and journal_dir do not go together: set one of them")]
    DiskWaits,
    /// Events that pass unchanged need the agent's copy mode.
    #[error(
        "source {name:?} publishes with copy_mode {requested}, and this agent takes {present}: publish with {present}, or \
         start the agent with another --engine (vllm takes counted; sglang, trtllm and custom take set, and so does \
         every engine with --consolidate)"
    )]
    CopyMode {
        /// The source.
        name: String,
        /// Copy mode of the source.
        requested: CopyMode,
        /// Copy mode of the agent's stream.
        present: CopyMode,
    },
    /// The hub has its maximum number of sources.
    #[error(
        "source {name:?} is one more than the {limit} that this agent takes: end another first"
    )]
    TooManySources {
        /// The source.
        name: String,
        /// Maximum number of sources.
        limit: u8,
    },
    /// Another source has the name.
    #[error("source {0:?} exists already: give each source a name of its own")]
    NameTaken(String),
    /// It was closed.
    #[error("the source was closed")]
    Closed,
    /// The rank belongs to another source.
    #[error(
        "rank {rank} is source {owner:?}'s already: give each source its own ranks, or consolidate them"
    )]
    RankTaken {
        /// The rank.
        rank: DpRank,
        /// Source to which the rank belongs.
        owner: String,
    },
    /// The rank is reserved for a source whose engine may have survived.
    #[error("rank {rank} is reserved for source {owner:?}, which may continue: try again later")]
    RankReserved {
        /// The rank.
        rank: DpRank,
        /// Source for which the rank is reserved.
        owner: String,
    },
    /// The worker has its maximum number of ranks.
    #[error("rank {rank} is refused: the worker has {limit} ranks, the maximum")]
    TooManyRanks {
        /// The rank.
        rank: DpRank,
        /// Maximum number of ranks.
        limit: usize,
    },
    /// The journal refused the events.
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl HubError {
    /// Error code to report.
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
