//! Where an event's blocks lie: tiers and groups.

use super::DropReason;
use crate::decode::Place;
use kvasir_proto::types::Tier;
use std::collections::{HashMap, HashSet};

/// Most groups that are remembered as left out; engines have one per sort of layer. Of further ones, an
/// event that does not state its kind counts as another group's, or as the main group's if 0.
pub(super) const GROUPS_MAX: usize = 256;

/// Whose memory a block is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Location {
    /// The worker's own, in this tier.
    Worker(Tier),
    /// A store that several workers share.
    Pool,
}

impl Location {
    /// Of a medium, in any letter case.
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

    /// Of an event: what is remote is in a shared store, whatever its medium.
    pub(super) fn of(place: &Place<'_>) -> Result<Self, DropReason> {
        match place.locality {
            None | Some("") => Self::of_medium(place.medium),
            Some(locality) if locality.eq_ignore_ascii_case("LOCAL") => {
                Self::of_medium(place.medium)
            }
            Some(locality) if locality.eq_ignore_ascii_case("REMOTE") => Ok(Self::Pool),
            Some(_) => Err(DropReason::UnknownLocality),
        }
    }

    /// The tier in which its blocks are published.
    pub(super) const fn tier(self) -> Tier {
        match self {
            Self::Worker(tier) => tier,
            Self::Pool => Tier::OF_POOL,
        }
    }
}

/// Most unknown places that are remembered.
const UNKNOWN_PLACES_MAX: usize = 16;
/// Longest name of a place that is remembered.
const UNKNOWN_PLACE_BYTES_MAX: usize = 128;

/// Places that are not known, in which a source has stored blocks.
#[derive(Debug, Default)]
pub(super) struct UnknownPlaces(Vec<String>);

impl UnknownPlaces {
    /// Blocks were stored in a place, and not taken for this reason.
    pub(super) fn stored(&mut self, reason: DropReason, place: &Place<'_>) {
        if let Some(name) = self.unheard(reason, place)
            && self.0.len() < UNKNOWN_PLACES_MAX
            && name.len() <= UNKNOWN_PLACE_BYTES_MAX
        {
            self.0.push(name);
        }
    }

    /// The name of a place that is not known, if nothing was stored there.
    pub(super) fn unheard(&self, reason: DropReason, place: &Place<'_>) -> Option<String> {
        if !matches!(reason, DropReason::UnknownMedium | DropReason::UnknownLocality) {
            return None;
        }
        let text = |part: Option<&str>| part.unwrap_or("").to_ascii_uppercase();
        let name = format!("medium={} locality={}", text(place.medium), text(place.locality));
        Some(name).filter(|name| !self.0.contains(name))
    }
}

/// What is known of the groups of one source. The main group alone decides what a worker holds: the
/// sliding-window and state-space groups of a hybrid model retain only what they need of a prefix.
///
/// Engines state the kind of a group with what they store, and not with what they remove. Whatever
/// kind a group has, one rule holds: **while blocks of a group may be held, its removals
/// count.** What contradicts it is dropped as rejected, which makes the source partial, or has the
/// source doubted ([`DropReason::PresumedGroup`]); it never turns a main group into another.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// The first group of a main kind. An event without a group is one of group 0.
    main: Option<u32>,
    /// Groups whose blocks are left out, by their number as sent, and why.
    others: HashMap<Option<u32>, DropReason>,
    /// Groups whose blocks were taken though they are not known to be the main one: group 0, or none at all.
    presumed: HashSet<Option<u32>>,
}

impl Groups {
    /// Resumes after a restart: only the main group was stored. Blocks of other groups that were taken for it may be
    /// held.
    pub(super) fn resumed(main: Option<u32>) -> Self {
        let presumed = if main.is_none() { vec![None, Some(0)] } else { vec![None] };
        Self { main, presumed: presumed.into_iter().collect(), ..Self::default() }
    }

    /// The main group, once an event has stated it.
    pub(super) const fn main(&self) -> Option<u32> {
        self.main
    }

    /// Groups that are known to be left out.
    #[cfg(test)]
    pub(super) fn left_out(&self) -> usize {
        self.others.len()
    }

    /// Refuses a group whose blocks do not count, as far as is known by now. A removal is judged by
    /// this alone, whatever kind it states.
    pub(super) fn check_removed(&self, group: Option<u32>) -> Result<(), DropReason> {
        if let Some(reason) = self.others.get(&group) {
            return Err(*reason);
        }
        // An engine without groups numbers none.
        match group {
            Some(number) if number != self.main.unwrap_or(0) => Err(DropReason::OtherGroup),
            Some(_) | None => Ok(()),
        }
    }

    /// Learns from a stored event and refuses it unless it belongs to the main group.
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

    /// A stored event that states a main kind.
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
        // So far its blocks were left out, if there were any.
        let left_out = self.others.remove(&group).is_some() || self.others.len() >= GROUPS_MAX;
        if number != 0 && self.presumed.remove(&Some(0)) {
            Err(DropReason::PresumedGroup)
        } else if left_out {
            Err(DropReason::GroupKind)
        } else {
            Ok(())
        }
    }

    /// Remembers that blocks of a group were left out.
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
