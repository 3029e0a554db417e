//! Where an event's blocks lie: tiers and groups.

use super::DropReason;
use crate::decode::Place;
use kvasir_proto::types::Tier;
use std::collections::HashMap;

/// Most groups whose kind is remembered; engines have one per sort of layer. Of further ones, an
/// event that does not say its kind counts as another group's, or as the main group's if 0.
pub(super) const GROUPS_MAX: usize = 256;

/// Tier of a medium, in any letter case.
pub(super) fn tier(medium: Option<&str>) -> Result<Tier, DropReason> {
    const MEDIA: [(&str, Result<Tier, DropReason>); 13] = [
        ("", Ok(Tier::Device)),
        ("GPU", Ok(Tier::Device)),
        ("DEVICE", Ok(Tier::Device)),
        ("CPU", Ok(Tier::Host)),
        ("CPU_PINNED", Ok(Tier::Host)),
        ("CPU_TIER1", Ok(Tier::Host)),
        ("CPU_TIER2", Ok(Tier::Disk)),
        ("DISK", Ok(Tier::Disk)),
        ("NVME", Ok(Tier::Disk)),
        ("STORAGE", Ok(Tier::Disk)),
        ("FS", Ok(Tier::Disk)),
        ("EXTERNAL", Err(DropReason::Remote)),
        ("OBJ", Err(DropReason::Remote)),
    ];
    let medium = medium.unwrap_or_default();
    MEDIA
        .into_iter()
        .find(|(name, _)| name.eq_ignore_ascii_case(medium))
        .map_or(Err(DropReason::UnknownMedium), |(_, tier)| tier)
}

/// Refuses what is not the worker's own.
pub(super) fn local(locality: Option<&str>) -> Result<(), DropReason> {
    match locality {
        None | Some("") => Ok(()),
        Some(locality) if locality.eq_ignore_ascii_case("LOCAL") => Ok(()),
        Some(locality) if locality.eq_ignore_ascii_case("REMOTE") => Err(DropReason::Remote),
        Some(_) => Err(DropReason::UnknownLocality),
    }
}

/// What one source has told of its groups. The main group decides alone what a worker holds: the
/// sliding-window and state-space groups of a hybrid model keep only what they need of a prefix.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Whether a group is of a main kind, by its number as sent.
    kinds: HashMap<Option<u32>, bool>,
    /// The first group of a main kind.
    main: Option<u32>,
}

impl Groups {
    /// Groups whose kind is known.
    #[cfg(test)]
    pub(super) fn learned(&self) -> usize {
        self.kinds.len()
    }

    /// Learns from an event and refuses it unless it belongs to the main group.
    pub(super) fn check(&mut self, place: &Place<'_>) -> Result<(), DropReason> {
        let stated = place.kind.map(is_main_kind);
        if let Some(main) = stated
            && (self.kinds.len() < GROUPS_MAX || self.kinds.contains_key(&place.group))
        {
            self.kinds.insert(place.group, main);
        }
        // An engine without groups numbers none.
        let group = place.group.unwrap_or(0);
        match stated.or_else(|| self.kinds.get(&place.group).copied()) {
            Some(true) if *self.main.get_or_insert(group) == group => Ok(()),
            Some(true) => Err(DropReason::OtherMainGroup),
            Some(false) => Err(DropReason::OtherGroup),
            None if place.group.is_none() || self.main.unwrap_or(0) == group => Ok(()),
            None => Err(DropReason::OtherGroup),
        }
    }
}

fn is_main_kind(kind: &str) -> bool {
    ["full_attention", "mla_attention", "sink_full_attention"]
        .iter()
        .any(|main| main.eq_ignore_ascii_case(kind))
}
