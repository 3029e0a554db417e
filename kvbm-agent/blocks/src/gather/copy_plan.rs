use super::pair::Pair;
use super::side::{self, CopyRank};
use super::{CopyError, CopyLimits, CopyOp};

/// The copies that move tokens from the blocks of one group of ranks to the blocks of another group.
///
/// Each byte of each destination block, except padding, is written exactly once. Operations that are adjacent on both
/// sides are merged. They may run in any order, unless source and destination share memory, which is not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPlan {
    ops: Vec<CopyOp>,
    bytes: u64,
}

impl CopyPlan {
    /// Plans a copy of the same tokens from `sources` to `destinations`. Each side lists any ranks of its group, each
    /// once. The sources must have all heads that the destinations need. If several sources have the same heads, the
    /// destinations are distributed among them. A process that has only some of the sources makes the same plan and
    /// executes its part.
    ///
    /// Page sizes may differ if one is a multiple of the other. Forms, alignments and the split of heads may differ,
    /// too. Layers, outer dimension, element width and content must be equal. Within a token, elements are ordered by
    /// head.
    ///
    /// # Errors
    /// [`CopyError`] names the field that differs, or the limit that was exceeded.
    pub fn new(
        sources: &[CopyRank<'_>],
        destinations: &[CopyRank<'_>],
        limits: &CopyLimits,
    ) -> Result<Self, CopyError> {
        side::check(sources, destinations)?;
        let mut pairs = Vec::new();
        for destination in destinations {
            choose(sources, destination, &mut pairs)?;
        }
        Self::of_pairs(&pairs, limits)
    }

    /// Plans the operations of one source for one destination: this source's part of the plan with all sources. The
    /// plan is empty if the source has no bytes that the destination needs.
    ///
    /// # Errors
    /// Same errors as [`CopyPlan::new`], but parts of other sources may be missing.
    pub fn part(
        source: CopyRank<'_>,
        destination: CopyRank<'_>,
        limits: &CopyLimits,
    ) -> Result<Self, CopyError> {
        side::check(&[source], &[destination])?;
        let pair = Pair::new(source, destination);
        Self::of_pairs(pair.as_slice(), limits)
    }

    /// Plans the copies of all pairs. Fails if there are too many pieces.
    fn of_pairs(pairs: &[Pair<'_>], limits: &CopyLimits) -> Result<Self, CopyError> {
        if limits.op_bytes_max == 0 {
            return Err(CopyError::Limit { limit: "op_bytes_max", max: 0 });
        }
        let pieces = pairs.iter().map(Pair::pieces).fold(0, u64::saturating_add);
        if pieces > limits.pieces_max {
            return Err(CopyError::Limit { limit: "pieces_max", max: limits.pieces_max });
        }
        let mut plan = Self { ops: Vec::new(), bytes: 0 };
        for pair in pairs {
            pair.each(|op| plan.push(op, limits))?;
        }
        Ok(plan)
    }

    /// The operations.
    #[must_use]
    pub fn ops(&self) -> &[CopyOp] {
        &self.ops
    }

    /// Bytes moved by all operations together.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds an operation. Merges it with the last one if they are adjacent, and splits it at `op_bytes_max`.
    fn push(&mut self, op: CopyOp, limits: &CopyLimits) -> Result<(), CopyError> {
        self.bytes = self.bytes.saturating_add(op.bytes);
        let mut rest = op;
        if let Some(last) = self.ops.last_mut()
            && last.is_before(&op)
        {
            let room = limits.op_bytes_max.saturating_sub(last.bytes).min(op.bytes);
            last.bytes += room;
            rest = after(op, room);
        }
        while rest.bytes > 0 {
            if self.ops.len() >= limits.ops_max {
                return Err(CopyError::Limit { limit: "ops_max", max: limits.ops_max as u64 });
            }
            let bytes = rest.bytes.min(limits.op_bytes_max);
            self.ops.push(CopyOp { bytes, ..rest });
            rest = after(rest, bytes);
        }
        Ok(())
    }
}

/// Returns the operation without its first `bytes` bytes.
const fn after(op: CopyOp, bytes: u64) -> CopyOp {
    CopyOp {
        source: op.source.after(bytes),
        destination: op.destination.after(bytes),
        bytes: op.bytes.saturating_sub(bytes),
    }
}

/// Adds the source-destination pairs that write each element of one destination exactly once.
fn choose<'a>(
    sources: &[CopyRank<'a>],
    destination: &CopyRank<'a>,
    pairs: &mut Vec<Pair<'a>>,
) -> Result<(), CopyError> {
    let Some(first) = sources.first() else { return Ok(()) };
    let wanted = destination.elements();
    let rank = destination.parallel().rank;
    // A checked layout has no inner dimension of 0.
    let width = u64::from(first.config().inner_dim).max(1);
    for shard in 0..first.parallel().shards() {
        let start = u64::from(shard) * width;
        if start >= wanted.end || start + width <= wanted.start {
            continue;
        }
        let holders: Vec<_> = sources.iter().filter(|at| at.parallel().shard() == shard).collect();
        let index = (rank as usize).checked_rem(holders.len()).unwrap_or(0);
        let holder = holders.get(index).ok_or(CopyError::MissingShard { shard, rank })?;
        pairs.extend(Pair::new(**holder, *destination));
    }
    Ok(())
}
