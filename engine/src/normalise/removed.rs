//! Normalises events that remove blocks from a place: removals, clears and moves.

use super::further::further_names;
use super::place::Location;
use super::{DropReason, Normalised, Normaliser, count, drop_operations};
use crate::decode::{Place, RawMoved, RawRemoved};
use kvasir_proto::types::{KvEvent, Tier};

impl Normaliser {
    /// Converts a clear. If it states no medium and concerns the worker itself, it clears all blocks of the rank;
    /// otherwise it clears the blocks of one tier, or of the pool.
    pub(super) fn take_cleared(&mut self, place: &Place<'_>, out: &mut Normalised) {
        let is_local = |locality: &str| locality.eq_ignore_ascii_case("LOCAL");
        let everywhere = place.medium.is_none() && place.locality.is_none_or(is_local);
        let counts = place.group.map_or(Ok(()), |group| self.groups.check_removed(Some(group)));
        let location = if everywhere { Ok(None) } else { self.location(place).map(Some) };
        match counts.and(location) {
            Ok(None) => {
                self.known.cleared(out.rank, None);
                out.add(Location::Worker(Tier::Device), KvEvent::Cleared, None);
                self.further.forget_declaration(out.rank);
            }
            Ok(Some(Location::Worker(tier))) => {
                self.known.cleared(out.rank, Some(tier));
                out.add(Location::Worker(tier), KvEvent::ClearedTier(tier), None);
                self.further.forget_declaration(out.rank);
            }
            Ok(Some(Location::Pool)) => out.add(Location::Pool, KvEvent::Cleared, None),
            Err(reason) => {
                // Blocks of one further group cannot be cleared by themselves.
                if self.further_group(place).is_some() {
                    let example = || (0, "clear of one group".to_owned());
                    out.unseen_removals.get_or_insert_with(example).0 += 1;
                }
                self.drop_removal(reason, place, 1, out);
            }
        }
    }

    /// Counts a removal at an unknown place. If no blocks were stored there, the removed blocks may be ones
    /// that the index has.
    fn drop_removal(
        &self,
        reason: DropReason,
        place: &Place<'_>,
        operations: usize,
        out: &mut Normalised,
    ) {
        drop_operations(reason, place.medium, operations, &mut out.drops);
        if let Some(name) = self.unknown_places.unheard(reason, place) {
            let (count, _) = out.unseen_removals.get_or_insert((0, format!("removal at {name}")));
            *count += 1;
        }
    }

    /// Moves one copy of each name: stores it in the new place, then removes it from the old one.
    pub(super) fn take_moved(&mut self, moved: RawMoved<'_>, out: &mut Normalised) {
        let RawMoved { names, place, from } = moved;
        let counts = self.check_naming().and_then(|()| self.check_removed(&place));
        if let Err(reason) = counts {
            drop_operations(reason, place.medium, names.len(), &mut out.drops);
            return;
        }
        let left = Place { medium: from, group: place.group, ..Place::default() };
        if from.is_some() && self.location(&place) == self.location(&left) {
            return;
        }
        match self.location(&place) {
            Ok(to) => match self.further_group(&place) {
                Some(group) => {
                    let names = further_names(group, &names);
                    out.add(to, KvEvent::StoredNames { tier: to.tier(), names }, self.ttl(to));
                }
                None => self.add_names(to, names.clone(), out),
            },
            Err(reason) => {
                self.unknown_places.stored(reason, &place);
                drop_operations(reason, place.medium, names.len(), &mut out.drops);
            }
        }
        self.take_removed(RawRemoved { names, place: left, remaining: None }, out);
    }

    /// Converts a removal. If the engine states remaining copies, only blocks without a remaining copy are removed.
    pub(super) fn take_removed(&mut self, removed: RawRemoved<'_>, out: &mut Normalised) {
        let RawRemoved { mut names, place, remaining } = removed;
        let counts = self.check_naming().and_then(|()| self.check_removed(&place));
        match counts.and_then(|()| self.location(&place)) {
            Ok(location) => {
                let counted = remaining.is_some();
                if let Some(remaining) = remaining {
                    let all = names.len();
                    let mut left = remaining.into_iter();
                    names.retain(|_| left.next() == Some(0));
                    out.drops.add(DropReason::CopiesRemain, count(all - names.len()));
                }
                if names.is_empty() {
                    return;
                }
                let tier = location.tier();
                let names = if let Some(group) = self.further_group(&place) {
                    further_names(group, &names)
                } else {
                    if matches!(location, Location::Worker(_)) && !self.known.is_idle() {
                        let mut removed = |&name| self.known.removed(out.rank, name, tier, counted);
                        names.iter().for_each(&mut removed);
                    }
                    self.all_names(location, names)
                };
                // A store has one copy of each block.
                let event = if counted || location == Location::Pool {
                    KvEvent::Gone { tier, names }
                } else {
                    KvEvent::Removed { tier, names }
                };
                out.add(location, event, None);
            }
            Err(reason) => self.drop_removal(reason, &place, names.len(), out),
        }
    }
}
