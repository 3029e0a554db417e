//! What names of a source mean besides their tokens. The index itself makes no use of it: whoever reads the source's events
//! needs it again after a restart, so images and dumps have it, each with the cursor that it belongs to.

use kvasir_proto::types::{BlockName, DpRank, NameChange, NameMeaning};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

/// A name of a rank.
type Key = (DpRank, BlockName);

/// Names whose meanings changed since an image; none if not all of them were noted.
pub(crate) type ChangedNames = Option<BTreeSet<Key>>;

/// The meanings of a source's names. Their number is limited where events are read.
#[derive(Debug, Default)]
pub(crate) struct Meanings {
    names: BTreeMap<Key, NameMeaning>,
    changed: ChangedNames,
}

impl Meanings {
    /// Takes new meanings, and notes up to `changed_max` names for the next image.
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

    /// Forgets all meanings. The next image is to be complete.
    pub(crate) fn clear(&mut self) {
        if !self.names.is_empty() {
            *self = Self::default();
        }
    }

    /// All meanings, by rank and name.
    pub(crate) fn all(&self) -> impl Iterator<Item = (DpRank, BlockName, NameMeaning)> + use<'_> {
        self.names.iter().map(|(&(rank, name), &meaning)| (rank, name, meaning))
    }

    // === images ===

    /// Whether all changes since the last image were noted.
    pub(crate) const fn is_complete(&self) -> bool {
        self.changed.is_some()
    }

    /// Takes the notes for an image, and begins new ones.
    pub(crate) const fn take_changed(&mut self) -> ChangedNames {
        self.changed.replace(BTreeSet::new())
    }

    /// Takes back the notes of an image that was abandoned.
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

    /// Up to `most` names behind `last` with their meanings: the changed ones, or all of them.
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
