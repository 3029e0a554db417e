use crate::identity::SlotId;
use crate::layout::LayoutError;
use std::fmt;
use thiserror::Error;

/// One of the two sides of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// The side that is read.
    Source,
    /// The side that is written.
    Destination,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// Why blocks can't be copied from one group of ranks to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CopyError {
    /// A side has no ranks.
    #[error("the {side} has no ranks")]
    NoRanks {
        /// The side without ranks.
        side: Side,
    },
    /// The ranks disagree on a field that must be equal, on one side or on both.
    #[error("{field}: {expected} at the first rank, {found} at {side} rank {rank}")]
    Differs {
        /// The field.
        field: &'static str,
        /// The value at the first source, or at the first rank of the side.
        expected: u64,
        /// The side with the different value.
        side: Side,
        /// The rank with the different value.
        rank: u32,
        /// The different value.
        found: u64,
    },
    /// Neither page size is a multiple of the other.
    #[error(
        "page_size: neither of {source_tokens} and {destination_tokens} is a multiple of the other"
    )]
    PageSizes {
        /// Tokens of a source block.
        source_tokens: u32,
        /// Tokens of a destination block.
        destination_tokens: u32,
    },
    /// The two groups have different total widths of heads.
    #[error(
        "inner_dim: {source_elements} elements a token in all source ranks, {destination_elements} in all destination ranks"
    )]
    InnerDims {
        /// Elements of a token in all distinct parts of the source.
        source_elements: u64,
        /// Elements of a token in all distinct parts of the destination.
        destination_elements: u64,
    },
    /// A rank's blocks have a different number of tokens than the blocks of the first source.
    #[error(
        "blocks of {side} rank {rank} have {found} tokens, blocks of the first source {expected}"
    )]
    Tokens {
        /// The side of the rank.
        side: Side,
        /// The rank.
        rank: u32,
        /// Tokens in the blocks of this rank.
        found: u64,
        /// Tokens in the blocks of the first source.
        expected: u64,
    },
    /// A rank is listed twice on one side.
    #[error("{side} rank {rank} is named twice")]
    DuplicateRank {
        /// The side of the rank.
        side: Side,
        /// The rank.
        rank: u32,
    },
    /// A destination needs a part of the heads that no source has.
    #[error("no source holds part {shard} of the heads, which destination rank {rank} needs")]
    MissingShard {
        /// The part, below [`TensorParallel::shards`](crate::sets::TensorParallel::shards) of the source.
        shard: u32,
        /// The destination rank.
        rank: u32,
    },
    /// A destination block is listed twice, so it would be written twice.
    #[error("destination rank {rank} lists {block:?} twice")]
    DuplicateBlock {
        /// The destination rank.
        rank: u32,
        /// The block.
        block: SlotId,
    },
    /// A limit is exceeded, or is 0.
    #[error("{limit}: the limit is {max}")]
    Limit {
        /// The field of [`CopyLimits`](super::CopyLimits).
        limit: &'static str,
        /// The limit's value.
        max: u64,
    },
    /// A block number is out of range.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}
