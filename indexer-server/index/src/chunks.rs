//! Limits counts to complete chunks of connectors. A connector that loads only complete chunks cannot load a block
//! of an incomplete chunk, although the block may be announced individually.
//!
//! A chunk is complete exactly if it lies within one run of blocks cached in the tier. Each such run is
//! therefore cut to multiples of the chunk size. The cost depends on the number of runs, not of blocks.

use kvasir_proto::types::Tier;

/// Blocks per chunk, by tier; 0 for tiers without chunks, where each block counts.
pub(crate) type ChunkSizes = [u32; Tier::COUNT];

/// All tiers without chunks.
pub(crate) const NO_CHUNKS: ChunkSizes = [0; Tier::COUNT];

/// Consecutive positions of a prompt that a rank caches in the same tiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// Whether each tier has the positions, in order of the tiers.
    pub(crate) tiers: [bool; Tier::COUNT],
    /// Whether a pool that the rank reads has the positions.
    pub(crate) in_pool: bool,
    /// Positions of the prompt up to the end of the run.
    pub(crate) end: u32,
}

/// How a prompt is divided into positions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Positions {
    /// Positions per block: 2 for look-ahead blocks. If the prompt ends with the first position of its last
    /// block, this position is the complete block.
    pub(crate) per_block: u32,
    /// Number of positions of the prompt.
    pub(crate) all: u32,
}

impl Positions {
    /// The positions of complete chunks of `blocks` blocks between the cached positions `from` and `until`.
    fn complete_chunks(self, blocks: u32, from: u32, until: u32) -> (u32, u32) {
        if blocks < 2 {
            return (from, until);
        }
        let per_block = self.per_block.max(1);
        let chunk = blocks.saturating_mul(per_block);
        let full = if until == self.all { until.next_multiple_of(per_block) } else { until };
        let first = from.div_ceil(chunk).saturating_mul(chunk);
        (first, (full - full % chunk).min(until))
    }
}

/// Walks one tier's complete chunks in order: the range around the current position, or the next one.
struct Cursor {
    tier: usize,
    blocks: u32,
    /// Index of the run after the range.
    next: usize,
    from: u32,
    until: u32,
}

impl Cursor {
    /// Advances to the chunks that end after `position`. Returns whether the tier has chunks there, and the
    /// position at which that changes.
    fn advance(&mut self, runs: &[Run], of: Positions, position: u32) -> (bool, u32) {
        while self.until <= position {
            let holds = |run: &&Run| run.tiers.get(self.tier) == Some(&true);
            let rest = runs.get(self.next..).unwrap_or_default();
            let apart = rest.iter().take_while(|run| !holds(run)).count();
            let first = self.next + apart;
            let together = rest.iter().skip(apart).take_while(holds).count();
            self.next = first + together;
            let Some(last) = self.next.checked_sub(1).filter(|_| together > 0) else {
                self.from = u32::MAX;
                self.until = u32::MAX;
                break;
            };
            let end = |at: usize| runs.get(at).map_or(0, |run| run.end);
            let begin = first.checked_sub(1).map_or(0, end);
            (self.from, self.until) = of.complete_chunks(self.blocks, begin, end(last));
        }
        if self.from <= position { (true, self.until) } else { (false, self.from) }
    }
}

/// Calls `count` for the leading positions that are in complete chunks, with the tiers that have them and
/// their number.
pub(crate) fn count_complete(
    runs: &[Run],
    sizes: ChunkSizes,
    of: Positions,
    mut count: impl FnMut([bool; Tier::COUNT], u32),
) {
    let mut cursors = Tier::ALL.map(|tier| {
        let blocks = sizes.get(tier.index()).copied().unwrap_or(0);
        Cursor { tier: tier.index(), blocks, next: 0, from: 0, until: 0 }
    });
    let mut position = 0;
    for run in runs {
        while position < run.end {
            let mut end = run.end;
            let tiers = cursors.each_mut().map(|cursor| {
                let (holds, until) = cursor.advance(runs, of, position);
                end = end.min(until);
                holds
            });
            if !run.in_pool && tiers == [false; Tier::COUNT] {
                return;
            }
            count(tiers, end - position);
            position = end;
        }
    }
}
