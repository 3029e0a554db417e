//! What a source's names mean where later events do not repeat it: names of blocks with a salt, an adapter or keys of
//! their own. A name is known as long as a copy of its block is held, counted as the index counts copies.
//!
//! Every change is noted, so that the meanings can be persisted beside the blocks: after a restart of the index or the
//! agent they are known again.

use super::namespace::BlockNamespace;
use kvasir_proto::types::{BlockName, CopyMode, DpRank, NameChange, NameMeaning, Tier};
use std::collections::{HashMap, hash_map::Entry};
use std::mem::take;

/// Most names of one source whose meanings are known: 65 MB at most, 14 million tokens in blocks of 16.
pub const KNOWN_NAMES_MAX: usize = 900_000;

/// The known names of a source.
#[derive(Debug)]
pub(super) struct KnownNames {
    names: HashMap<(DpRank, BlockName), NameMeaning>,
    limit: usize,
    copy_mode: CopyMode,
    overflow: Overflow,
    changes: Vec<NameChange>,
}

/// Whose names could not all be remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    None,
    One(DpRank),
    Several,
}

impl KnownNames {
    pub(super) fn new(copy_mode: CopyMode, limit: usize) -> Self {
        let (names, overflow, changes) = (HashMap::new(), Overflow::None, Vec::new());
        Self { names, limit, copy_mode, overflow, changes }
    }

    /// Continues with what was persisted.
    pub(super) fn resume(
        &mut self,
        names: impl IntoIterator<Item = (DpRank, BlockName, NameMeaning)>,
        has_forgotten: bool,
    ) {
        for (rank, name, meaning) in names {
            if self.names.len() < self.limit {
                self.names.insert((rank, name), meaning);
            } else {
                self.overflow = Overflow::Several;
            }
        }
        if has_forgotten {
            self.overflow = Overflow::Several;
        }
    }

    /// Whether meanings were forgotten because there were too many.
    pub(super) fn has_forgotten(&self) -> bool {
        self.overflow != Overflow::None
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<NameChange> {
        take(&mut self.changes)
    }

    /// Whether events alone decide the meanings of names.
    pub(super) fn is_idle(&self) -> bool {
        self.names.is_empty() && self.overflow == Overflow::None
    }

    /// Whether a name is known for keys of its own, which blocks below do not inherit.
    pub(super) fn has_own_keys(&self, rank: DpRank, name: BlockName) -> bool {
        self.names.get(&(rank, name)).is_some_and(|known| known.has_own_keys)
    }

    /// Namespace of a known block, as seen by an event with this adapter.
    pub(super) fn find(
        &self,
        rank: DpRank,
        name: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = BlockNamespace::of_meaning(self.names.get(&(rank, name))?);
        // The engine's hash of a block covers its adapter: the same name with two is no sense.
        let agrees = known.adapter == adapter.adapter;
        Some(if agrees { known } else { adapter.with_unknown(name) })
    }

    /// Namespace of the blocks after `parent`, if the parent has more keys than the event states.
    pub(super) fn after(
        &self,
        rank: DpRank,
        parent: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = self.find(rank, parent, adapter);
        known.or_else(|| self.has_forgotten_of(rank).then(|| adapter.with_unknown(parent)))
    }

    /// Whether meanings of a rank's names may have been forgotten.
    pub(super) fn has_forgotten_of(&self, rank: DpRank) -> bool {
        match self.overflow {
            Overflow::None => false,
            Overflow::One(of) => of == rank,
            Overflow::Several => true,
        }
    }

    /// A copy more of a block with tokens. What is already known of its name stays.
    pub(super) fn stored(
        &mut self,
        rank: DpRank,
        name: BlockName,
        (namespace, has_own_keys): (BlockNamespace, bool),
        tier: Tier,
    ) {
        if namespace.is_plain() && !has_own_keys {
            // What is known of the name may say more than this event.
            self.stored_name(rank, name, tier);
            return;
        }
        let full = self.names.len() >= self.limit;
        match self.names.entry((rank, name)) {
            Entry::Occupied(_) => self.stored_name(rank, name, tier),
            Entry::Vacant(_) if full => {
                let alone = [Overflow::None, Overflow::One(rank)].contains(&self.overflow);
                self.overflow = if alone { Overflow::One(rank) } else { Overflow::Several };
            }
            Entry::Vacant(unknown) => {
                let BlockNamespace { adapter, seed, matchable } = namespace;
                let mut copies = [0; Tier::COUNT];
                add_copy(&mut copies, tier, self.copy_mode);
                let meaning = NameMeaning {
                    adapter: adapter.0,
                    seed: seed.0,
                    matchable,
                    has_own_keys,
                    copies,
                };
                unknown.insert(meaning);
                self.changes.push(NameChange { rank, name, meaning: Some(meaning) });
            }
        }
        debug_assert!(self.names.len() <= self.limit, "names are limited");
    }

    /// A copy more of a block of which the event states the name only.
    pub(super) fn stored_name(&mut self, rank: DpRank, name: BlockName, tier: Tier) {
        if let Some(known) = self.names.get_mut(&(rank, name)) {
            add_copy(&mut known.copies, tier, self.copy_mode);
            self.changes.push(NameChange { rank, name, meaning: Some(*known) });
        }
    }

    /// A copy less, or none left with `all`. The name is forgotten with its last copy.
    pub(super) fn removed(&mut self, rank: DpRank, name: BlockName, tier: Tier, all: bool) {
        let Entry::Occupied(mut known) = self.names.entry((rank, name)) else { return };
        if let Some(copies) = known.get_mut().copies.get_mut(tier.index()) {
            let all = all || self.copy_mode == CopyMode::Set;
            *copies = if all { 0 } else { copies.saturating_sub(1) };
        }
        let meaning = if known.get().copies == [0; Tier::COUNT] {
            known.remove();
            None
        } else {
            Some(*known.get())
        };
        self.changes.push(NameChange { rank, name, meaning });
    }

    /// Forgets all names of a rank, or their copies in one tier.
    pub(super) fn cleared(&mut self, rank: DpRank, tier: Option<Tier>) {
        self.remove_where(rank, tier, |_| true);
        if self.overflow == Overflow::One(rank) && tier.is_none() {
            self.overflow = Overflow::None;
        }
    }

    /// Forgets the names of a rank's blocks with this adapter. Returns the names.
    pub(super) fn end_adapter(&mut self, rank: DpRank, adapter: BlockNamespace) -> Vec<BlockName> {
        self.remove_where(rank, None, |meaning| meaning.adapter == adapter.adapter.0)
    }

    fn remove_where(
        &mut self,
        rank: DpRank,
        tier: Option<Tier>,
        goes: impl Fn(&NameMeaning) -> bool,
    ) -> Vec<BlockName> {
        let Self { names, changes, .. } = self;
        let mut removed = Vec::new();
        names.retain(|&(of, name), meaning| {
            if of != rank || !goes(meaning) {
                return true;
            }
            let before = meaning.copies;
            for at in Tier::ALL.into_iter().filter(|&at| tier.is_none_or(|tier| tier == at)) {
                if let Some(copies) = meaning.copies.get_mut(at.index()) {
                    *copies = 0;
                }
            }
            if meaning.copies == before {
                return true;
            }
            let stays = meaning.copies != [0; Tier::COUNT];
            changes.push(NameChange { rank, name, meaning: stays.then_some(*meaning) });
            removed.push(name);
            stays
        });
        if names.is_empty() {
            *names = HashMap::new();
        }
        // Independent of the order of the table.
        removed.sort_unstable();
        changes.sort_by_key(|change| (change.rank, change.name));
        removed
    }
}

fn add_copy(copies: &mut [u32; Tier::COUNT], tier: Tier, mode: CopyMode) {
    if let Some(copies) = copies.get_mut(tier.index()) {
        *copies = match mode {
            CopyMode::Counted => copies.saturating_add(1),
            CopyMode::Set => 1,
        };
    }
}
