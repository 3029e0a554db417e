//! Limits matches to what an engine with several KV-cache groups reuses: the longest prefix that every group can
//! serve. The rule is vLLM 0.33's, for each kind of group:
//!
//! - full attention: all blocks of the prefix are held
//! - sliding window of `w` tokens: the blocks of the last `w - 1` tokens are held
//! - Mamba: the block that ends with the prefix is held
//! - chunked local attention: the blocks since the last start of a chunk are held
//!
//! The length is a multiple of all block sizes. A block of a further group is found by its name, which equals the name
//! of the main group's block that ends at the same token. Blocks between such ends are linked backwards from there.

use super::blocks::Blocks;
use super::pools::Pools;
use super::{Match, Query, Scratch, Stretch};
use crate::chunks::{NO_CHUNKS, Positions, Run};
use crate::declared::greatest_common_divisor;
use crate::holder::Holder;
use crate::index::Index;
use crate::source::HolderId;
use kvasir_proto::types::{BlockName, EngineFacts, Group, GroupKind, Tier, TierSet};

/// The prompt of a query, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prompt {
    /// Tokens per block of the main group.
    pub block_size: u32,
    /// Number of tokens; `None` if the prompt goes on after its last block.
    pub tokens: Option<u32>,
}

/// How much of a prompt an engine with several groups, or with facts that limit its hits, reuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reuse {
    /// Leading blocks in the main group alone.
    pub main_group_blocks: u32,
    /// Tokens that the engine does not compute.
    pub tokens: u64,
}

/// Maximum number of links from a block of the main group to a smaller block. DeepSeek V4 needs 63.
const LINKS_MAX: u64 = 1_024;

/// The rule for one rank and prompt.
struct Rule<'a> {
    index: &'a Index,
    holder: &'a Holder,
    facts: EngineFacts,
    tiers: TierSet,
    /// The further groups, each once.
    groups: &'a [Group],
    /// Tokens per block of the main group.
    block: u64,
    /// Tokens that the main group serves.
    matched: u64,
    blocks: Blocks<'a>,
}

/// A length that cannot be served: no longer one than this can be, up to the length itself.
struct Shorter(u64);

impl Rule<'_> {
    /// Tokens per hash: the step in which engines name prefixes.
    fn unit(&self) -> u64 {
        let sizes = self.groups.iter().map(|group| u64::from(group.unit));
        match self.facts.prefix_match_unit {
            0 => sizes.fold(self.block, greatest_common_divisor),
            stated => stated.into(),
        }
    }

    /// Step between two lengths at which hits can end. Hits inside blocks of the main group are not found.
    fn step(&self) -> u64 {
        let unit = self.unit();
        let size = |group: &Group| u64::from(group.block_size);
        let is_fine = self.groups.iter().any(|at| at.kind == GroupKind::Mamba && size(at) > unit)
            && self.groups.iter().all(|at| {
                matches!(at.kind, GroupKind::Full | GroupKind::Mamba) || size(at) == unit
            });
        let sizes = self.groups.iter().filter(|_| !is_fine).map(size);
        let unit = if is_fine { unit } else { self.block };
        sizes.fold(least_common_multiple(self.block, unit), least_common_multiple)
    }

    /// The longest length up to `bound` that every group serves, for a prompt with `room` tokens of complete hashes.
    fn longest(&self, bound: u64, room: u64) -> u64 {
        let step = self.step();
        let mut length = bound.min(self.matched);
        let full = |group: &&Group| self.needs_all_blocks(group);
        let dropped = if self.drops_block() { self.block } else { 0 };
        length = length.min(self.matched.min(room).saturating_sub(dropped));
        for group in self.groups.iter().filter(full) {
            length = length.min(self.reach(group).min(room).saturating_sub(self.more(group)));
        }
        'lengths: loop {
            length -= length % step;
            if length == 0 {
                return 0;
            }
            for group in self.groups.iter().filter(|group| !full(group)) {
                if let Err(Shorter(most)) = self.serves(group, length, room) {
                    length = most.min(length - 1);
                    continue 'lengths;
                }
            }
            return length;
        }
    }

    fn drops_block(&self) -> bool {
        self.facts.eagle_drops_block
    }

    /// Whether a group serves a length only if it holds all blocks of it.
    fn needs_all_blocks(&self, group: &Group) -> bool {
        match group.kind {
            GroupKind::Full => true,
            GroupKind::Chunked => self.facts.attention_chunk_tokens == 0,
            GroupKind::Window | GroupKind::Mamba => false,
        }
    }

    /// Tokens that a group must serve beyond a length, because the engine drops the last block of a hit.
    fn more(&self, group: &Group) -> u64 {
        let is_dropped = self.drops_block() && group.kind != GroupKind::Mamba;
        if is_dropped { group.block_size.into() } else { 0 }
    }

    /// Tokens up to which a group holds all blocks.
    fn reach(&self, group: &Group) -> u64 {
        let size = u64::from(group.block_size);
        let last = self.matched / size * size;
        self.first_missing(group, size, last).map_or(last, |missing| missing - size)
    }

    /// Whether a group holds the blocks that it needs for a length. The blocks furthest from its end are checked first:
    /// a missing one rules out the most lengths.
    fn serves(&self, group: &Group, length: u64, room: u64) -> Result<(), Shorter> {
        let size = u64::from(group.block_size);
        let more = self.more(group);
        if length + more > room {
            return Err(Shorter(room.saturating_sub(more)));
        }
        let chunk = u64::from(self.facts.attention_chunk_tokens).max(1);
        let first = match group.kind {
            GroupKind::Mamba => length.saturating_sub(size),
            GroupKind::Window => {
                let blocks = u64::from(group.window).saturating_sub(1).div_ceil(size);
                length.saturating_sub(blocks * size)
            }
            GroupKind::Chunked => length - length % chunk,
            GroupKind::Full => 0,
        };
        let missing = match group.kind {
            GroupKind::Mamba => self.first_missing(group, length, length),
            GroupKind::Window | GroupKind::Chunked | GroupKind::Full => {
                self.first_missing(group, first + size, length + more)
            }
        };
        missing.map_or(Ok(()), |end| Err(Shorter((end - 1).saturating_sub(more))))
    }

    /// The first block that a group lacks, of those that end after `first` tokens, one block size later, and so on up
    /// to `last`. Returns the tokens after which it ends.
    fn first_missing(&self, group: &Group, first: u64, last: u64) -> Option<u64> {
        let size = u64::from(group.block_size);
        let mut end = first;
        while end <= last {
            if size < self.block && !end.is_multiple_of(self.block) {
                let anchor = end.next_multiple_of(self.block);
                if let Some(missing) = self.first_missing_before(group, anchor, end, last) {
                    return Some(missing);
                }
                end = anchor;
                continue;
            }
            match self.held_from(group, end) {
                0 => return Some(end),
                held => end += held * size,
            }
        }
        None
    }

    /// As [`first_missing`](Self::first_missing), for blocks before the end of a block of the main group, at `anchor`:
    /// follows their links backwards from there.
    fn first_missing_before(
        &self,
        group: &Group,
        anchor: u64,
        first: u64,
        last: u64,
    ) -> Option<u64> {
        let size = u64::from(group.block_size);
        if !(anchor - first).is_multiple_of(size) {
            return Some(first);
        }
        let mut missing = None;
        let mut name = self.name_at(group, anchor);
        let mut end = anchor;
        for _ in 0..=LINKS_MAX {
            let Some(block) = name.and_then(|name| self.block_in(group, name)) else { break };
            let (is_held, before) = block;
            let is_needed = end < anchor && end <= last;
            if is_needed && !is_held {
                missing = Some(end);
            }
            if end == first {
                return missing;
            }
            // The first block of a run is linked to the last block of the run before it, which ends elsewhere.
            let own = |name| Group::name(group.number, name);
            name =
                before.filter(|&name| !self.holder.has_in_main_group(&self.index.trie, own(name)));
            end -= size;
        }
        // The names before a missing link are unknown.
        Some(first)
    }

    /// Number of consecutive blocks that a group holds, from the block on that ends after `end` tokens. If it is not 0, there may
    /// be more.
    fn held_from(&self, group: &Group, end: u64) -> u64 {
        let bits = self.bits_from(group, end);
        match bits {
            0 => u64::from(self.has_record(group, end)),
            _ if u64::from(group.block_size) == self.block => bits,
            _ => 1,
        }
    }

    /// Number of consecutive blocks of the main group for which a group has a bit, from the block on that ends after `end` tokens.
    fn bits_from(&self, group: &Group, end: u64) -> u64 {
        let bits = self.holder.bits();
        if bits.is_empty() || end > self.matched {
            return 0;
        }
        let number = end / self.block;
        if number * self.block != end {
            return 0;
        }
        let slots = u32::try_from(number).ok();
        let slots = slots.and_then(|number| self.blocks.slots(self.index, self.holder, number));
        let (Some(slots), Ok(group)) = (slots, u8::try_from(group.number)) else { return 0 };
        let held = bits.run_in(group, slots.first, self.tiers).min(slots.len);
        u64::from(held).min((self.matched - end) / self.block + 1)
    }

    fn has_record(&self, group: &Group, end: u64) -> bool {
        let block = self.name_at(group, end);
        let block = block.and_then(|name| self.holder.records().grouped_in(name, self.tiers));
        block.is_some_and(|(is_held, _)| is_held)
    }

    /// Whether a block of a group is held, and the name of the block directly before it.
    fn block_in(&self, group: &Group, name: BlockName) -> Option<(bool, Option<BlockName>)> {
        let number = u8::try_from(group.number).ok()?;
        self.holder.grouped_in(&self.index.trie, number, name, self.tiers)
    }

    /// Name of the block of a group that ends with a block of the main group, after `end` tokens; `None` if no block does
    /// or if its name is unknown.
    fn name_at(&self, group: &Group, end: u64) -> Option<BlockName> {
        if end == 0 || end > self.matched || !end.is_multiple_of(self.block) {
            return None;
        }
        let number = u32::try_from(end / self.block).ok()?;
        Some(Group::name(group.number, self.blocks.name(self.index, self.holder, number)?))
    }
}

fn least_common_multiple(a: u64, b: u64) -> u64 {
    if a == b {
        return a;
    }
    (a / greatest_common_divisor(a, b).max(1)).saturating_mul(b)
}

impl Index {
    /// Whether any rank has groups or facts that limit its matches.
    pub(super) fn has_limits(&self) -> bool {
        self.totals.grouped > 0 || self.roles.has_facts()
    }

    /// Leading blocks that all groups of a rank serve, of the `matched` ones in its main group. `None` for a rank
    /// without further groups and facts.
    pub(super) fn limit_match(
        &self,
        holder: HolderId,
        prompt: Prompt,
        tiers: TierSet,
        matched: u32,
        blocks: Blocks<'_>,
    ) -> Option<(u32, Reuse)> {
        let facts = self.roles.facts_of(holder.0);
        let holder = self.holder_at(holder.0)?;
        let groups = holder.records().declared().groups();
        if groups.is_empty() && !facts.limits_matches() {
            return None;
        }
        let block = u64::from(prompt.block_size.max(1));
        let is_single = groups.is_empty();
        let rule = Rule {
            index: self,
            holder,
            facts,
            tiers,
            groups,
            block,
            matched: u64::from(matched) * block,
            blocks,
        };
        let tokens = prompt.tokens.map_or(u64::MAX, u64::from);
        let unit = rule.unit();
        let whole_units = if prompt.tokens.is_some() { tokens / unit * unit } else { tokens };
        let served = rule.longest(tokens, whole_units);
        // An engine always computes the last token.
        let before_last = tokens - u64::from(prompt.tokens.is_some());
        let room = if is_single { before_last } else { whole_units };
        let reused = if before_last >= served && !(is_single && rule.drops_block()) {
            served
        } else {
            rule.longest(before_last, room)
        };
        let replayed = u64::from(facts.replay_tokens);
        let served = if served <= replayed { 0 } else { served };
        let blocks = u32::try_from(served / block).unwrap_or(u32::MAX);
        let tokens = reused.saturating_sub(replayed);
        Some((blocks, Reuse { main_group_blocks: matched, tokens }))
    }

    /// As [`limit_match`](Self::limit_match), of the `all` matched blocks. An engine resumes from one tier, so with
    /// further groups, the tier that serves most counts; `held` has each tier's leading blocks. Tiers with a
    /// connector's chunks do not count then.
    pub(super) fn limit_by_tier(
        &self,
        holder: HolderId,
        prompt: Prompt,
        tiers: TierSet,
        (all, held): (u32, [u32; Tier::COUNT]),
        blocks: Blocks<'_>,
    ) -> Option<(u32, Reuse)> {
        if self.holder_at(holder.0)?.records().declared().groups().is_empty() {
            return self.limit_match(holder, prompt, tiers, all, blocks);
        }
        let chunks = self.roles.chunks_of(holder.0).copied().unwrap_or(NO_CHUNKS);
        let by_tier = Tier::ALL.into_iter().zip(held).zip(chunks);
        let serves = |tier, held, chunk| held > 0 && chunk < 2 && tiers.contains(tier);
        let served = by_tier.filter(|&((tier, held), chunk)| serves(tier, held, chunk));
        let served = served.filter_map(|((tier, held), _)| {
            let tier = TierSet::EMPTY.with(tier);
            self.limit_match(holder, prompt, tier, held.min(all), blocks)
        });
        let best = served.max_by_key(|(blocks, reuse)| (reuse.tokens, *blocks));
        best.or(Some((0, Reuse { main_group_blocks: all, tokens: 0 })))
    }

    /// Number of the leading positions of a match that are in a tier.
    fn leading_in(&self, at: &Match, stretches: &[Stretch], tier: Tier) -> u32 {
        let holds = |stretch: &&Stretch| {
            let set = stretch.sets.get(tier.index());
            set.is_some_and(|&set| self.trie.sets.contains(set, at.holder.0))
        };
        stretches.iter().take_while(holds).last().map_or(0, |last| last.end.min(at.blocks))
    }

    /// Limits the listed ranks to what all their groups serve. Returns `false` if the query is not wanted any more; this
    /// is checked before each rank.
    pub(super) fn limit_matches(
        &self,
        query: Query<'_>,
        pools: Option<&Pools<'_>>,
        used: [bool; Tier::COUNT],
        scratch: &mut Scratch,
        is_wanted: impl Fn() -> bool,
    ) -> bool {
        let tiers = query.tiers;
        let names = query.key.names();
        let Some(prompt) = query.prompt.filter(|_| self.has_limits()) else { return true };
        let Scratch { matches, stretches, runs, positions, minimum_overlap, path, .. } = scratch;
        let per_block = positions.per_block.max(1);
        let mut is_ordered = true;
        for at in matches.iter_mut() {
            if !is_wanted() {
                return false;
            }
            let holder = at.holder;
            let blocks = names.map_or(Blocks::Path(path, per_block), Blocks::Names);
            let before = at.blocks;
            let all = blocks_of(before, per_block, positions.all);
            let leading = |tier: Tier| {
                if !used.get(tier.index()).is_some_and(|&used| used) {
                    return 0;
                }
                blocks_of(self.leading_in(at, stretches, tier), per_block, positions.all)
            };
            let held = Tier::ALL.map(leading);
            let limited = self.limit_by_tier(holder, prompt, tiers, (all, held), blocks);
            let Some((blocks, reuse)) = limited else { continue };
            if blocks < all {
                at.blocks = blocks * per_block;
                self.count_first(at, stretches, (tiers, pools, used), runs, *positions);
            }
            at.reuse = Some(Reuse { main_group_blocks: all, ..reuse });
            is_ordered &= at.blocks == before;
        }
        if !is_ordered {
            matches.retain(|at| at.blocks >= *minimum_overlap);
            self.sort(matches);
        }
        true
    }

    /// Counts a rank's first `blocks` blocks by tier again.
    fn count_first(
        &self,
        at: &mut Match,
        stretches: &[Stretch],
        (tiers, pools, used): (TierSet, Option<&Pools<'_>>, [bool; Tier::COUNT]),
        runs: &mut Vec<Run>,
        positions: Positions,
    ) {
        if let Some(&sizes) = self.roles.chunks_of(at.holder.0) {
            self.replace_runs(at, stretches, tiers, pools, runs);
            *at = Match::of_chunks(at.holder, runs, sizes, positions);
            return;
        }
        *at = Match { blocks: at.blocks, ..Match::none(at.holder) };
        self.count_stretches(at, stretches, used);
    }
}

/// Number of blocks of `positions` positions. If the prompt ends with the first position of its last block, this
/// position is the complete block.
fn blocks_of(positions: u32, per_block: u32, all: u32) -> u32 {
    if positions == all { positions.div_ceil(per_block) } else { positions / per_block }
}
