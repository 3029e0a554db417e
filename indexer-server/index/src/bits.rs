//! One bit for each block of a further group whose engine's name is also the name of a slot. The bit belongs to that slot.

use crate::slots::{PAGE_SLOTS, Page, Slot, page_of};
use crate::table::SplitMap;
use kvasir_proto::types::{BlockName, Group, LocalHash, Tier, TierSet};

/// Maximum number of kinds with blocks. Blocks of further kinds have records.
const KINDS_MAX: usize = 64;
const KIND_BITS: u32 = 6;
/// Parts of a sub-table of pages, so that no part has very many blocks.
const SHARES: usize = 32;

/// What the blocks of one kind have in common. Each has one copy of the rank's primary source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitKind {
    /// Number of the group.
    pub(crate) group: u8,
    pub(crate) tier: Tier,
    /// The source's loss epoch at the announcement.
    pub(crate) epoch: u32,
    /// Whether each block was announced with the parent that its slot has; else without a parent.
    pub(crate) has_parent: bool,
}

/// A block of a further group that has a bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitBlock {
    pub(crate) slot: Slot,
    pub(crate) kind: BitKind,
}

impl BitBlock {
    /// The mark of its group, in place of a local hash.
    pub(crate) const fn local(self) -> LocalHash {
        Group::block(self.kind.group as u32, BlockName(0)).local
    }
}

/// The blocks of one rank. The rank holds each of the slots.
#[derive(Debug, Default)]
pub(crate) struct GroupBits {
    /// Kinds by number, each with its number of blocks. The number of a kind without blocks is used again.
    kinds: Vec<(BitKind, usize)>,
    groups: Vec<u8>,
    /// Bits of a page's slots, by page and number of the kind.
    pages: SplitMap<u64, u64>,
    blocks: usize,
}

fn key(page: Page, kind: usize) -> u64 {
    u64::from(page) << KIND_BITS | kind as u64
}

const fn bit(slot: Slot) -> u64 {
    1 << (slot % PAGE_SLOTS)
}

/// Slots of a page's bits.
fn slots_of(page: Page, bits: u64) -> impl Iterator<Item = Slot> {
    (0..PAGE_SLOTS).filter(move |at| bits >> at & 1 == 1).map(move |at| page * PAGE_SLOTS + at)
}

// === reading ===

impl GroupBits {
    pub(crate) const fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// The kinds that have blocks, with their numbers.
    fn live(&self) -> impl Iterator<Item = (usize, BitKind)> {
        let live = self.kinds.iter().enumerate().filter(|(_, (_, blocks))| *blocks > 0);
        live.map(|(number, (kind, _))| (number, *kind))
    }

    /// Numbers of the groups that have or had blocks, each once.
    pub(crate) fn groups(&self) -> &[u8] {
        &self.groups
    }

    /// The block of a group at a slot.
    pub(crate) fn find(&self, group: u8, slot: Slot) -> Option<BitBlock> {
        let mut kinds = self.live().filter(|(_, kind)| kind.group == group);
        let (_, kind) = kinds.find(|&(number, _)| self.is_set(number, slot))?;
        Some(BitBlock { slot, kind })
    }

    /// Number of consecutive slots, from this one to at most the end of its page, at which a group has a block in one of `tiers`.
    pub(crate) fn run_in(&self, group: u8, slot: Slot, tiers: TierSet) -> u32 {
        let is_wanted = |kind: &BitKind| kind.group == group && tiers.contains(kind.tier);
        let wanted = self.live().filter(|(_, kind)| is_wanted(kind));
        let bits = wanted.filter_map(|(number, _)| self.pages.get(key(page_of(slot), number)));
        let bits = bits.fold(0, |all, bits| all | bits);
        (bits >> (slot % PAGE_SLOTS)).trailing_ones()
    }

    fn is_set(&self, kind: usize, slot: Slot) -> bool {
        let bits = self.pages.get(key(page_of(slot), kind));
        bits.is_some_and(|bits| bits & bit(slot) != 0)
    }

    /// One part of the blocks, about 4,000 at most; `None` after the last part. Iterating the numbers from 0 visits every block
    /// that stays at least once, even if others are added and removed meanwhile.
    pub(crate) fn part(&self, part: usize) -> Option<impl Iterator<Item = BitBlock>> {
        let share = (part % SHARES) as u64;
        let is_of_share = move |(key, _): &&(u64, u64)| (key >> KIND_BITS) % SHARES as u64 == share;
        let entries = self.pages.part(part / SHARES)?.filter(is_of_share);
        Some(entries.flat_map(|&(key, bits)| self.blocks_of(key, bits)))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = BitBlock> {
        self.pages.iter().flat_map(|&(key, bits)| self.blocks_of(key, bits))
    }

    fn blocks_of(&self, key: u64, bits: u64) -> impl Iterator<Item = BitBlock> + use<> {
        let number = usize::try_from(key & ((1 << KIND_BITS) - 1)).ok();
        let kind = number.and_then(|number| self.kinds.get(number)).map(|(kind, _)| *kind);
        let page = Page::try_from(key >> KIND_BITS).ok();
        let blocks =
            move |(kind, page)| slots_of(page, bits).map(move |slot| BitBlock { slot, kind });
        kind.zip(page).into_iter().flat_map(blocks)
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.kinds.capacity() * size_of::<(BitKind, usize)>()
            + self.groups.capacity()
            + self.pages.bytes()
    }

    /// Whether the counts equal the numbers of bits, and no kind is listed twice.
    pub(crate) fn is_counted(&self) -> bool {
        let is_once = |kind| self.live().filter(|(_, other)| *other == kind).count() == 1;
        let counted: usize = self.kinds.iter().map(|(_, blocks)| blocks).sum();
        self.pages.is_counted()
            && self.live().all(|(_, kind)| is_once(kind))
            && counted == self.blocks
            && self.iter().count() == self.blocks
    }
}

// === changing ===

impl GroupBits {
    /// Adds a block, which must not exist in its group. Returns `false` if there are too many kinds.
    pub(crate) fn add(&mut self, block: BitBlock) -> bool {
        let BitBlock { slot, kind } = block;
        debug_assert!(self.find(kind.group, slot).is_none(), "one block of a group at slot {slot}");
        let Some(number) = self.number_of(kind) else { return false };
        *self.pages.get_or_default(key(page_of(slot), number)) |= bit(slot);
        self.blocks += 1;
        if let Some((_, blocks)) = self.kinds.get_mut(number) {
            *blocks += 1;
        }
        true
    }

    /// The number of a kind, which is added if it is new. `None` if there are too many.
    fn number_of(&mut self, kind: BitKind) -> Option<usize> {
        if let Some(number) = self.kinds.iter().position(|(known, _)| *known == kind) {
            return Some(number);
        }
        let free = self.kinds.iter().position(|(_, blocks)| *blocks == 0);
        let number = free.unwrap_or(self.kinds.len());
        match self.kinds.get_mut(number) {
            Some(free) => *free = (kind, 0),
            None if number == KINDS_MAX => return None,
            None => self.kinds.push((kind, 0)),
        }
        if !self.groups.contains(&kind.group) {
            self.groups.push(kind.group);
        }
        Some(number)
    }

    /// Removes a block. Returns whether it existed.
    pub(crate) fn remove(&mut self, block: BitBlock) -> bool {
        let BitBlock { slot, kind } = block;
        let number = self.kinds.iter().position(|(known, _)| *known == kind);
        number.is_some_and(|number| self.clear(number, page_of(slot), bit(slot)) != 0)
    }

    /// Removes the blocks of consecutive slots, and returns them.
    pub(crate) fn take_run(&mut self, first: Slot, len: u32) -> Vec<BitBlock> {
        let mut taken = Vec::new();
        if self.is_empty() || len == 0 {
            return taken;
        }
        let live: Vec<_> = self.live().collect();
        for page in page_of(first)..=page_of(first + len - 1) {
            let run = slots_of(page, u64::MAX).filter(|slot| (first..first + len).contains(slot));
            let run = run.fold(0, |bits, slot| bits | bit(slot));
            for &(number, kind) in &live {
                let bits = self.clear(number, page, run);
                taken.extend(slots_of(page, bits).map(|slot| BitBlock { slot, kind }));
            }
        }
        taken
    }

    /// Clears `bits` of a page. Returns the bits that were set.
    fn clear(&mut self, kind: usize, page: Page, bits: u64) -> u64 {
        let Some(set) = self.pages.get_mut(key(page, kind)) else { return 0 };
        let cleared = *set & bits;
        *set &= !bits;
        if *set == 0 {
            self.pages.remove(key(page, kind));
        }
        let count = cleared.count_ones() as usize;
        self.blocks -= count;
        if let Some((_, blocks)) = self.kinds.get_mut(kind) {
            *blocks -= count;
        }
        cleared
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn kind(group: u8, epoch: u32) -> BitKind {
        BitKind { group, tier: Tier::Device, epoch, has_parent: false }
    }

    #[test]
    fn kinds_beyond_the_limit_are_refused_until_one_is_empty() {
        let mut bits = GroupBits::default();
        let block = |number: usize| {
            let number = u32::try_from(number).expect("small");
            BitBlock { slot: number, kind: kind(3, number) }
        };
        for number in 0..KINDS_MAX {
            assert!(bits.add(block(number)), "{number}");
        }
        assert!(!bits.add(block(KINDS_MAX)));
        assert!(bits.is_counted() && bits.find(3, block(KINDS_MAX).slot).is_none());
        assert!(bits.remove(block(7)) && !bits.remove(block(7)));
        assert!(bits.add(block(KINDS_MAX)));
        assert_eq!(bits.find(3, block(KINDS_MAX).slot), Some(block(KINDS_MAX)));
        assert!(bits.is_counted());
    }

    #[test]
    fn parts_have_all_blocks_and_no_part_is_large() {
        let mut bits = GroupBits::default();
        let slots = 0..1_000_000_u32;
        for slot in slots.clone() {
            assert!(bits.add(BitBlock { slot, kind: kind(1, 0) }));
        }
        let parts = (0..).map_while(|part| Some(bits.part(part)?.collect::<Vec<_>>()));
        let parts: Vec<_> = parts.collect();
        assert!(parts.iter().all(|part| part.len() <= 6_000), "parts are small");
        let seen: Vec<_> = parts.into_iter().flatten().map(|block| block.slot).collect();
        assert_eq!(seen.len(), slots.len());
        assert!(seen.into_iter().collect::<BTreeSet<_>>().into_iter().eq(slots.clone()));
        assert!(bits.bytes() < slots.len(), "less than a byte for each: {}", bits.bytes());
        assert_eq!(bits.take_run(5, 999_990).len(), 999_990);
        let left: BTreeSet<_> = bits.iter().map(|block| block.slot).collect();
        assert_eq!(
            left.into_iter().collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 999_995, 999_996, 999_997, 999_998, 999_999]
        );
        assert!(bits.is_counted());
    }
}
