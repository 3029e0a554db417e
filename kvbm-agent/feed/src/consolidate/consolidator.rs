use super::holding::{ConsolidatedSource, Holding, HoldingChange, SourceNumber};
use super::rank::{Output, Rank};
use kvasir_proto::types::{BlockName, DpRank, KvEvent, Tier};
use std::collections::BTreeMap;

/// Limits and options of a consolidation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsolidateConfig {
    /// Maximum number of names over all sources and ranks. Further names are refused.
    pub names_max: usize,
    /// Whether to report changes of each source's holdings, so that they can be written to disk.
    pub tells_holdings: bool,
}

/// Counts of announcements that were not joined, or refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsolidateCounts {
    /// Names stored without their chain to the root. Only their source uses them.
    pub unjoined: u64,
    /// Announcements refused for lack of room.
    pub refused: u64,
}

/// The result of one source's batch for one rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Consolidated {
    /// Events for the joined stream, in copy mode [`Set`](kvasir_proto::types::CopyMode::Set).
    pub events: Vec<KvEvent>,
    /// Changes of the source's holdings, in order; empty unless they are [reported](ConsolidateConfig::tells_holdings).
    pub holdings: Vec<HoldingChange>,
}

impl Consolidated {
    /// Whether there are neither events nor changes of holdings.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.events.is_empty() && self.holdings.is_empty()
    }
}

/// Merges the blocks of several sources of one worker. See the [module](super).
#[derive(Debug)]
pub struct Consolidator {
    config: ConsolidateConfig,
    ranks: BTreeMap<DpRank, Rank>,
    counts: ConsolidateCounts,
}

impl Consolidator {
    /// Creates a consolidator without sources.
    #[must_use]
    pub const fn new(config: ConsolidateConfig) -> Self {
        Self {
            config,
            ranks: BTreeMap::new(),
            counts: ConsolidateCounts { unjoined: 0, refused: 0 },
        }
    }

    /// Applies a source's batch for a rank, and returns the events to publish. If the batch is an image (a clear, then
    /// all blocks of the source), only the differences are published, provided there is room for both states.
    pub fn take(
        &mut self,
        source: ConsolidatedSource,
        rank: DpRank,
        events: Vec<KvEvent>,
    ) -> Consolidated {
        let held = self.names();
        let at = self.ranks.entry(rank).or_default();
        let elsewhere = held - at.names();
        let operations: usize = events.iter().map(KvEvent::operations).sum();
        // Blocks that stay are held twice for a moment, and need room for both holdings.
        let is_image = events.len() > 1
            && events.first() == Some(&KvEvent::Cleared)
            && held.saturating_add(operations) <= self.config.names_max;
        let mut output = Output::new(self.config.tells_holdings);
        let before = is_image.then(|| at.set_aside(source, &mut output));
        for event in events.into_iter().skip(usize::from(is_image)) {
            let room = self.config.names_max.saturating_sub(elsewhere + at.names());
            at.apply_event(source, event, room, &mut output);
        }
        if let Some(before) = before {
            at.release(before, &mut output);
        }
        self.counts.unjoined += output.unjoined;
        self.counts.refused += output.refused;
        let holdings = at.changes(source.number, &output);
        if at.names() == 0 {
            self.ranks.remove(&rank);
        }
        Consolidated { events: output.events, holdings }
    }

    /// Clears a source's holdings. Returns the resulting changes for each rank.
    pub fn clear(&mut self, source: ConsolidatedSource) -> Vec<(DpRank, Consolidated)> {
        let ranks = self.ranks_of(source.number);
        let cleared = ranks.into_iter().map(|rank| {
            let consolidated = self.take(source, rank, vec![KvEvent::Cleared]);
            (rank, consolidated)
        });
        cleared.filter(|(_, consolidated)| !consolidated.is_empty()).collect()
    }

    /// Restores a source's holdings at a rank from disk, without publishing them. The source must not have holdings
    /// there yet.
    pub fn bring_back(&mut self, source: ConsolidatedSource, rank: DpRank, holdings: &[Holding]) {
        self.ranks.entry(rank).or_default().bring_back(source, holdings);
    }

    /// Moves the holdings of source number `from` to the source `to`, which has none: at the rank `at_rank`, or at all
    /// ranks if it is `None`.
    pub fn hand_over(
        &mut self,
        from: SourceNumber,
        to: ConsolidatedSource,
        at_rank: Option<DpRank>,
    ) {
        for (number, rank) in &mut self.ranks {
            if at_rank.is_none_or(|only| only == *number) {
                rank.hand_over(from, to);
            }
        }
    }

    /// Ranks at which a source holds blocks.
    #[must_use]
    pub fn ranks_of(&self, source: SourceNumber) -> Vec<DpRank> {
        let held = self.ranks.iter().filter(|(_, rank)| rank.names_of(source) > 0);
        held.map(|(number, _)| *number).collect()
    }

    /// Whether any source holds a block of a rank in a tier.
    #[must_use]
    pub fn is_held(&self, rank: DpRank, block: BlockName, tier: Tier) -> bool {
        self.ranks.get(&rank).is_some_and(|rank| rank.is_held(block, tier))
    }

    /// Number of names over all sources. A block counts once per source.
    #[must_use]
    pub fn names(&self) -> usize {
        self.ranks.values().map(Rank::names).sum()
    }

    /// Counts since the consolidator was created.
    #[must_use]
    pub const fn counts(&self) -> ConsolidateCounts {
        self.counts
    }
}
