//! Restores sources that an earlier agent has left on disk, and assigns their blocks to open sources.

use super::HubConfig;
use super::left::Left;
use super::source::{Gone, RankUse, Released, Resumption, Source};
use super::sources::{Sources, consolidator};
use crate::consolidate::{ConsolidatedSource, Naming, SourceNumber};
use crate::disk::{NewIncarnation, PersistedSource, PersistedSources, SourceKind, Verdict};
use kvasir_proto::types::{BlockName, CopyMode, DpRank, Tier};
use std::mem;

/// A source that is not open.
fn absent(number: SourceNumber, name: &str) -> ConsolidatedSource {
    // The source announces nothing more.
    ConsolidatedSource { number, copy_mode: CopyMode::Set, naming: Naming::own(name) }
}

impl Sources {
    /// Takes over the sources read from disk; from now on sources are written to disk. While the incarnation is
    /// undecided, sources with a position are pending. Returns false if there are holdings that belong to no source.
    pub(super) fn restore(&mut self, persisted: PersistedSources, is_settled: bool) -> bool {
        self.has_disk = true;
        self.is_settled = is_settled;
        let positions = persisted.positions.into_iter();
        self.left.positions = positions.map(|source| (source.name.clone(), source)).collect();
        self.left.names = persisted.names.into_iter().map(|at| (at.source, at.names)).collect();
        let Some(consolidator) = &mut self.consolidator else {
            return persisted.holdings.is_empty();
        };
        persisted.holdings.into_iter().all(|at| {
            let place = self.left.place(&at.source);
            if let Some(number) = place {
                consolidator.bring_back(absent(number, &at.source), at.rank, &at.holdings);
            }
            place.is_some()
        })
    }

    /// Whether any source, open or not, holds a block.
    pub(super) fn holds(&self, rank: DpRank, block: BlockName, tier: Tier) -> bool {
        self.consolidator.as_ref().is_none_or(|all| all.is_held(rank, block, tier))
    }

    /// Drops everything read from disk, because a new incarnation begins. No source has published yet.
    pub(super) fn drop_left(&mut self) {
        self.left = Left::default();
        self.is_settled = true;
        let HubConfig { consolidate, .. } = self.config;
        self.consolidator = consolidate.then(|| consolidator(&self.config, self.has_disk));
        for source in self.open.values_mut() {
            source.ranks.clear();
        }
    }

    /// Sources of a kind that are on disk, but not open yet.
    pub(super) fn persisted(&self, kind: SourceKind) -> Vec<PersistedSource> {
        let positions = self.left.positions.values();
        positions.filter(|source| source.kind == kind).cloned().collect()
    }

    /// Removes and returns the position from which a source continues, if there is one and its kind and copy mode are
    /// unchanged.
    pub(super) fn take_position(
        &mut self,
        name: &str,
        copy_mode: CopyMode,
        kind: Option<SourceKind>,
    ) -> Option<PersistedSource> {
        let found = self.left.positions.get(name)?;
        let is_same = Some(found.kind) == kind && found.copy_mode == copy_mode;
        is_same.then(|| self.left.positions.remove(name))?
    }

    /// Gives a source the holdings that were restored under its name. A source that continues from its position gets
    /// all holdings. A source that begins with an image gets the holdings of the image's rank, any other source none.
    pub(super) fn take_holdings(&mut self, number: SourceNumber, resumption: Resumption) {
        let Some(source) = self.open.get_mut(&number) else { return };
        let at_rank = match resumption {
            Resumption::Never => return,
            Resumption::Position(_) if !source.is_pending() => return,
            Resumption::Position(_) => None,
            Resumption::Image(rank) => Some(rank),
        };
        let Some(consolidator) = &mut self.consolidator else { return };
        let Some(&place) = self.left.places.get(&source.name) else { return };
        consolidator.hand_over(place, source.consolidated(number), at_rank);
        for rank in consolidator.ranks_of(number) {
            source.ranks.entry(rank).or_insert(RankUse { batches: 0, since_clear: true });
            self.ranks.insert(rank, number);
        }
    }

    /// Ends the restore after all configured sources were opened. Returns the removals to publish for `held` ranks, and
    /// the sources to forget.
    pub(super) fn end_restore(&mut self, held: Vec<DpRank>) -> (Gone, Vec<String>) {
        let Left { positions, places, .. } = mem::take(&mut self.left);
        let forgotten: Vec<String> = positions.into_keys().collect();
        if self.is_settled {
            return (Gone::default(), forgotten);
        }
        let mut verdict = None;
        if !self.open.values().any(Source::is_pending) {
            // Restored holdings count until the source's image replaces them.
            if !self.open.values().any(Source::holds_something) {
                self.drop_left();
                let verdict = Some(Verdict::NewIncarnation(NewIncarnation::NoSource));
                return (Gone { released: Vec::new(), verdict }, forgotten);
            }
            self.is_settled = true;
            verdict = Some(Verdict::Continued);
        }
        let released = match &mut self.consolidator {
            Some(consolidator) => {
                let all = places.into_iter().flat_map(|(source, number)| {
                    let cleared = consolidator.clear(absent(number, &source)).into_iter();
                    let of =
                        move |(rank, changed)| Released { source: source.clone(), rank, changed };
                    cleared.map(of)
                });
                all.collect()
            }
            None => {
                let is_used =
                    |rank: &DpRank| self.open.values().any(|at| at.ranks.contains_key(rank));
                let orphans = held.into_iter().filter(|rank| !is_used(rank));
                orphans.map(|rank| Released::whole(String::new(), rank)).collect()
            }
        };
        (Gone { released, verdict }, forgotten)
    }
}
