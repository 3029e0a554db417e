//! Rules of the oracle: how events change the records of one rank, and how queries are answered from them.

use super::{OracleLimits, Path, Record, SourceNo};
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, LocalHash, StoredBlock, Tier, TierSet,
};
use std::collections::{BTreeMap, BTreeSet};

/// The records of one rank, by name.
pub(super) type Names = BTreeMap<BlockName, Record>;

/// The origin of an event: a source, the tier and the copy mode.
#[derive(Clone, Copy)]
pub(super) struct Announcer {
    pub(super) source: SourceNo,
    pub(super) tier: Tier,
    pub(super) mode: CopyMode,
}

pub(super) fn parked(names: &Names) -> usize {
    names.values().filter(|record| record.position.is_none()).count()
}

pub(super) fn stored(
    names: &mut Names,
    limits: OracleLimits,
    by: Announcer,
    parent: Option<BlockName>,
    blocks: &[StoredBlock],
    counts: &mut BlockCounts,
) {
    let mut parent_name = parent;
    let mut at = match parent {
        None => Some(Path::new()),
        Some(parent) => names.get(&parent).and_then(|record| record.position.clone()),
    };
    for (index, block) in blocks.iter().enumerate() {
        let target = at.as_ref().map(|path| below(path, block.local));
        if target.as_ref().is_some_and(|target| target.len() > limits.chain_blocks_max) {
            for block in &blocks[index..] {
                reject_too_deep(names, parent_name, *block);
                parent_name = Some(block.name);
                counts.add(BlockOutcome::Rejected);
            }
            return;
        }
        let outcome = store_block(names, limits, by, parent_name, *block, target);
        counts.add(outcome);
        parent_name = Some(block.name);
        at = match outcome {
            BlockOutcome::Rejected => None,
            _ => names[&block.name].position.clone(),
        };
    }
}

/// Rejects a block beyond the maximum depth. If its name was bound to other content, that content is no longer held
/// either.
fn reject_too_deep(names: &mut Names, parent: Option<BlockName>, block: StoredBlock) {
    let Some(existing) = names.get(&block.name) else {
        return;
    };
    let same_link = existing.parent == parent && existing.local == Some(block.local);
    let may_be_the_same = existing.position.is_none() && (existing.local.is_none() || same_link);
    if !may_be_the_same {
        names.remove(&block.name);
    }
}

fn below(path: &Path, local: LocalHash) -> Path {
    let mut path = path.clone();
    path.push(local);
    path
}

fn store_block(
    names: &mut Names,
    limits: OracleLimits,
    by: Announcer,
    parent: Option<BlockName>,
    block: StoredBlock,
    target: Option<Path>,
) -> BlockOutcome {
    let too_many_parked = target.is_none() && parked(names) >= limits.rank_parked_max;
    let Some(existing) = names.get_mut(&block.name) else {
        if too_many_parked {
            return BlockOutcome::Rejected;
        }
        names.insert(block.name, new_record(parent, Some(block.local), target, by));
        place_children(names, limits, block.name);
        return BlockOutcome::Applied;
    };
    let same_position = target.is_some() && existing.position == target;
    let without_tokens = existing.position.is_none() && existing.local.is_none();
    let elsewhere = target.is_some() && existing.position.is_some() && existing.position != target;
    let same_link = existing.parent == parent && existing.local == Some(block.local);
    if same_position || without_tokens || (same_link && !elsewhere) {
        let outcome = add_copy(existing, by);
        if existing.position.is_some() {
            return outcome;
        }
        let learned = existing.local.is_none() || target.is_some();
        existing.parent = parent;
        existing.local = Some(block.local);
        existing.position = target;
        place_children(names, limits, block.name);
        return if learned { BlockOutcome::Applied } else { outcome };
    }
    // The meaning of a held name stays, unless all its copies are suspect.
    if existing.copies.keys().any(|key| !existing.suspect.contains(key)) {
        add_copy(existing, by);
        return BlockOutcome::Conflict;
    }
    if too_many_parked {
        names.remove(&block.name);
        return BlockOutcome::Rejected;
    }
    names.insert(block.name, new_record(parent, Some(block.local), target, by));
    place_children(names, limits, block.name);
    BlockOutcome::Applied
}

pub(super) fn store_name(
    names: &mut Names,
    limits: OracleLimits,
    by: Announcer,
    name: BlockName,
) -> BlockOutcome {
    if let Some(existing) = names.get_mut(&name) {
        return add_copy(existing, by);
    }
    if parked(names) >= limits.rank_parked_max {
        return BlockOutcome::Rejected;
    }
    names.insert(name, new_record(None, None, None, by));
    BlockOutcome::Applied
}

pub(super) fn remove_name(names: &mut Names, by: Announcer, name: BlockName) -> BlockOutcome {
    let key = (by.source, by.tier);
    let Some(record) = names.get_mut(&name) else {
        return BlockOutcome::Noop;
    };
    let Some(copies) = record.copies.get_mut(&key) else {
        return BlockOutcome::Noop;
    };
    if by.mode == CopyMode::Counted && *copies > 1 {
        *copies -= 1;
        return BlockOutcome::Applied;
    }
    record.copies.remove(&key);
    record.suspect.remove(&key);
    if record.copies.is_empty() {
        names.remove(&name);
    }
    BlockOutcome::Applied
}

/// Drops the copies of the source for which `goes` returns true. It receives the tier and whether the copy is suspect.
/// Returns whether there were any.
pub(super) fn drop_copies_of(
    record: &mut Record,
    source: SourceNo,
    goes: impl Fn(Tier, bool) -> bool,
) -> bool {
    let before = record.copies.len();
    for tier in Tier::ALL {
        let key = (source, tier);
        if record.copies.contains_key(&key) && goes(tier, record.suspect.contains(&key)) {
            record.copies.remove(&key);
            record.suspect.remove(&key);
        }
    }
    record.copies.len() < before
}

fn new_record(
    parent: Option<BlockName>,
    local: Option<LocalHash>,
    position: Option<Path>,
    by: Announcer,
) -> Record {
    let copies = BTreeMap::from([((by.source, by.tier), 1)]);
    Record { parent, local, position, copies, suspect: BTreeSet::new() }
}

fn add_copy(record: &mut Record, by: Announcer) -> BlockOutcome {
    let key = (by.source, by.tier);
    let copies = record.copies.entry(key).or_insert(0);
    if record.suspect.remove(&key) {
        *copies = 1;
        return BlockOutcome::Applied;
    }
    if by.mode == CopyMode::Set && *copies == 1 {
        return BlockOutcome::Noop;
    }
    *copies += 1;
    BlockOutcome::Applied
}

/// If `name` is placed: places the records that waited for it, then those that waited for these records.
fn place_children(names: &mut Names, limits: OracleLimits, name: BlockName) {
    let mut placed = vec![name];
    while let Some(parent) = placed.pop() {
        let Some(position) = names[&parent].position.clone() else {
            continue;
        };
        if position.len() >= limits.chain_blocks_max {
            continue;
        }
        for (&child, record) in names.iter_mut() {
            let Some(local) = record.local else {
                continue;
            };
            if record.position.is_none() && record.parent == Some(parent) {
                record.position = Some(below(&position, local));
                placed.push(child);
            }
        }
    }
}

/// For each block of `query`, the tiers that have the complete path up to it.
pub(super) fn held_along_path(names: &Names, query: &[LocalHash]) -> Vec<TierSet> {
    let mut held = vec![TierSet::EMPTY; query.len()];
    for record in names.values() {
        let Some(position) = &record.position else {
            continue;
        };
        if query.starts_with(position) {
            let block = &mut held[position.len() - 1];
            *block = record.copies.keys().fold(*block, |tiers, &(_, tier)| tiers.with(tier));
        }
    }
    held
}

/// For each name of `query`, the tiers that have a placed block with this name.
pub(super) fn held_by_name(names: &Names, query: &[BlockName]) -> Vec<TierSet> {
    let placed = |name| names.get(name).filter(|record| record.position.is_some());
    let tiers = |record: &Record| record.copies.keys().map(|&(_, tier)| tier).collect();
    query.iter().map(|name| placed(name).map_or(TierSet::EMPTY, tiers)).collect()
}

/// Removes, in each tier, the blocks of chunks that are incomplete there. The blocks of a prompt are in order.
pub(super) fn keep_complete_chunks(held: &mut [TierSet], sizes: [u32; Tier::COUNT]) {
    for (tier, size) in Tier::ALL.into_iter().zip(sizes) {
        let size = size.max(1) as usize;
        for chunk in held.chunks_mut(size) {
            let is_complete = chunk.len() == size && chunk.iter().all(|at| at.contains(tier));
            for tiers in chunk.iter_mut().filter(|_| !is_complete) {
                let others = Tier::ALL.into_iter().filter(|other| *other != tier);
                *tiers = others.filter(|other| tiers.contains(*other)).collect();
            }
        }
    }
}

/// Blocks by tier.
type ByTier = [u32; Tier::COUNT];

/// The leading held blocks of a query.
#[derive(Default)]
pub(super) struct Leading {
    pub(super) blocks: u32,
    /// Number of these blocks in each requested tier.
    pub(super) by_tier: ByTier,
    /// Number of these blocks whose best requested tier is this one.
    pub(super) by_best_tier: ByTier,
    /// Number of these blocks that only a pool has.
    pub(super) pool_blocks: u32,
}

/// Leading blocks in a requested tier or in a pool.
pub(super) fn leading(held: &[TierSet], in_pools: &[bool], asked: TierSet) -> Leading {
    let mut leading = Leading::default();
    for (tiers, &in_pool) in held.iter().zip(in_pools) {
        let hits = Tier::ALL.map(|tier| asked.contains(tier) && tiers.contains(tier));
        match hits.iter().position(|hit| *hit) {
            Some(best) => leading.by_best_tier[best] += 1,
            None if in_pool => leading.pool_blocks += 1,
            None => break,
        }
        leading.blocks += 1;
        for (count, hit) in leading.by_tier.iter_mut().zip(hits) {
            *count += u32::from(hit);
        }
    }
    leading
}
