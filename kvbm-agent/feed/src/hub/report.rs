use kvasir_engine::normalise::{DropKind, DropReason, Drops, StatedBlockSize};
use kvasir_proto::types::{CopyMode, SourceStatus};
use tokio::time::Instant;

/// Counts of a source's events since it was opened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SourceCounts {
    /// Batches taken.
    pub batches: u64,
    /// Block operations in the received batches.
    pub operations: u64,
    /// Blocks that were refused for lack of room.
    pub refused: u64,
    /// Block operations that were refused because their rank belongs to another source.
    pub misplaced: u64,
    /// Block operations that were dropped before the hub, by reason.
    pub drops: Drops,
    /// Operations, events or blocks that may leave the agent's stream with fewer blocks than the source holds.
    pub inexact: u64,
    /// Operations, events or blocks that may leave the agent's stream with more blocks than the source holds.
    pub doubtful: u64,
    /// Incarnations that have published something.
    pub incarnations: u64,
    /// Permanent losses of events. After each loss, all blocks of the source were dropped.
    pub losses: u64,
    /// Batches of other topics than the source's.
    pub other_topic: u64,
    /// Connections closed because the source exceeded a limit of frames or messages.
    pub connections_cut: u64,
    /// Blocks removed because their time to live was over.
    pub expired: u64,
    /// Block operations in a store that workers share, published as the pool's.
    pub pool_operations: u64,
    /// Operations in the shared store that were not published: only names are known of their blocks.
    pub pool_unknown: u64,
}

impl SourceCounts {
    /// Block operations that were intended for the index, but not taken.
    #[must_use]
    pub fn not_taken(&self) -> u64 {
        let rejected = self.drops.iter().filter(|(reason, _)| reason.kind() == DropKind::Rejected);
        // Most rejected operations are counted in `inexact`, too.
        let own = self.refused.saturating_add(self.misplaced);
        let rejected = rejected.fold(0, |sum: u64, (_, operations)| sum.saturating_add(operations));
        own.saturating_add(rejected.max(self.inexact))
    }
}

/// Status and counts of one source, for logs and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceReport {
    /// Name of the source.
    pub name: String,
    /// How to count repeated stores of a block.
    pub copy_mode: CopyMode,
    /// How far the source can be trusted. If blocks were refused, the state is partial at best.
    pub status: SourceStatus<Instant>,
    /// Counts of the source's events.
    pub counts: SourceCounts,
    /// Diagnosis of a wrong configuration, with advice.
    pub problem: Option<String>,
}

/// Diagnoses the dropped blocks of a source, for a worker of `block_size` tokens per block: cause and fix. Returns
/// `None` if the cause is unknown.
pub(super) fn problem(counts: &SourceCounts, block_size: u32) -> Option<String> {
    let drops = &counts.drops;
    if let Some(stated) = drops.stated_block_size() {
        let StatedBlockSize { tokens, medium } = stated;
        let dropped = drops.count(DropReason::BlockSize) + drops.count(DropReason::NumBlockTokens);
        if !stated.is_of_device() {
            let advice = stated.chunk_blocks(block_size).map_or_else(
                || "the agent can read chunks of 2 to 256 blocks".to_owned(),
                |blocks| format!("set connector-chunk {medium}={blocks}"),
            );
            return Some(format!(
                "a connector announces chunks of {tokens} tokens on medium {medium:?}, the engine's blocks have \
                 {block_size}: {dropped} block operations were dropped; {advice}, and keep block-size"
            ));
        }
        return Some(format!(
            "the engine states {tokens} tokens per block on medium {medium:?}, the agent is configured for \
             {block_size}: {dropped} block operations were dropped; configure both alike"
        ));
    }
    if drops.count(DropReason::UnchainedNames) > 0 {
        return Some("the engine's names do not depend on the prefix: upgrade SGLang".to_owned());
    }
    let unreadable = drops.count(DropReason::Unreadable) + drops.count(DropReason::TokenCount);
    if unreadable > 0 {
        return Some(format!("{unreadable} block operations of the engine cannot be read"));
    }
    let unclear = counts.inexact.saturating_add(counts.doubtful);
    if unclear > 0 {
        return Some(format!(
            "{unclear} block operations, events or blocks of the engine are not understood: see the warnings in the log"
        ));
    }
    if counts.misplaced > 0 {
        let blocks = counts.misplaced;
        return Some(format!(
            "{blocks} block operations are for ranks of another source: give each source its own ranks, or consolidate \
             them"
        ));
    }
    (counts.refused > 0)
        .then(|| format!("{} blocks were refused: raise the limits on block names", counts.refused))
}
