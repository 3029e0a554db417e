//! Collects and checks the saved images of a worker, piece by piece.

use crate::error::DamagedImage;
use crate::image::{HoleImage, MeaningImage, NameImage, PageImage, RunImage, SourceImage};
use crate::slots::{PAGE_SLOTS, Slot};
use crate::source::SourceId;
use kvasir_proto::types::{DpRank, Tier, WorkerId};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// The saved images of one worker.
#[derive(Debug)]
pub struct Saved {
    pub(super) worker: WorkerId,
    pub(super) sources: Vec<SourceImage>,
    pub(super) ranks: BTreeMap<DpRank, SavedRank>,
}

/// The saved images of one rank.
#[derive(Debug, Default)]
pub(super) struct SavedRank {
    pub(super) primary: Option<SourceId>,
    pub(super) shed_blocks: u64,
    pub(super) short: Vec<SourceId>,
    pub(super) runs: Vec<RunImage>,
    pub(super) names: Vec<NameImage>,
    pub(super) holes: FxHashMap<Slot, HoleImage>,
    pub(super) meanings: Vec<MeaningImage>,
}

impl Saved {
    /// Starts without any image.
    #[must_use]
    pub const fn new(worker: WorkerId) -> Self {
        Self { worker, sources: Vec::new(), ranks: BTreeMap::new() }
    }

    /// Adds a source.
    ///
    /// # Errors
    /// If the source feeds no rank, or was already added.
    pub fn source(&mut self, source: SourceImage) -> Result<(), DamagedImage> {
        if source.ranks.is_empty() {
            return Err(self.damaged("source", "feeds no rank"));
        }
        if self.sources.iter().any(|at| at.id == source.id || at.name == source.name) {
            return Err(self.damaged("source", "is there twice"));
        }
        self.sources.push(source);
        Ok(())
    }

    /// Sets a rank's data besides its blocks: the source of its plain blocks, the number of blocks evicted
    /// for the byte budget, and the sources that may lack evicted blocks.
    pub fn rank(
        &mut self,
        rank: DpRank,
        primary: Option<SourceId>,
        shed_blocks: u64,
        short: Vec<SourceId>,
    ) {
        let at = self.ranks.entry(rank).or_default();
        (at.primary, at.shed_blocks, at.short) = (primary, shed_blocks, short);
    }

    /// Adds a page of a rank.
    ///
    /// # Errors
    /// If the runs are not in order within the page, are empty, or are in no tier.
    pub fn page(&mut self, rank: DpRank, page: PageImage) -> Result<(), DamagedImage> {
        let mut from = u64::from(page.page) * u64::from(PAGE_SLOTS);
        let end = from + u64::from(PAGE_SLOTS);
        for run in &page.runs {
            let first = u64::from(run.first);
            if run.blocks.is_empty() || run.tiers.is_empty() {
                return Err(self.damaged("run", "has no blocks or tiers"));
            }
            let behind = first + run.blocks.len() as u64;
            if first < from || behind > end || behind > u64::from(Slot::MAX) {
                return Err(self.damaged("run", "is not at its place in the page"));
            }
            from = behind;
        }
        self.ranks.entry(rank).or_default().runs.extend(page.runs);
        Ok(())
    }

    /// Adds a name of a rank.
    ///
    /// # Errors
    /// If the name has no copies, or has a position but no local hash.
    pub fn name(&mut self, rank: DpRank, name: NameImage) -> Result<(), DamagedImage> {
        let is_held =
            |(_, copies): &(SourceId, [u32; Tier::COUNT])| copies.iter().any(|at| *at > 0);
        if !name.copies.iter().any(is_held) {
            return Err(self.damaged("name", "has no copies"));
        }
        if name.position.is_some() && name.local.is_none() {
            return Err(self.damaged("name", "has a position and no local hash"));
        }
        self.ranks.entry(rank).or_default().names.push(name);
        Ok(())
    }

    /// Adds a hole of a rank.
    pub fn hole(&mut self, rank: DpRank, hole: HoleImage) {
        self.ranks.entry(rank).or_default().holes.insert(hole.position.slot, hole);
    }

    /// Adds the meaning of a rank's name.
    pub fn meaning(&mut self, rank: DpRank, meaning: MeaningImage) {
        self.ranks.entry(rank).or_default().meanings.push(meaning);
    }

    fn damaged(&self, field: &'static str, what: &'static str) -> DamagedImage {
        DamagedImage { worker: self.worker.clone(), field, what }
    }
}
