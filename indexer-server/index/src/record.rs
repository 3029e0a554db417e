//! The record of one name at a rank: the general form, used for every name that is not plain.

use crate::slots::Slot;
use crate::source::SourceId;
use kvasir_proto::types::{BlockName, CopyMode, Group, LocalHash, Tier};
use smallvec::SmallVec;

/// Copies of a name at one source in one tier; at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copies {
    pub(crate) source: SourceId,
    pub(crate) tier: Tier,
    pub(crate) count: u32,
    /// The source's loss epoch at their last announcement. If it is older than the source's current epoch,
    /// the copies are suspect.
    pub(crate) epoch: u32,
}

/// State of one name of one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) parent: Option<BlockName>,
    /// `None` if the name was announced without tokens.
    pub(crate) local: Option<LocalHash>,
    /// Slot of the name; `None` while parked, and for blocks of further groups.
    pub(crate) slot: Option<Slot>,
    /// Copies by source and tier; empty only during a change.
    pub(crate) copies: SmallVec<[Copies; 1]>,
}

/// Source, tier and counting mode of an announcement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Announcement {
    pub(crate) source: SourceId,
    pub(crate) tier: Tier,
    pub(crate) mode: CopyMode,
    /// Current loss epoch of the source.
    pub(crate) epoch: u32,
}

/// Effect of an announcement or removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// The record is unchanged.
    None,
    /// Only a number of copies changed.
    Count,
    /// A source gained or lost the name in a tier.
    Key,
}

impl Record {
    /// Whether the name belongs to a further group, or declares one.
    pub(crate) fn is_grouped(&self) -> bool {
        self.local.is_some_and(Group::is_mark)
    }

    pub(crate) fn find(&self, source: SourceId, tier: Tier) -> Option<&Copies> {
        self.copies.iter().find(|at| at.source == source && at.tier == tier)
    }

    /// Whether any source has the name in `tier`.
    pub(crate) fn is_in(&self, tier: Tier) -> bool {
        self.copies.iter().any(|at| at.tier == tier)
    }

    /// Applies an announcement.
    pub(crate) fn announce(&mut self, by: Announcement) -> Change {
        let same = |at: &&mut Copies| at.source == by.source && at.tier == by.tier;
        let Some(copies) = self.copies.iter_mut().find(same) else {
            let Announcement { source, tier, epoch, .. } = by;
            self.copies.push(Copies { source, tier, count: 1, epoch });
            return Change::Key;
        };
        if copies.epoch < by.epoch {
            (copies.epoch, copies.count) = (by.epoch, 1);
            return Change::Count;
        }
        match by.mode {
            CopyMode::Set => Change::None,
            CopyMode::Counted => {
                copies.count = copies.count.saturating_add(1);
                Change::Count
            }
        }
    }

    /// Applies a removal.
    pub(crate) fn withdraw(&mut self, by: Announcement) -> Change {
        let same = |at: &Copies| at.source == by.source && at.tier == by.tier;
        let Some(index) = self.copies.iter().position(same) else {
            return Change::None;
        };
        match (by.mode, self.copies.get_mut(index)) {
            (CopyMode::Counted, Some(copies)) if copies.count > 1 => {
                copies.count -= 1;
                Change::Count
            }
            _ => {
                self.copies.swap_remove(index);
                Change::Key
            }
        }
    }

    /// Copies by tier at one source.
    pub(crate) fn by_tier(&self, source: SourceId) -> [u32; Tier::COUNT] {
        Tier::ALL.map(|tier| self.find(source, tier).map_or(0, |copies| copies.count))
    }
}
