//! Remembers the meanings of a source's block names, for events that state only the name. Only blocks with a
//! salt, an adapter or other extra keys need this. A name stays known while a copy of its block is cached, counted as
//! the index counts copies, and for a while after. A connector may announce a block by name after the engine
//! has evicted it from the device.
//!
//! Every change is recorded, so that the meanings can be persisted with the blocks. They survive a restart of
//! the index or the agent.

use super::namespace::BlockNamespace;
use kvasir_proto::limits::WORKER_RANKS_MAX;
use kvasir_proto::types::{BlockName, CopyMode, DpRank, NameChange, NameMeaning, Tier};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::mem::take;

/// Maximum number of a source's names with known meanings: 65 MB at most, 14 million tokens in blocks of 16.
pub const KNOWN_NAMES_MAX: usize = 900_000;

/// Maximum number of names that stay known after their last copy, newest first.
const LINGERING_MAX: usize = 16_384;

/// The known names of one source.
#[derive(Debug)]
pub(super) struct KnownNames {
    names: HashMap<(DpRank, BlockName), NameMeaning>,
    /// Names that lost their last copy, in this order. Some have copies again.
    lingering: VecDeque<(DpRank, BlockName)>,
    limit: usize,
    copy_mode: CopyMode,
    /// Ranks that have forgotten names because of the limit, until all their blocks are cleared.
    forgetful: BTreeSet<DpRank>,
    changes: Vec<NameChange>,
}

impl KnownNames {
    pub(super) fn new(copy_mode: CopyMode, limit: usize) -> Self {
        Self {
            names: HashMap::new(),
            lingering: VecDeque::new(),
            limit,
            copy_mode,
            forgetful: BTreeSet::new(),
            changes: Vec::new(),
        }
    }

    /// Restores persisted meanings. The `forgetful` ranks lack some.
    pub(super) fn resume(
        &mut self,
        names: impl IntoIterator<Item = (DpRank, BlockName, NameMeaning)>,
        forgetful: &[DpRank],
    ) {
        self.forgetful.extend(forgetful);
        for (rank, name, meaning) in names {
            if self.names.len() < self.limit {
                self.names.insert((rank, name), meaning);
            } else {
                self.forgetful.insert(rank);
            }
        }
    }

    /// Whether meanings were forgotten because of the limit.
    pub(super) fn has_forgotten(&self) -> bool {
        !self.forgetful.is_empty()
    }

    /// Takes the changes since the last call.
    pub(super) fn take_changes(&mut self) -> Vec<NameChange> {
        take(&mut self.changes)
    }

    /// Whether the table can be skipped, because events alone determine the meanings of names.
    pub(super) fn is_idle(&self) -> bool {
        self.names.is_empty() && self.forgetful.is_empty()
    }

    /// Whether no name has a copy.
    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.names.values().all(|meaning| meaning.copies == NO_COPIES)
    }

    /// Whether a name is known.
    pub(super) fn contains(&self, rank: DpRank, name: BlockName) -> bool {
        self.names.contains_key(&(rank, name))
    }

    /// Whether a name is known because of its own keys, which its children do not inherit.
    pub(super) fn has_own_keys(&self, rank: DpRank, name: BlockName) -> bool {
        self.names.get(&(rank, name)).is_some_and(|known| known.has_own_keys)
    }

    /// Namespace of a known block, for an event with `adapter`.
    pub(super) fn find(
        &self,
        rank: DpRank,
        name: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = BlockNamespace::of_meaning(self.names.get(&(rank, name))?);
        // The engine's hash of a block covers its adapter, so one name with two adapters is contradictory.
        let agrees = known.adapter == adapter.adapter;
        Some(if agrees { known } else { adapter.with_unknown(name) })
    }

    /// Namespace of the blocks after `parent`, if the parent has more keys than the event states.
    pub(super) fn namespace_after(
        &self,
        rank: DpRank,
        parent: BlockName,
        adapter: BlockNamespace,
    ) -> Option<BlockNamespace> {
        let known = self.find(rank, parent, adapter);
        known.or_else(|| self.has_forgotten_of(rank).then(|| adapter.with_unknown(parent)))
    }

    /// Whether meanings of the rank's names may have been forgotten.
    pub(super) fn has_forgotten_of(&self, rank: DpRank) -> bool {
        // Beyond the limit, forgetful ranks are not told apart.
        self.forgetful.contains(&rank) || self.forgetful.len() >= WORKER_RANKS_MAX
    }

    /// Adds a copy of a block with tokens. An existing meaning of its name stays. Returns whether the name is
    /// new.
    pub(super) fn stored(
        &mut self,
        rank: DpRank,
        name: BlockName,
        namespace: BlockNamespace,
        has_own_keys: bool,
        tier: Tier,
    ) -> bool {
        let mut is_new = false;
        if namespace.is_plain() && !has_own_keys {
            // The known meaning may be more complete than this event.
            self.stored_name(rank, name, tier);
            return false;
        }
        while self.names.len() >= self.limit && self.forget_oldest() {}
        let full = self.names.len() >= self.limit;
        match self.names.entry((rank, name)) {
            Entry::Occupied(_) => self.stored_name(rank, name, tier),
            Entry::Vacant(_) if full => {
                if self.forgetful.len() < WORKER_RANKS_MAX {
                    self.forgetful.insert(rank);
                }
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
                is_new = true;
                self.changes.push(NameChange { rank, name, meaning: Some(meaning) });
            }
        }
        debug_assert!(self.names.len() <= self.limit, "names are limited");
        is_new
    }

    /// Adds a copy of a block that the event states by name only.
    pub(super) fn stored_name(&mut self, rank: DpRank, name: BlockName, tier: Tier) {
        if let Some(known) = self.names.get_mut(&(rank, name)) {
            add_copy(&mut known.copies, tier, self.copy_mode);
            self.changes.push(NameChange { rank, name, meaning: Some(*known) });
        }
    }

    /// Removes one copy, or all copies with `all`. A name without copies stays known for a while.
    pub(super) fn removed(&mut self, rank: DpRank, name: BlockName, tier: Tier, all: bool) {
        let Entry::Occupied(mut known) = self.names.entry((rank, name)) else { return };
        if known.get().copies == NO_COPIES {
            return;
        }
        if let Some(copies) = known.get_mut().copies.get_mut(tier.index()) {
            let all = all || self.copy_mode == CopyMode::Set;
            *copies = if all { 0 } else { copies.saturating_sub(1) };
        }
        let meaning = Some(*known.get()).filter(|meaning| meaning.copies != NO_COPIES);
        self.changes.push(NameChange { rank, name, meaning });
        if meaning.is_none() {
            self.linger(rank, name);
        }
    }

    fn linger(&mut self, rank: DpRank, name: BlockName) {
        self.lingering.push_back((rank, name));
        while self.lingering.len() > LINGERING_MAX {
            self.forget_oldest();
        }
    }

    /// Forgets the name that lost its last copy first, unless it has copies again. Returns `false` if there
    /// is no candidate.
    fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.lingering.pop_front() else { return false };
        if let Entry::Occupied(known) = self.names.entry(oldest)
            && known.get().copies == NO_COPIES
        {
            known.remove();
        }
        true
    }

    /// Forgets all names of a rank, or only their copies in `tier`.
    pub(super) fn cleared(&mut self, rank: DpRank, tier: Option<Tier>) {
        let without_copies = self.remove_where(rank, tier, |_| true);
        if tier.is_some() {
            without_copies.into_iter().for_each(|name| self.linger(rank, name));
        }
        if tier.is_none() {
            self.forgetful.remove(&rank);
        }
    }

    /// Forgets and returns the names of a rank's blocks with `adapter`.
    pub(super) fn end_adapter(&mut self, rank: DpRank, adapter: BlockNamespace) -> Vec<BlockName> {
        self.remove_where(rank, None, |meaning| meaning.adapter == adapter.adapter.0)
    }

    /// Removes the matching names, or only their copies in `tier`. Returns the names left without a copy.
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
            match tier {
                None => meaning.copies = NO_COPIES,
                Some(tier) => {
                    meaning.copies.iter_mut().skip(tier.index()).take(1).for_each(|at| *at = 0)
                }
            }
            let left = Some(*meaning).filter(|meaning| meaning.copies != NO_COPIES);
            if meaning.copies != before {
                changes.push(NameChange { rank, name, meaning: left });
            }
            if left.is_none() && (tier.is_none() || before != NO_COPIES) {
                removed.push(name);
            }
            tier.is_some()
        });
        if names.is_empty() {
            *names = HashMap::new();
        }
        // Sorted, to be independent of the table's order.
        removed.sort_unstable();
        changes.sort_by_key(|change| (change.rank, change.name));
        removed
    }
}

const NO_COPIES: [u32; Tier::COUNT] = [0; Tier::COUNT];

/// Adds a copy: counted, or at most one.
fn add_copy(copies: &mut [u32; Tier::COUNT], tier: Tier, mode: CopyMode) {
    if let Some(copies) = copies.get_mut(tier.index()) {
        *copies = match mode {
            CopyMode::Counted => copies.saturating_add(1),
            CopyMode::Set => 1,
        };
    }
}
