use kvasir_proto::hash::sequence_hash;
use kvasir_proto::limits::EVENT_BLOCKS_MAX;
use kvasir_proto::types::{
    BlockName, CopyMode, KvEvent, LocalHash, SequenceHash, StoredBlock, Tier,
};
use rustc_hash::FxHashMap;
use std::mem;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// What a source holds under one of its names.
#[derive(Debug, Clone, Copy)]
struct Named {
    /// The block, as all sources together name it.
    block: BlockName,
    /// Whether that is its canonical hash.
    is_joined: bool,
    copies: [u16; Tier::COUNT],
}

/// One source at one rank.
#[derive(Debug)]
pub(super) struct SourceNames {
    source: u8,
    copy_mode: CopyMode,
    names: FxHashMap<BlockName, Named>,
}

/// One rank: in how many ways each block is held in each tier.
#[derive(Debug, Default)]
pub(super) struct Rank {
    blocks: FxHashMap<BlockName, [u32; Tier::COUNT]>,
    held: Vec<SourceNames>,
}

/// What changes for all sources together.
#[derive(Debug, Default)]
pub(super) struct Output {
    pub(super) events: Vec<KvEvent>,
    /// Names that were taken without their chain to the root.
    pub(super) unjoined: u64,
    /// Blocks that were not taken, for there is no room.
    pub(super) refused: u64,
}

impl Output {
    /// A block that nobody held in the tier, after `parent`.
    fn stored(&mut self, parent: Option<BlockName>, tier: Tier, block: StoredBlock) {
        if let Some(KvEvent::Stored { tier: at, blocks, .. }) = self.events.last_mut()
            && *at == tier
            && parent.is_some()
            && blocks.last().map(|last| last.name) == parent
            && blocks.len() < EVENT_BLOCKS_MAX
        {
            blocks.push(block);
            return;
        }
        self.events.push(KvEvent::Stored { parent, tier, blocks: vec![block] });
    }

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
    /// Names that all sources hold, each counted by itself.
    pub(super) fn names(&self) -> usize {
        self.held.iter().map(|held| held.names.len()).sum()
    }

    /// Takes an event of a source; no more than `room` new names.
    pub(super) fn take(
        &mut self,
        (source, copy_mode): (u8, CopyMode),
        event: KvEvent,
        room: usize,
        output: &mut Output,
    ) {
        let Self { blocks: all, held } = self;
        let at = held.iter().position(|held| held.source == source).unwrap_or_else(|| {
            held.push(SourceNames { source, copy_mode, names: FxHashMap::default() });
            held.len() - 1
        });
        let Some(held) = held.get_mut(at) else { return };
        if held.names.is_empty() {
            // In its next incarnation a source may count otherwise.
            held.copy_mode = copy_mode;
        }
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                held.store((parent, tier, blocks), room, all, output);
            }
            KvEvent::StoredNames { tier, names } => {
                held.store_names(tier, names, room, all, output);
            }
            KvEvent::Removed { tier, names } => held.remove(tier, &names, false, all, output),
            KvEvent::Gone { tier, names } => held.remove(tier, &names, true, all, output),
            KvEvent::Cleared => {
                held.clear(all, output);
                if self.blocks.is_empty() && !output.events.is_empty() {
                    output.events = vec![KvEvent::Cleared];
                }
            }
        }
    }
}

type Blocks = FxHashMap<BlockName, [u32; Tier::COUNT]>;

impl SourceNames {
    fn store(
        &mut self,
        (parent, tier, blocks): (Option<BlockName>, Tier, Vec<StoredBlock>),
        mut room: usize,
        all: &mut Blocks,
        output: &mut Output,
    ) {
        let root = parent.is_none();
        let before = parent.map(|name| self.names.get(&name).map(|at| (at.block, at.is_joined)));
        // The block before, as all name it, and whether its chain to the root is known.
        let mut before = match (parent, before.flatten()) {
            (Some(name), None) => Some((self.own(name), false)),
            (_, known) => known,
        };
        debug_assert!(root == before.is_none());
        for StoredBlock { name, local } in blocks {
            let is_joined = before.is_none_or(|(_, is_joined)| is_joined);
            let parent = before.map(|(block, _)| block);
            let block = if is_joined { canonical(parent, local) } else { self.own(name) };
            if self.names.get(&name).is_some_and(|at| at.block != block) {
                // It means another block now.
                self.release(name, all, output);
            }
            let is_new = !self.names.contains_key(&name);
            if is_new && room == 0 {
                output.refused += 1;
            } else {
                room -= usize::from(is_new);
                output.unjoined += u64::from(is_new && !is_joined);
                if self.add(name, (block, is_joined), tier, all) {
                    output.stored(parent, tier, StoredBlock { name: block, local });
                }
            }
            before = Some((block, is_joined));
        }
    }

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
            output.unjoined += u64::from(known.is_none());
            let (block, is_joined) = known.unwrap_or((self.own(name), false));
            if self.add(name, (block, is_joined), tier, all) {
                output.stored_name(tier, block);
            }
        }
    }

    /// One announcement more; whether nobody held the block in that tier before.
    fn add(
        &mut self,
        name: BlockName,
        (block, is_joined): (BlockName, bool),
        tier: Tier,
        all: &mut Blocks,
    ) -> bool {
        let nothing = Named { block, is_joined, copies: [0; Tier::COUNT] };
        let named = self.names.entry(name).or_insert(nothing);
        let Some(copies) = named.copies.get_mut(tier.index()) else { return false };
        *copies = match self.copy_mode {
            CopyMode::Counted => copies.saturating_add(1),
            CopyMode::Set if *copies > 0 => return false,
            CopyMode::Set => 1,
        };
        if *copies > 1 {
            return false;
        }
        let Some(holding) = all.entry(block).or_default().get_mut(tier.index()) else {
            return false;
        };
        *holding += 1;
        *holding == 1
    }

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
            if *copies > 0 {
                continue;
            }
            let (block, copies) = (named.block, named.copies);
            if copies == [0; Tier::COUNT] {
                let removed = self.names.remove(name);
                debug_assert!(removed.is_some(), "a name without copies is forgotten once");
            }
            leave(block, tier, all, output);
        }
    }

    /// A name is not held any more, wherever it was.
    fn release(&mut self, name: BlockName, all: &mut Blocks, output: &mut Output) {
        let Some(Named { block, copies, .. }) = self.names.remove(&name) else { return };
        for (tier, copies) in Tier::ALL.into_iter().zip(copies) {
            if copies > 0 {
                leave(block, tier, all, output);
            }
        }
    }

    fn clear(&mut self, all: &mut Blocks, output: &mut Output) {
        let mut names: Vec<(BlockName, Named)> = mem::take(&mut self.names).into_iter().collect();
        names.sort_unstable_by_key(|(name, _)| *name);
        for (at, tier) in Tier::ALL.into_iter().enumerate() {
            for (_, named) in &names {
                if named.copies.get(at).is_some_and(|copies| *copies > 0) {
                    leave(named.block, tier, all, output);
                }
            }
        }
    }

    /// A name that is this source's alone.
    fn own(&self, name: BlockName) -> BlockName {
        BlockName(xxh3_64_with_seed(&name.0.to_le_bytes(), !u64::from(self.source)))
    }
}

fn canonical(parent: Option<BlockName>, local: LocalHash) -> BlockName {
    let parent = parent.map(|parent| SequenceHash(parent.0));
    BlockName(sequence_hash(parent, local).0)
}

/// One way less in which a block is held in a tier.
fn leave(block: BlockName, tier: Tier, all: &mut Blocks, output: &mut Output) {
    let holding = all.get_mut(&block);
    debug_assert!(holding.is_some(), "a block that a name holds is counted");
    let Some(holding) = holding else { return };
    let in_tier = holding.get_mut(tier.index()).filter(|in_tier| **in_tier > 0);
    debug_assert!(in_tier.is_some(), "in each tier that holds it");
    let Some(in_tier) = in_tier else { return };
    *in_tier -= 1;
    if *in_tier > 0 {
        return;
    }
    if *holding == [0; Tier::COUNT] {
        all.remove(&block);
    }
    output.removed(tier, block);
}
