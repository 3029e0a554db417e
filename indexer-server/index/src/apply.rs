//! Applies events: the single entry point for all events of sources.

use crate::error::IndexError;
use crate::index::Index;
use crate::record::Announcement;
use crate::source::SourceId;
use kvasir_proto::types::{BlockCounts, BlockOutcome, CopyMode, DpRank, KvEvent};

impl Index {
    /// Applies one complete event of a source to one rank. Owners split long events, and clear sources in
    /// steps with [`Index::clear_source`].
    ///
    /// # Errors
    /// If the source is unknown or its worker has too many ranks.
    pub fn apply(
        &mut self,
        source: SourceId,
        rank: DpRank,
        event: &KvEvent,
    ) -> Result<BlockCounts, IndexError> {
        let mut counts = BlockCounts::default();
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let by = self.announcement(source, *tier)?;
                self.trie.tick();
                counts = self.change(source, rank)?.store(by, *parent, blocks);
            }
            KvEvent::StoredNames { tier, names } => {
                let by = self.announcement(source, *tier)?;
                self.trie.tick();
                let mut change = self.change(source, rank)?;
                names.iter().for_each(|&name| counts.add(change.store_name(by, name)));
            }
            KvEvent::Removed { tier, names } => {
                let by = self.announcement(source, *tier)?;
                counts = self.change(source, rank)?.remove(by, names);
            }
            KvEvent::Gone { tier, names } => {
                let by = self.announcement(source, *tier)?;
                let by = Announcement { mode: CopyMode::Set, ..by };
                counts = self.change(source, rank)?.remove(by, names);
            }
            KvEvent::Cleared => {
                let removed = self.clear_source(source, Some(rank), usize::MAX)?.removed;
                counts.add(if removed > 0 { BlockOutcome::Applied } else { BlockOutcome::Noop });
            }
            KvEvent::ClearedTier(tier) => {
                let removed = self.clear_tier(source, rank, *tier, usize::MAX)?.removed;
                counts.add(if removed > 0 { BlockOutcome::Applied } else { BlockOutcome::Noop });
            }
        }
        if counts.rejected > 0 {
            self.mark_incomplete(source);
        }
        if !matches!(event, KvEvent::Cleared | KvEvent::ClearedTier(_)) {
            let holder = self.rank_of(source, rank)?;
            self.recount(holder);
            if counts.shed > 0 {
                self.mark_short(holder, counts.shed);
            }
        }
        Ok(counts)
    }
}
