use super::{CopyError, Side};
use crate::identity::SlotId;
use crate::layout::LayoutConfig;
use crate::sets::{BlockSetLayout, TensorParallel};
use std::collections::BTreeSet;
use std::ops::Range;

/// One rank's blocks in a copy, in the order of their tokens.
#[derive(Debug, Clone, Copy)]
pub struct CopyRank<'a> {
    /// The layout of the rank's memory.
    pub layout: &'a BlockSetLayout,
    /// The slots to copy. A source may list a block more than once.
    pub blocks: &'a [SlotId],
}

impl CopyRank<'_> {
    pub(super) fn config(&self) -> &LayoutConfig {
        self.layout.config()
    }

    pub(super) fn parallel(&self) -> TensorParallel {
        self.layout.tensor_parallel()
    }

    /// Number of tokens in the listed blocks.
    pub(super) fn tokens(&self) -> u64 {
        (self.blocks.len() as u64).saturating_mul(self.config().page_size.into())
    }

    /// The rank's elements of each token, counted over all parts of the group.
    pub(super) fn elements(&self) -> Range<u64> {
        let width = u64::from(self.config().inner_dim);
        let start = u64::from(self.parallel().shard()) * width;
        start..start + width
    }
}

/// Checks that both sides have the same tokens in compatible layouts. Each side has at least one rank.
pub(super) fn check(
    sources: &[CopyRank<'_>],
    destinations: &[CopyRank<'_>],
) -> Result<(), CopyError> {
    let first = first(Side::Source, sources)?;
    let other = self::first(Side::Destination, destinations)?;
    check_side(Side::Source, sources, first, first)?;
    check_side(Side::Destination, destinations, other, first)?;
    let source_tokens = first.config().page_size;
    let destination_tokens = other.config().page_size;
    // The page size of a checked layout is never 0.
    let is_multiple = source_tokens.is_multiple_of(destination_tokens)
        || destination_tokens.is_multiple_of(source_tokens);
    if !is_multiple {
        return Err(CopyError::PageSizes { source_tokens, destination_tokens });
    }
    let whole = |rank: &CopyRank<'_>| {
        u64::from(rank.config().inner_dim) * u64::from(rank.parallel().shards())
    };
    let source_elements = whole(first);
    let destination_elements = whole(other);
    if source_elements != destination_elements {
        return Err(CopyError::InnerDims { source_elements, destination_elements });
    }
    let expected = first.tokens();
    let ranks = sources.iter().map(|rank| (Side::Source, rank));
    for (side, at) in ranks.chain(destinations.iter().map(|rank| (Side::Destination, rank))) {
        let rank = at.parallel().rank;
        let found = at.tokens();
        if found != expected {
            return Err(CopyError::Tokens { side, rank, found, expected });
        }
    }
    destinations.iter().try_for_each(check_written_once)
}

fn first<'a, 'b>(side: Side, ranks: &'a [CopyRank<'b>]) -> Result<&'a CopyRank<'b>, CopyError> {
    ranks.first().ok_or(CopyError::NoRanks { side })
}

/// Checks the ranks of one side. Fields that may differ between the sides are compared with the first rank of the side
/// (`group`), all other fields with the first source (`all`).
fn check_side(
    side: Side,
    ranks: &[CopyRank<'_>],
    group: &CopyRank<'_>,
    all: &CopyRank<'_>,
) -> Result<(), CopyError> {
    let mut seen = BTreeSet::new();
    for at in ranks {
        let config = at.config();
        let parallel = at.parallel();
        let rank = parallel.rank;
        let of_group = group.config();
        let of_all = all.config();
        for (field, found, expected) in [
            ("content", at.layout.content().0, all.layout.content().0),
            ("num_layers", config.num_layers.into(), of_all.num_layers.into()),
            ("outer_dim", config.outer_dim.into(), of_all.outer_dim.into()),
            ("dtype_width_bytes", config.dtype_width_bytes.into(), of_all.dtype_width_bytes.into()),
            ("page_size", config.page_size.into(), of_group.page_size.into()),
            ("inner_dim", config.inner_dim.into(), of_group.inner_dim.into()),
            ("tp_size", parallel.size.into(), group.parallel().size.into()),
            ("tp_replicas", parallel.replicas.into(), group.parallel().replicas.into()),
        ] {
            if found != expected {
                return Err(CopyError::Differs { field, expected, side, rank, found });
            }
        }
        if !seen.insert(rank) {
            return Err(CopyError::DuplicateRank { side, rank });
        }
    }
    Ok(())
}

/// Fails if a destination rank lists a block twice.
fn check_written_once(at: &CopyRank<'_>) -> Result<(), CopyError> {
    let mut sorted = at.blocks.to_vec();
    sorted.sort_unstable();
    let twice = sorted.windows(2).find_map(|pair| match pair {
        [first, second] if first == second => Some(*first),
        _ => None,
    });
    let rank = at.parallel().rank;
    twice.map_or(Ok(()), |block| Err(CopyError::DuplicateBlock { rank, block }))
}
