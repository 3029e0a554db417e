//! KV-cache groups besides the main group. An engine reuses a cached prefix only as far as every group serves
//! it. Blocks of these further groups are indexed under names of their own ([`Group::block`]).
//!
//! Events of a sliding-window or Mamba group name fewer blocks than their tokens cover, without the positions.
//! The index finds the position of a name by the equal name in the main group. Blocks that are smaller than
//! the main group's have names of their own: a run of them ends at a block of the main group, and each lies
//! directly before the next. The order of the names is therefore kept, as a chain.

use super::place::Location;
use super::{DropReason, Normalised, Normaliser, count};
use crate::decode::{Place, RawStored, RawTokens};
use kvasir_proto::limits::{BLOCK_SIZE_TOKENS_MAX, FURTHER_GROUPS_MAX, WORKER_RANKS_MAX};
use kvasir_proto::types::{BlockName, DpRank, Group, GroupKind, KvEvent, StoredBlock, Tier};
use std::collections::BTreeSet;
use std::mem::take;

/// The further groups that one source has announced.
#[derive(Debug, Default)]
pub(super) struct FurtherGroups {
    /// Sorted by number.
    groups: Vec<Group>,
    /// Ranks to which all groups are declared.
    declared: BTreeSet<DpRank>,
    /// Whether the source has a group that cannot be indexed.
    has_unknown: bool,
    /// Number of changes of known groups.
    changes: usize,
}

/// Maximum number of changes of known groups: their sizes become known with the first events. Each is declared.
const CHANGES_MAX: usize = 256;

impl FurtherGroups {
    /// Resumes after a restart, with the persisted groups. They are declared again.
    pub(super) fn resumed(groups: &[Group]) -> Self {
        Self { groups: groups.to_vec(), ..Self::default() }
    }

    pub(super) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Requests a new declaration to all ranks, because the index may have dropped it.
    pub(super) fn declare_again(&mut self) {
        self.declared.clear();
    }

    /// Requests a new declaration to a rank that was cleared.
    pub(super) fn forget_declaration(&mut self, rank: DpRank) {
        self.declared.remove(&rank);
    }

    /// Whether the source has groups that are not indexed. Engines number their groups from 0.
    pub(super) fn lacks_groups(&self, main: Option<u32>) -> bool {
        let numbers = self.groups.iter().map(|group| group.number).chain(main);
        let most = numbers.clone().max().unwrap_or(0);
        let is_known = |number: &u32| numbers.clone().any(|known| known == *number);
        self.has_unknown || (0..most).any(|number| !is_known(&number))
    }

    fn is_known(&self, number: u32) -> bool {
        self.groups.binary_search_by_key(&number, |group| group.number).is_ok()
    }

    /// Updates a group by what an event states. Returns `false` if there are too many groups.
    fn learn(&mut self, stated: Group) -> bool {
        match self.groups.binary_search_by_key(&stated.number, |group| group.number) {
            Err(_) if self.groups.len() >= FURTHER_GROUPS_MAX => return false,
            Err(at) => self.groups.insert(at, stated),
            Ok(at) => {
                let Some(known) = self.groups.get_mut(at) else { return false };
                let merged = Group {
                    block_size: known.block_size.max(stated.block_size),
                    unit: greatest_common_divisor(known.unit, stated.unit),
                    ..stated
                };
                if *known == merged {
                    return true;
                }
                if self.changes >= CHANGES_MAX {
                    return false;
                }
                self.changes += 1;
                *known = merged;
            }
        }
        self.declare_again();
        true
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

impl Normaliser {
    /// The further group to which the blocks of a removal or move belong; `None` for the main group, and for a
    /// group that is not indexed.
    pub(super) fn further_group(&self, place: &Place<'_>) -> Option<u32> {
        let number = place.group.unwrap_or(0);
        let is_main = self.groups.check_removed(place.group).is_ok();
        (!is_main && self.further.is_known(number)).then_some(number)
    }

    /// Rejects a removal or move of a group that is not indexed.
    pub(super) fn check_removed(&self, place: &Place<'_>) -> Result<(), DropReason> {
        match self.further_group(place) {
            Some(_) => Ok(()),
            None => self.groups.check_removed(place.group),
        }
    }

    /// Converts a store of a group that is not the main group for `reason`.
    pub(super) fn store_further(
        &mut self,
        stored: &RawStored<'_>,
        reason: DropReason,
        out: &mut Normalised,
    ) -> Result<(), DropReason> {
        if !matches!(reason, DropReason::OtherGroup | DropReason::OtherMainGroup) {
            return Err(reason);
        }
        let number = stored.place.group.unwrap_or(0);
        // Groups in a shared store are not indexed: its readers have only the main group there.
        let Location::Worker(tier) = self.location(&stored.place)? else { return Err(reason) };
        let group = self.stated_group(stored, number);
        if !group.is_some_and(|group| self.further.learn(group)) {
            self.further.has_unknown = true;
            return Err(DropReason::UnknownGroup);
        }
        self.declare_groups(out);
        let is_dense = count(stored.names.len()).checked_mul(stored.block_size)
            == Some(count(token_count(&stored.tokens)));
        let parent = stored.parent.filter(|_| is_dense);
        let blocks: Vec<StoredBlock> =
            stored.names.iter().map(|&name| Group::block(number, name)).collect();
        let parent = parent.map(|parent| Group::name(number, parent));
        let location = Location::Worker(tier);
        // Names without tokens are in any order.
        let has_tokens = token_count(&stored.tokens) > 0;
        let run = if has_tokens { blocks.len() } else { 1 };
        for blocks in blocks.chunks(run.max(1)) {
            let blocks = blocks.to_vec();
            out.postponed.push((KvEvent::Stored { parent, tier, blocks }, self.ttl(location)));
        }
        Ok(())
    }

    /// The group that a store describes; without a stated kind, as the group is known. `None` if the kind is
    /// unknown or a field is out of range.
    fn stated_group(&self, stored: &RawStored<'_>, number: u32) -> Option<Group> {
        let known = self.further.groups.iter().find(|group| group.number == number);
        let kind = match stored.place.kind {
            Some(name) => GroupKind::of_name(name)?,
            None => known?.kind,
        };
        // Stores without tokens may state no block size.
        if stored.block_size == 0 && known.is_some_and(|group| group.kind == kind) {
            return known.copied();
        }
        let block_size = u32::try_from(stored.block_size).ok()?;
        let stated = stored.window.and_then(|window| u32::try_from(window).ok());
        let window = match kind {
            GroupKind::Window => stated.or_else(|| known.map(|group| group.window))?,
            GroupKind::Full | GroupKind::Chunked | GroupKind::Mamba => 0,
        };
        let is_valid = number < Group::NUMBERS
            && (1..=BLOCK_SIZE_TOKENS_MAX).contains(&block_size)
            && window < Group::WINDOW_MAX;
        is_valid.then_some(Group { number, kind, block_size, unit: block_size, window })
    }

    /// Declares the groups to the batch's rank, unless that is done.
    pub(super) fn declare_groups(&mut self, out: &mut Normalised) {
        let FurtherGroups { groups, declared, .. } = &mut self.further;
        if groups.is_empty() || declared.contains(&out.rank) {
            return;
        }
        if declared.len() >= WORKER_RANKS_MAX {
            // The other ranks get one more declaration.
            declared.clear();
        }
        declared.insert(out.rank);
        let blocks = groups.iter().map(|group| group.declaration()).collect();
        let declaration = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        out.add(Location::Worker(Tier::Device), declaration, None);
    }
}

impl Normalised {
    /// Adds the postponed stores. In a batch, a further group's blocks may come before the main group's blocks with the same
    /// names. In the other order, the index needs less memory.
    pub(super) fn add_postponed(&mut self) {
        for (event, ttl) in take(&mut self.postponed) {
            self.expiring.extend(ttl.map(|ttl| (self.events.len(), ttl)));
            self.events.push(event);
        }
    }
}

/// Names of a further group in the index.
pub(super) fn further_names(number: u32, names: &[BlockName]) -> Vec<BlockName> {
    names.iter().map(|&name| Group::name(number, name)).collect()
}

fn token_count(tokens: &RawTokens) -> usize {
    match tokens {
        RawTokens::Ids(bytes) => bytes.len() / 4,
        RawTokens::Wide(bytes) => bytes.len() / 8,
        RawTokens::Pairs => 0,
    }
}
