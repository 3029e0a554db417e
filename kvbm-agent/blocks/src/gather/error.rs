use crate::identity::SlotId;
use crate::layout::LayoutError;
use std::fmt;
use thiserror::Error;

/// One of the two sides of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// It is read.
    Source,
    /// It is written.
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

/// Why blocks can't be copied from one group of ranks to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CopyError {
    /// A side has no ranks.
    #[error("the {side} has no ranks")]
    NoRanks {
        /// Which side.
        side: Side,
    },
    /// A field that all ranks must agree on, of both sides or of one, differs.
    #[error("{field}: {expected} at the first rank, {found} at {side} rank {rank}")]
    Differs {
        /// The field.
        field: &'static str,
        /// Its value at the first source, or at the first rank of the side.
        expected: u64,
        /// The side that has another value.
        side: Side,
        /// The rank that has another value.
        rank: u32,
        /// That value.
        found: u64,
    },
    /// Neither page size is a multiple of the other one.
    #[error(
        "page_size: neither of {source_tokens} and {destination_tokens} is a multiple of the other"
    )]
    PageSizes {
        /// Tokens of a source block.
        source_tokens: u32,
        /// Tokens of a destination block.
        destination_tokens: u32,
    },
    /// The heads of both groups have different widths together.
    #[error(
        "inner_dim: {source_elements} elements a token in all source ranks, {destination_elements} in all destination ranks"
    )]
    InnerDims {
        /// Elements of a token in all different parts of the source.
        source_elements: u64,
        /// The same of the destination.
        destination_elements: u64,
    },
    /// A rank's blocks hold more or fewer tokens than those of the first source.
    #[error(
        "blocks: those of {side} rank {rank} hold {found} tokens, those of the first source {expected}"
    )]
    Tokens {
        /// Whose.
        side: Side,
        /// The rank.
        rank: u32,
        /// Tokens of its blocks.
        found: u64,
        /// Tokens of the first source's blocks.
        expected: u64,
    },
    /// A rank is named twice on one side.
    #[error("{side} rank {rank} is named twice")]
    DuplicateRank {
        /// Which side.
        side: Side,
        /// The rank.
        rank: u32,
    },
    /// No source has a part of the heads that a destination needs.
    #[error("no source holds part {shard} of the heads, which destination rank {rank} needs")]
    MissingShard {
        /// The part, below [`TensorParallel::shards`](crate::sets::TensorParallel::shards) of the source.
        shard: u32,
        /// The destination rank.
        rank: u32,
    },
    /// A block would be written twice.
    #[error("destination rank {rank} has {block:?} twice")]
    DuplicateBlock {
        /// The destination rank.
        rank: u32,
        /// The block.
        block: SlotId,
    },
    /// A limit is reached, or is 0.
    #[error("{limit}: the limit is {max}")]
    Limit {
        /// The field of [`CopyLimits`](super::CopyLimits).
        limit: &'static str,
        /// Its value.
        max: u64,
    },
    /// A block is out of range.
    #[error(transparent)]
    Layout(#[from] LayoutError),
}
