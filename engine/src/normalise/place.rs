//! Location of an event's blocks: tiers, pools and groups.

use super::DropReason;
use crate::decode::Place;
use kvasir_proto::types::Tier;
use std::collections::{HashMap, HashSet};

/// Maximum number of excluded groups that are remembered; engines have one group per type of layer. Beyond
/// it, an event without a kind counts as the main group's if its group is 0, else as another group's.
pub(super) const GROUPS_MAX: usize = 256;

/// Memory that contains a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// The worker's own memory, in this tier.
    Worker(Tier),
    /// A store that several workers share.
    Pool,
}

impl Location {
    /// The location of a medium, in any letter case.
    pub(super) fn of_medium(medium: Option<&str>) -> Result<Self, DropReason> {
        const MEDIA: [(&str, Location); 13] = [
            ("", Location::Worker(Tier::Device)),
            ("GPU", Location::Worker(Tier::Device)),
            ("DEVICE", Location::Worker(Tier::Device)),
            ("CPU", Location::Worker(Tier::Host)),
            ("CPU_PINNED", Location::Worker(Tier::Host)),
            ("CPU_TIER1", Location::Worker(Tier::Host)),
            ("CPU_TIER2", Location::Worker(Tier::Disk)),
            ("DISK", Location::Worker(Tier::Disk)),
            ("NVME", Location::Worker(Tier::Disk)),
            ("STORAGE", Location::Worker(Tier::Disk)),
            ("FS", Location::Worker(Tier::Disk)),
            ("EXTERNAL", Location::Pool),
            ("OBJ", Location::Pool),
        ];
        let medium = medium.unwrap_or_default();
        MEDIA
            .into_iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(medium))
            .map_or(Err(DropReason::UnknownMedium), |(_, location)| Ok(location))
    }

    /// The location of an event. Remote blocks are in a shared store, whatever their medium.
    pub(super) fn from_place(place: &Place<'_>) -> Result<Self, DropReason> {
        match place.locality {
            None | Some("") => Self::of_medium(place.medium),
            Some(locality) if locality.eq_ignore_ascii_case("LOCAL") => {
                Self::of_medium(place.medium)
            }
            Some(locality) if locality.eq_ignore_ascii_case("REMOTE") => Ok(Self::Pool),
            Some(_) => Err(DropReason::UnknownLocality),
        }
    }

    /// The tier under which blocks at this location are published.
    pub(super) const fn tier(self) -> Tier {
        match self {
            Self::Worker(tier) => tier,
            Self::Pool => Tier::OF_POOL,
        }
    }
}

/// Maximum number of remembered unknown places.
const UNKNOWN_PLACES_MAX: usize = 16;
/// Maximum length of a remembered place's name.
const UNKNOWN_PLACE_BYTES_MAX: usize = 128;

/// Unknown places in which a source has stored blocks.
#[derive(Debug, Default)]
pub(super) struct UnknownPlaces(Vec<String>);

impl UnknownPlaces {
    /// Records that blocks stored in a place were dropped for `reason`.
    pub(super) fn stored(&mut self, reason: DropReason, place: &Place<'_>) {
        if let Some(name) = self.unheard(reason, place)
            && self.0.len() < UNKNOWN_PLACES_MAX
            && name.len() <= UNKNOWN_PLACE_BYTES_MAX
        {
            self.0.push(name);
        }
    }

    /// The name of an unknown place, if no blocks were stored there.
    pub(super) fn unheard(&self, reason: DropReason, place: &Place<'_>) -> Option<String> {
        if !matches!(reason, DropReason::UnknownMedium | DropReason::UnknownLocality) {
            return None;
        }
        let text = |part: Option<&str>| part.unwrap_or("").to_ascii_uppercase();
        let name = format!("medium={} locality={}", text(place.medium), text(place.locality));
        Some(name).filter(|name| !self.0.contains(name))
    }
}

/// The known groups of one source. The main group determines the chain of a worker's blocks: the sliding-window
/// and state-space groups of a hybrid model keep only part of a prefix (`further.rs`).
///
/// Engines state a group's kind with stores but not with removals. One rule applies to every kind: **while
/// blocks of a group may be cached, its removals count.** Operations that contradict it are rejected, which
/// makes the source partial, or they make the source doubted ([`DropReason::PresumedGroup`]). They never
/// replace the main group.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The first group of a main kind. An event without a group belongs to group 0.
    main: Option<u32>,
    /// Excluded groups by their number as sent, with the reason.
    others: HashMap<Option<u32>, DropReason>,
    /// Groups whose blocks were accepted before they were confirmed as the main group: group 0, or no group.
    presumed: HashSet<Option<u32>>,
}

impl Groups {
    /// Resumes after a restart, with the persisted main group and the numbers of the further groups. Groups that
    /// were not persisted may have cached blocks as well.
    pub(super) fn resumed(main: Option<u32>, further: impl Iterator<Item = u32>) -> Self {
        let others = further.map(|number| (Some(number), DropReason::OtherGroup));
        let others: HashMap<_, _> = others.collect();
        let presumed = if main.is_none() { vec![None, Some(0)] } else { vec![None] };
        let presumed = presumed.into_iter().filter(|group| !others.contains_key(group)).collect();
        Self { main, others, presumed }
    }

    /// The main group, once an event has stated it.
    pub(super) const fn main(&self) -> Option<u32> {
        self.main
    }

    /// Number of groups that are known to be excluded.
    #[cfg(test)]
    pub(super) fn left_out(&self) -> usize {
        self.others.len()
    }

    /// Rejects a group that is known to be excluded, and every numbered group except the main one (0 until an
    /// event has stated the main group). Removals pass no other check: the kind that they state is ignored.
    pub(super) fn check_removed(&self, group: Option<u32>) -> Result<(), DropReason> {
        if let Some(reason) = self.others.get(&group) {
            return Err(*reason);
        }
        // Engines without groups send no number.
        match group {
            Some(number) if number != self.main.unwrap_or(0) => Err(DropReason::OtherGroup),
            Some(_) | None => Ok(()),
        }
    }

    /// Updates the groups from a stored event. Rejects the event unless it belongs to the main group.
    pub(super) fn check_stored(&mut self, place: &Place<'_>) -> Result<(), DropReason> {
        let group = place.group;
        let is_main = self.main == Some(group.unwrap_or(0));
        let known = self.check_removed(group);
        match (place.kind.map(is_main_kind), known) {
            (None, Ok(())) => {
                if !is_main {
                    self.presumed.insert(group);
                }
                Ok(())
            }
            (Some(true), known) => self.check_main_kind(group, known),
            (Some(false), Ok(())) if is_main => Err(DropReason::GroupKind),
            (Some(false), Ok(())) if self.presumed.remove(&group) => {
                self.leave_out(group, DropReason::OtherGroup);
                Err(DropReason::PresumedGroup)
            }
            (Some(false), Ok(())) => Err(self.leave_out(group, DropReason::OtherGroup)),
            (None | Some(false), Err(reason)) => Err(self.leave_out(group, reason)),
        }
    }

    /// Checks a stored event that states a main kind.
    fn check_main_kind(
        &mut self,
        group: Option<u32>,
        known: Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        let number = group.unwrap_or(0);
        let main = *self.main.get_or_insert(number);
        if known.is_ok() {
            if main != number {
                self.presumed.insert(group);
            }
            return Ok(());
        }
        if main != number {
            return Err(self.leave_out(group, DropReason::OtherMainGroup));
        }
        // The group's blocks, if any, were excluded until now.
        let left_out = self.others.remove(&group).is_some() || self.others.len() >= GROUPS_MAX;
        if number != 0 && self.presumed.remove(&Some(0)) {
            Err(DropReason::PresumedGroup)
        } else if left_out {
            Err(DropReason::GroupKind)
        } else {
            Ok(())
        }
    }

    /// Records that blocks of a group were excluded.
    fn leave_out(&mut self, group: Option<u32>, reason: DropReason) -> DropReason {
        if self.others.len() < GROUPS_MAX {
            self.others.entry(group).or_insert(reason);
        }
        debug_assert!(self.others.len() <= GROUPS_MAX, "groups are limited");
        reason
    }
}

fn is_main_kind(kind: &str) -> bool {
    ["full_attention", "mla_attention", "sink_full_attention"]
        .iter()
        .any(|main| main.eq_ignore_ascii_case(kind))
}
