//! Meanings of a source's names besides their tokens. The index itself does not use them. The reader of the
//! source's events needs them after a restart, so images and dumps contain them, together with the matching
//! cursor.

use kvasir_proto::types::{BlockName, DpRank, NameChange, NameMeaning};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A rank and one of its names.
type Key = (DpRank, BlockName);

/// Names with changed meanings since an image; `None` if the notes are incomplete.
pub(crate) type ChangedNames = Option<BTreeSet<Key>>;

/// The meanings of a source's names. The reader of the events limits their number.
#[derive(Debug, Default)]
pub(crate) struct Meanings {
    names: BTreeMap<Key, NameMeaning>,
    changed: ChangedNames,
}

impl Meanings {
    /// Applies new meanings, and notes up to `changed_max` names for the next image.
    pub(crate) fn change(&mut self, changes: &[NameChange], changed_max: usize) {
        for &NameChange { rank, name, meaning } in changes {
            match meaning {
                Some(meaning) => self.names.insert((rank, name), meaning),
                None => self.names.remove(&(rank, name)),
            };
            if let Some(changed) = &mut self.changed {
                changed.insert((rank, name));
            }
        }
        self.limit_changed(changed_max);
    }

    /// Forgets all meanings. The next image must be complete.
    pub(crate) fn clear(&mut self) {
        if !self.names.is_empty() {
            *self = Self::default();
        }
    }

    /// All meanings, by rank and name.
    pub(crate) fn entries(
        &self,
    ) -> impl Iterator<Item = (DpRank, BlockName, NameMeaning)> + use<'_> {
        self.names.iter().map(|(&(rank, name), &meaning)| (rank, name, meaning))
    }

    // === images ===

    /// Whether all changes since the last image were noted.
    pub(crate) const fn is_complete(&self) -> bool {
        self.changed.is_some()
    }

    /// Takes the notes for an image, and starts new ones.
    pub(crate) const fn take_changed(&mut self) -> ChangedNames {
        self.changed.replace(BTreeSet::new())
    }

    /// Returns the notes of an abandoned image.
    pub(crate) fn give_back(&mut self, earlier: ChangedNames, changed_max: usize) {
        match (&mut self.changed, earlier) {
            (Some(changed), Some(earlier)) => changed.extend(earlier),
            (changed, _) => *changed = None,
        }
        self.limit_changed(changed_max);
    }

    fn limit_changed(&mut self, changed_max: usize) {
        self.changed.take_if(|changed| changed.len() > changed_max);
    }

    /// Up to `most` names after `last` with their meanings: the changed ones, or all.
    pub(crate) fn next(
        &self,
        changed: Option<&BTreeSet<Key>>,
        last: Option<Key>,
        most: usize,
    ) -> Vec<NameChange> {
        let behind = (last.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let change = |&(rank, name): &Key, meaning| NameChange { rank, name, meaning };
        match changed {
            Some(changed) => {
                let names = changed.range(behind).take(most);
                names.map(|key| change(key, self.names.get(key).copied())).collect()
            }
            None => {
                let names = self.names.range(behind).take(most);
                names.map(|(key, meaning)| change(key, Some(*meaning))).collect()
            }
        }
    }
}
