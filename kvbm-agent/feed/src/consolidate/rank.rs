use super::holding::{ConsolidatedSource, Holding, HoldingChange, Naming, SourceNumber};
use kvasir_proto::hash::sequence_hash;
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, SequenceHash, StoredBlock, Tier,
};
use rustc_hash::{FxHashMap, FxHashSet};
use std::mem;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A source's holding of one block, under the source's name.
#[derive(Debug, Clone, Copy)]
struct Named {
    /// Name of the block in the joined stream.
    block: BlockName,
    /// Whether `block` is the canonical hash.
    is_joined: bool,
    copies: [u16; Tier::COUNT],
}

/// Names of one source at one rank.
#[derive(Debug)]
pub(super) struct SourceNames {
    source: ConsolidatedSource,
    names: FxHashMap<BlockName, Named>,
}

/// The holdings of a source before its image.
#[derive(Debug)]
pub(super) struct SetAside(FxHashMap<BlockName, Named>);

/// One rank: how many sources' names hold each block in each tier.
#[derive(Debug, Default)]
pub(super) struct Rank {
    blocks: FxHashMap<BlockName, [u32; Tier::COUNT]>,
    held: Vec<SourceNames>,
}

/// Resulting changes of the joined stream.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) events: Vec<KvEvent>,
    /// Names stored without their chain to the root.
    pub(super) unjoined: u64,
    /// Blocks refused for lack of room.
    pub(super) refused: u64,
    /// Whether to record `was_cleared` and `changed`.
    tells_holdings: bool,
    /// Whether the source's holdings were cleared.
    was_cleared: bool,
    /// Names whose holdings may have changed since the clear.
    changed: FxHashSet<BlockName>,
}

impl Output {
    pub(super) fn new(tells_holdings: bool) -> Self {
        Self { tells_holdings, ..Self::default() }
    }

    /// Records that the holding of a name may change.
    fn change(&mut self, name: BlockName) {
        if self.tells_holdings {
            self.changed.insert(name);
        }
    }

    /// Records that the source's holdings are cleared.
    fn clear(&mut self) {
        self.was_cleared = true;
        self.changed.clear();
    }

    /// Publishes a block after `parent`. No source held the block in the tier before.
    fn stored(&mut self, parent: Option<BlockName>, tier: Tier, block: StoredBlock) {
        KvEvent::push_stored(&mut self.events, parent, tier, block);
    }

    /// Adds a stored name. Joins the last event if it also stores names in this tier and has room.
    fn stored_name(&mut self, tier: Tier, name: BlockName) {
        if let Some(KvEvent::StoredNames { tier: at, names }) = self.events.last_mut()
            && *at == tier
            && names.len() < EVENT_BLOCKS_MAX
        {
            names.push(name);
            return;
        }
        self.events.push(KvEvent::StoredNames { tier, names: vec![name] });
    }

    /// Adds a removed name. Joins the last event if it also removes from this tier and has room.
    fn removed(&mut self, tier: Tier, name: BlockName) {
        if let Some(KvEvent::Removed { tier: at, names }) = self.events.last_mut()
            && *at == tier
            && names.len() < EVENT_BLOCKS_MAX
        {
            names.push(name);
            return;
        }
        self.events.push(KvEvent::Removed { tier, names: vec![name] });
    }
}

impl Rank {
    /// Number of names over all sources. A block counts once per source.
    pub(super) fn names(&self) -> usize {
        self.held.iter().map(|held| held.names.len()).sum()
    }

    /// Number of names of one source.
    pub(super) fn names_of(&self, source: SourceNumber) -> usize {
        let of = self.held.iter().filter(|held| held.source.number == source);
        of.map(|held| held.names.len()).sum()
    }

    pub(super) fn is_held(&self, block: BlockName, tier: Tier) -> bool {
        let in_tiers = self.blocks.get(&block);
        in_tiers.and_then(|tiers| tiers.get(tier.index())).is_some_and(|holding| *holding > 0)
    }

    /// Applies an event of a source. At most `room` names may be new; further ones are refused and counted.
    pub(super) fn apply_event(
        &mut self,
        source: ConsolidatedSource,
        event: KvEvent,
        room: usize,
        output: &mut Output,
    ) {
        let (all, Some(held)) = self.parts_of(source) else { return };
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                held.store((parent, tier, blocks), room, all, output);
            }
            KvEvent::StoredNames { tier, names } => {
                held.store_names(tier, names, room, all, output);
            }
            KvEvent::Removed { tier, names } => held.remove(tier, &names, false, all, output),
            KvEvent::Gone { tier, names } => held.remove(tier, &names, true, all, output),
            KvEvent::ClearedTier(tier) => {
                let held_there = |named: &Named| named.copies.get(tier.index()) != Some(&0);
                let names = held.names.iter().filter(|(_, named)| held_there(named));
                let mut names: Vec<BlockName> = names.map(|(name, _)| *name).collect();
                names.sort_unstable();
                held.remove(tier, &names, true, all, output);
            }
            KvEvent::Cleared => {
                let before = SetAside(mem::take(&mut held.names));
                output.clear();
                self.release(before, output);
            }
        }
    }

    /// Returns all blocks, and the names of a source, which is added if it is new.
    fn parts_of(&mut self, source: ConsolidatedSource) -> (&mut Blocks, Option<&mut SourceNames>) {
        let Self { blocks, held } = self;
        let known = held.iter().position(|held| held.source.number == source.number);
        let at = known.unwrap_or_else(|| {
            held.push(SourceNames { source, names: FxHashMap::default() });
            held.len() - 1
        });
        (blocks, held.get_mut(at).map(|held| held.update_source(source)))
    }

    /// Begins a source's image. Earlier holdings count until they are [released](Self::release), so that blocks which
    /// stay are not published again.
    pub(super) fn set_aside(
        &mut self,
        source: ConsolidatedSource,
        output: &mut Output,
    ) -> SetAside {
        output.clear();
        let (_, held) = self.parts_of(source);
        SetAside(held.map(|held| mem::take(&mut held.names)).unwrap_or_default())
    }

    /// Releases the holdings that a source had before its image. If the rank is empty then, publishes a single clear in
    /// place of the removals.
    pub(super) fn release(&mut self, SetAside(before): SetAside, output: &mut Output) {
        let mut names: Vec<(BlockName, Named)> = before.into_iter().collect();
        names.sort_unstable_by_key(|(name, _)| *name);
        let mut is_told = false;
        for (at, tier) in Tier::ALL.into_iter().enumerate() {
            for (_, named) in &names {
                if named.copies.get(at).is_some_and(|copies| *copies > 0) {
                    is_told |= remove_holding(named.block, tier, &mut self.blocks, output);
                }
            }
        }
        if self.blocks.is_empty() && is_told {
            output.events = vec![KvEvent::Cleared];
        }
    }

    /// Restores a source's holdings without publishing them.
    pub(super) fn bring_back(&mut self, source: ConsolidatedSource, holdings: &[Holding]) {
        let (all, Some(held)) = self.parts_of(source) else { return };
        for Holding { name, block, is_joined, copies } in holdings.iter().copied() {
            let before = held.names.insert(name, Named { block, is_joined, copies });
            debug_assert!(before.is_none(), "{name:?} is brought back twice");
            let in_tiers = all.entry(block).or_default();
            for (holding, copies) in in_tiers.iter_mut().zip(copies) {
                *holding += u32::from(copies > 0);
            }
        }
    }

    /// Moves holdings to another source number.
    pub(super) fn hand_over(&mut self, from: SourceNumber, to: ConsolidatedSource) {
        debug_assert_eq!(self.names_of(to.number), 0, "it holds nothing yet");
        self.held.retain(|held| held.source.number != to.number);
        for held in self.held.iter_mut().filter(|held| held.source.number == from) {
            held.source = to;
        }
    }

    /// Returns the current state of all holdings that changed, for the disk. Empty if the consolidator does not record
    /// them.
    pub(super) fn changes(&self, source: SourceNumber, output: &Output) -> Vec<HoldingChange> {
        if !output.tells_holdings {
            return Vec::new();
        }
        let held = self.held.iter().find(|held| held.source.number == source);
        let mut changed: Vec<BlockName> = output.changed.iter().copied().collect();
        changed.sort_unstable();
        let of = |name: BlockName| match held.and_then(|held| held.names.get(&name)) {
            Some(&Named { block, is_joined, copies }) => {
                HoldingChange::Held(Holding { name, block, is_joined, copies })
            }
            None => HoldingChange::Gone(name),
        };
        let cleared = output.was_cleared.then_some(HoldingChange::Cleared);
        cleared.into_iter().chain(changed.into_iter().map(of)).collect()
    }
}

type Blocks = FxHashMap<BlockName, [u32; Tier::COUNT]>;

impl SourceNames {
    /// Updates the source's settings while it has no names. A new incarnation may count differently, and its number may
    /// have been another source's.
    fn update_source(&mut self, source: ConsolidatedSource) -> &mut Self {
        if self.names.is_empty() {
            self.source = source;
        }
        self
    }

    /// Stores blocks under the source's names. A name is joined if its chain to the root is known: its canonical hash
    /// then joins equal blocks of other sources. Otherwise only this source uses its block.
    fn store(
        &mut self,
        (parent, tier, blocks): (Option<BlockName>, Tier, Vec<StoredBlock>),
        mut room: usize,
        all: &mut Blocks,
        output: &mut Output,
    ) {
        let root = parent.is_none();
        let before = parent.map(|name| self.names.get(&name).map(|at| (at.block, at.is_joined)));
        // Joined name of the previous block, and whether its chain to the root is known.
        let mut before = match (parent, before.flatten()) {
            (Some(name), None) => Some(self.unchained(name)),
            (_, known) => known,
        };
        debug_assert!(root == before.is_none());
        for StoredBlock { name, local } in blocks {
            let is_joined = before.is_none_or(|(_, is_joined)| is_joined);
            let parent = before.map(|(block, _)| block);
            let block = match self.source.naming {
                Naming::Canonical => name,
                Naming::Own { .. } if is_joined => canonical(parent, local),
                Naming::Own { salt } => salted_name(salt, name),
            };
            let known = self.names.get(&name).map(|at| (at.block, at.is_joined));
            // A joined name keeps its block: a store that contradicts it counts as a copy of that block.
            let (block, is_joined) = known.filter(|at| at.1).unwrap_or((block, is_joined));
            if known.is_some_and(|at| at.0 != block) {
                // The chain to the root is known now.
                self.release(name, all, output);
            }
            let is_new = !self.names.contains_key(&name);
            if is_new && room == 0 {
                output.refused += 1;
            } else {
                room -= usize::from(is_new);
                output.unjoined += u64::from(is_new && !is_joined);
                if self.add(name, (block, is_joined), tier, (all, output)) {
                    output.stored(parent, tier, StoredBlock { name: block, local });
                }
            }
            before = Some((block, is_joined));
        }
    }

    /// Stores names whose tokens are unknown. A new name is not joined. Refuses and counts new names beyond `room`.
    fn store_names(
        &mut self,
        tier: Tier,
        names: Vec<BlockName>,
        mut room: usize,
        all: &mut Blocks,
        output: &mut Output,
    ) {
        for name in names {
            let known = self.names.get(&name).map(|at| (at.block, at.is_joined));
            if known.is_none() && room == 0 {
                output.refused += 1;
                continue;
            }
            room -= usize::from(known.is_none());
            let (block, is_joined) = known.unwrap_or_else(|| self.unchained(name));
            output.unjoined += u64::from(known.is_none() && !is_joined);
            if self.add(name, (block, is_joined), tier, (all, output)) {
                output.stored_name(tier, block);
            }
        }
    }

    /// Adds one announcement. Returns whether the block is new in that tier, for all sources.
    fn add(
        &mut self,
        name: BlockName,
        (block, is_joined): (BlockName, bool),
        tier: Tier,
        (all, output): (&mut Blocks, &mut Output),
    ) -> bool {
        let nothing = Named { block, is_joined, copies: [0; Tier::COUNT] };
        let named = self.names.entry(name).or_insert(nothing);
        let Some(copies) = named.copies.get_mut(tier.index()) else { return false };
        *copies = match self.source.copy_mode {
            CopyMode::Counted => copies.saturating_add(1),
            CopyMode::Set if *copies > 0 => return false,
            CopyMode::Set => 1,
        };
        output.change(name);
        if *copies > 1 {
            return false;
        }
        let Some(holding) = all.entry(block).or_default().get_mut(tier.index()) else {
            return false;
        };
        *holding += 1;
        *holding == 1
    }

    /// Removes one copy of each name in a tier, or all copies if `all_copies`. Skips names that the source does not
    /// hold there. A block without a remaining holding is removed from the stream.
    fn remove(
        &mut self,
        tier: Tier,
        names: &[BlockName],
        all_copies: bool,
        all: &mut Blocks,
        output: &mut Output,
    ) {
        for name in names {
            let Some(named) = self.names.get_mut(name) else { continue };
            let Some(copies) = named.copies.get_mut(tier.index()).filter(|copies| **copies > 0)
            else {
                continue;
            };
            *copies = if all_copies { 0 } else { *copies - 1 };
            output.change(*name);
            if *copies > 0 {
                continue;
            }
            let block = named.block;
            let copies = named.copies;
            if copies == [0; Tier::COUNT] {
                let removed = self.names.remove(name);
                debug_assert!(removed.is_some(), "a name without copies is forgotten once");
            }
            remove_holding(block, tier, all, output);
        }
    }

    /// Removes a name of the source from all tiers. Returns immediately if the name is unknown.
    fn release(&mut self, name: BlockName, all: &mut Blocks, output: &mut Output) {
        let Some(Named { block, copies, .. }) = self.names.remove(&name) else { return };
        output.change(name);
        for (tier, copies) in Tier::ALL.into_iter().zip(copies) {
            if copies > 0 {
                remove_holding(block, tier, all, output);
            }
        }
    }

    /// Joined name of a block whose chain to the root is unknown, and whether it counts as joined.
    fn unchained(&self, name: BlockName) -> (BlockName, bool) {
        match self.source.naming {
            Naming::Own { salt } => (salted_name(salt, name), false),
            Naming::Canonical => (name, true),
        }
    }
}

/// Name that only its source uses.
fn salted_name(salt: u64, name: BlockName) -> BlockName {
    BlockName(xxh3_64_with_seed(&name.0.to_le_bytes(), salt))
}

fn canonical(parent: Option<BlockName>, local: LocalHash) -> BlockName {
    let parent = parent.map(|parent| SequenceHash(parent.0));
    BlockName(sequence_hash(parent, local).0)
}

/// Removes one holding of a block in a tier. Returns whether it was the last.
fn remove_holding(block: BlockName, tier: Tier, all: &mut Blocks, output: &mut Output) -> bool {
    let holding = all.get_mut(&block);
    debug_assert!(holding.is_some(), "a block that a name holds is counted");
    let Some(holding) = holding else { return false };
    let in_tier = holding.get_mut(tier.index()).filter(|in_tier| **in_tier > 0);
    debug_assert!(in_tier.is_some(), "in each tier that holds it");
    let Some(in_tier) = in_tier else { return false };
    *in_tier -= 1;
    if *in_tier > 0 {
        return false;
    }
    if *holding == [0; Tier::COUNT] {
        all.remove(&block);
    }
    output.removed(tier, block);
    true
}
