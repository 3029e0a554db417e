use super::rank::{Output, Rank};
use kvasir_proto::types::{CopyMode, DpRank, KvEvent};
use std::collections::BTreeMap;

/// Most sources of one worker.
pub const SOURCES_MAX: u8 = 16;

/// A source, by its place in the configuration: below [`SOURCES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceNumber(pub u8);

/// Bounds of a consolidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsolidateConfig {
    /// Most names, over all sources and ranks; further ones are not taken.
    pub names_max: usize,
}

/// What became of what sources published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsolidateCounts {
    /// Names that were taken without their chain to the root: they are their source's alone.
    pub unjoined: u64,
    /// Announcements that were not taken, for there was no room.
    pub refused: u64,
}

/// Joins what several sources of one worker hold. See the [module](super).
#[derive(Debug)]
pub struct Consolidator {
    config: ConsolidateConfig,
    ranks: BTreeMap<DpRank, Rank>,
    counts: ConsolidateCounts,
}

impl Consolidator {
    /// Nothing is held yet.
    #[must_use]
    pub const fn new(config: ConsolidateConfig) -> Self {
        Self {
            config,
            ranks: BTreeMap::new(),
            counts: ConsolidateCounts { unjoined: 0, refused: 0 },
        }
    }

    /// Takes what a source publishes for a rank; `copy_mode` decides how second announcements are read. Returns
    /// what that changes for all sources together, in copy mode [`CopyMode::Set`].
    pub fn take(
        &mut self,
        (source, copy_mode): (SourceNumber, CopyMode),
        rank: DpRank,
        events: Vec<KvEvent>,
    ) -> Vec<KvEvent> {
        let mut held = self.names();
        let at = self.ranks.entry(rank).or_default();
        let elsewhere = held - at.names();
        let mut all = Vec::new();
        for event in events {
            let mut output = Output::default();
            let room = self.config.names_max.saturating_sub(held);
            at.take((source.0, copy_mode), event, room, &mut output);
            held = elsewhere + at.names();
            self.counts.unjoined += output.unjoined;
            self.counts.refused += output.refused;
            all.append(&mut output.events);
        }
        if at.names() == 0 {
            self.ranks.remove(&rank);
        }
        all
    }

    /// A source holds nothing any more. Returns what that means for each rank.
    pub fn clear(&mut self, source: SourceNumber) -> Vec<(DpRank, Vec<KvEvent>)> {
        let ranks: Vec<DpRank> = self.ranks.keys().copied().collect();
        let mut all = Vec::new();
        for rank in ranks {
            // How second announcements are read does not matter to who has none.
            let events = self.take((source, CopyMode::Set), rank, vec![KvEvent::Cleared]);
            if !events.is_empty() {
                all.push((rank, events));
            }
        }
        all
    }

    /// Names that all sources hold, each counted by itself.
    #[must_use]
    pub fn names(&self) -> usize {
        self.ranks.values().map(Rank::names).sum()
    }

    /// Sums since this was made.
    #[must_use]
    pub const fn counts(&self) -> ConsolidateCounts {
        self.counts
    }
}
