//! Order of ranks with equal matches in answers: by worker and rank.

use crate::sets::HolderIndex;
use crate::table::index_u32;

/// All ranks in order. Adding or removing ranks renumbers those behind; removing may also scan all ranks
/// once.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    ranks: Vec<HolderIndex>,
    /// Place of each rank in `ranks`, by its index. Unused indexes have arbitrary values.
    places: Vec<u32>,
    /// Whether some rank is placed behind one with a greater index.
    is_mixed: bool,
}

impl Listing {
    /// Inserts a rank behind all ranks that `is_before` accepts.
    pub(crate) fn insert(&mut self, rank: HolderIndex, is_before: impl Fn(HolderIndex) -> bool) {
        let place = self.ranks.partition_point(|&other| is_before(other));
        self.ranks.insert(place, rank);
        if self.places.len() <= rank as usize {
            self.places.resize(rank as usize + 1, 0);
        }
        self.number_from(place);
        let around = self.ranks.get(place.saturating_sub(1)..).unwrap_or_default();
        let around = around.get(..3).unwrap_or(around);
        self.is_mixed |= !around.is_sorted();
    }

    /// Removes all ranks of one worker, which are consecutive.
    pub(crate) fn remove(&mut self, ranks: &[HolderIndex]) {
        let Some(first) = ranks.iter().filter_map(|&rank| self.place(rank)).min() else {
            return;
        };
        let first = first as usize;
        let removed = self.ranks.drain(first..first + ranks.len());
        debug_assert!(removed.as_slice().iter().all(|rank| ranks.contains(rank)), "{ranks:?}");
        drop(removed);
        self.number_from(first);
        self.is_mixed = self.is_mixed && !self.ranks.is_sorted();
    }

    fn number_from(&mut self, first: usize) {
        for (place, &rank) in self.ranks.iter().enumerate().skip(first) {
            if let Some(at) = self.places.get_mut(rank as usize) {
                *at = index_u32(place);
            }
        }
    }

    pub(crate) fn place(&self, rank: HolderIndex) -> Option<u32> {
        self.places.get(rank as usize).copied()
    }

    /// The rank at a place.
    pub(crate) fn at(&self, place: u32) -> Option<HolderIndex> {
        self.ranks.get(place as usize).copied()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = HolderIndex> {
        self.ranks.iter().copied()
    }

    pub(crate) const fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether the ranks are in the order of their indexes.
    pub(crate) const fn is_by_index(&self) -> bool {
        !self.is_mixed
    }

    /// Whether exactly `ranks` are listed, in this order, and the other fields match.
    pub(crate) fn is_of(&self, ranks: &[HolderIndex]) -> bool {
        let is_placed = |(place, &rank): (u32, &HolderIndex)| self.place(rank) == Some(place);
        self.ranks == ranks && (0..).zip(ranks).all(is_placed) && self.is_mixed != ranks.is_sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::mix;
    use std::collections::BTreeMap;
    use std::collections::btree_map::Entry;

    /// Ranks of 12 workers are added one by one and removed with their worker, at random. A new rank reuses
    /// the index of a removed one.
    #[test]
    fn ranks_are_listed_by_worker_and_rank_whatever_comes_and_goes() {
        let mut was_mixed = [false; 2];
        for seed in 0..40 {
            let mut listing = Listing::default();
            let mut by_worker = BTreeMap::<u64, BTreeMap<u64, HolderIndex>>::new();
            let mut keys = Vec::new();
            let mut free = Vec::new();
            for step in 0..80 {
                let random = mix(seed << 32 | step);
                let worker = random % 12;
                let number = random >> 34 & 7;
                if random >> 32 & 3 == 0 {
                    let ranks = by_worker.remove(&worker).unwrap_or_default();
                    let ranks: Vec<_> = ranks.into_values().collect();
                    listing.remove(&ranks);
                    free.extend(ranks);
                } else if let Entry::Vacant(own) =
                    by_worker.entry(worker).or_default().entry(number)
                {
                    let rank = free.pop().unwrap_or(index_u32(keys.len()));
                    keys.resize(keys.len().max(rank as usize + 1), (0, 0));
                    keys[rank as usize] = (worker, number);
                    listing.insert(rank, |other| keys[other as usize] < (worker, number));
                    own.insert(rank);
                }
                let all: Vec<_> = by_worker.values().flat_map(BTreeMap::values).copied().collect();
                assert!(listing.is_of(&all), "seed {seed}, {step}: {listing:?} is not of {all:?}");
                was_mixed[usize::from(listing.is_by_index())] = true;
            }
        }
        assert_eq!(was_mixed, [true; 2], "both orders occur");
    }
}
