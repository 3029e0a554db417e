//! Evicts blocks from the index to meet the byte budget, in bounded slices, least valuable first.
//!
//! Parked names are evicted first, because queries never find them. Then the ends of the least recently
//! stored chains (LRU). A rank may then be credited with fewer blocks than its engine has, never with more.
//! To guarantee this, a rank with evicted blocks rejects blocks with an unknown parent, and places no parked
//! names: in an index with all blocks, the name might have other content by now.

use crate::cursor::ShedCursor;
use crate::holder::{Held, Holder};
use crate::index::Index;
use crate::rank::RankChange;
use crate::record::Announcement;
use crate::segments::Segment;
use crate::sets::HolderIndex;
use crate::slots::Slot;
use crate::table::index_u32;
use kvasir_proto::types::{BlockName, CopyMode, Tier};
use std::cmp::Reverse;

/// Number of chain ends among which a slice selects the least recently stored one.
const LEAVES_SEEN: u32 = 64;
/// Maximum number of segments that a slice checks to find chain ends.
const SEGMENTS_SEEN: u32 = 4_096;

/// Result of one slice of eviction. A slice may find no block; the next one resumes behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shed {
    /// Number of evicted (rank, position) pairs.
    pub pairs: u64,
    /// Number of evicted parked names.
    pub parked: u64,
}

/// Names without a slot that can be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameKind {
    /// Names whose position is unknown.
    Parked,
    /// Names of further groups.
    Grouped,
}

impl NameKind {
    /// Whether a rank has such names.
    const fn is_in(self, holder: &Holder) -> bool {
        match self {
            Self::Parked => holder.parked() > 0,
            // Declarations stay.
            Self::Grouped => holder.records().grouped() > holder.records().declared().len(),
        }
    }
}

impl Index {
    /// Evicts about `budget` entries, of the first kind that there is:
    ///
    /// 1. parked names;
    /// 2. records of further groups, while there are more of them than positions in the trie;
    /// 3. (rank, position) pairs at the end of a chain, for every rank that holds it. The chain is the least recently stored
    ///    among some candidates.
    ///
    /// The sources of ranks with evicted blocks are partial until they are cleared.
    pub fn shed(&mut self, budget: usize) -> Shed {
        let budget = budget.max(1);
        if self.totals.parked > 0 {
            return Shed { parked: self.shed_names(budget, NameKind::Parked), pairs: 0 };
        }
        if self.totals.grouped > self.trie.slots.used() {
            return Shed { parked: self.shed_names(budget, NameKind::Grouped), pairs: 0 };
        }
        let pairs = self.coldest_leaf().map_or(0, |leaf| self.shed_tail(leaf, budget));
        Shed { pairs, parked: 0 }
    }

    // === names without a slot ===

    /// Evicts names of one kind in one part of one rank's records. Returns their number, which may be 0 although
    /// other parts have such names.
    fn shed_names(&mut self, budget: usize, kind: NameKind) -> u64 {
        let has_names = |holder: &Holder| kind.is_in(holder);
        let from = self.shedding.holder;
        if !self.holder_at(from).is_some_and(has_names) {
            let ranks = || self.holders.iter().flatten().filter(|at| has_names(at));
            let next = ranks().find(|at| at.index() > from).or_else(|| ranks().next());
            let Some(next) = next else {
                return 0;
            };
            self.shedding = ShedCursor { holder: next.index(), part: 0, ..self.shedding };
        }
        let ShedCursor { holder, part, .. } = self.shedding;
        let Some(names) = self.names_of(holder, part, kind, budget) else {
            self.shedding.part = 0;
            return 0;
        };
        if names.len() < budget {
            self.shedding.part += 1;
        }
        let Some(mut change) = self.change_of(holder) else {
            return 0;
        };
        for &name in &names {
            let placed = change.take_record(name);
            debug_assert!(placed.is_none(), "{name} has no slot");
        }
        let dropped = names.len() as u64;
        self.note_shed(holder, dropped);
        dropped
    }

    /// Names of one kind in one part of a rank's records, at most `most`; `None` after the last part.
    fn names_of(
        &self,
        holder: HolderIndex,
        part: usize,
        kind: NameKind,
        most: usize,
    ) -> Option<Vec<BlockName>> {
        let records = self.holder_at(holder)?.records();
        match kind {
            NameKind::Parked => Some(records.parked_in_part(part)?.take(most).collect()),
            NameKind::Grouped => Some(records.grouped_in_part(part)?.take(most).collect()),
        }
    }

    // === ends of chains ===

    /// Among the next chain ends, the least recently stored one; among equals, the deepest.
    fn coldest_leaf(&mut self) -> Option<Segment> {
        let segments = &self.trie.segments;
        let numbers = segments.numbers();
        let mut coldest: Option<Segment> = None;
        let mut leaves = 0;
        for _ in 0..SEGMENTS_SEEN.min(numbers) {
            let at = self.shedding.segment;
            self.shedding.segment = if at + 1 < numbers { at + 1 } else { 0 };
            let Some(segment) = (at < numbers).then(|| segments.get(at)) else {
                continue;
            };
            if segment.len == 0 || segment.children > 0 {
                continue;
            }
            let order = |at: &Segment| (at.stored, Reverse(at.depth + at.len));
            if coldest.as_ref().is_none_or(|coldest| order(segment) < order(coldest)) {
                coldest = Some(*segment);
            }
            leaves += 1;
            if leaves == LEAVES_SEEN {
                break;
            }
        }
        coldest
    }

    /// Evicts the last slots of a segment without children, for all its holders, or for some if they exceed
    /// the budget. Returns the number of (rank, block) pairs.
    fn shed_tail(&mut self, leaf: Segment, budget: usize) -> u64 {
        let mut ranks = vec![0; self.present.len()];
        leaf.sets.iter().for_each(|&set| self.trie.sets.union_into(set, &mut ranks));
        let holders: u32 = ranks.iter().map(|word| word.count_ones()).sum();
        let each = u32::try_from(budget).unwrap_or(u32::MAX) / holders.max(1);
        let len = each.clamp(1, leaf.len);
        let end = leaf.tail() + 1;
        let mut pairs = 0;
        for (word, mut bits) in (0..).zip(ranks) {
            while bits != 0 && pairs < budget.max(1) as u64 {
                let holder = index_u32(word * 64) + bits.trailing_zeros();
                bits &= bits - 1;
                if let Some(mut change) = self.change_of(holder) {
                    let dropped = change.shed_run(end - len, end);
                    self.note_shed(holder, dropped);
                    pairs += dropped;
                }
            }
        }
        pairs
    }

    fn note_shed(&mut self, holder: HolderIndex, dropped: u64) {
        self.recount(holder);
        if dropped > 0 {
            self.mark_short(holder, dropped);
        }
    }
}

impl RankChange<'_> {
    /// Evicts all blocks of the rank in consecutive slots. Returns their number.
    fn shed_run(&mut self, first: Slot, end: Slot) -> u64 {
        let mut dropped = 0;
        let mut slot = first;
        while let Some(held) = self.next_held(slot, end, end - slot) {
            match held {
                Held::Recorded(at, names) => {
                    self.shed_bits(at, 1);
                    for name in names {
                        self.take_record(name);
                    }
                    self.update_slot(at);
                    (slot, dropped) = (at + 1, dropped + 1);
                }
                Held::Plain(at, len) => {
                    self.shed_bits(at, len);
                    self.shed_plain(at, len);
                    (slot, dropped) = (at + len, dropped + u64::from(len));
                }
            }
        }
        dropped
    }

    /// Evicts the blocks of further groups that have bits at consecutive slots: as records, they would take more memory.
    fn shed_bits(&mut self, slot: Slot, len: u32) {
        let Some(source) = self.holder.primary() else {
            return;
        };
        for at in self.holder.take_bits(slot, len) {
            let name = Holder::name_of_bit(self.trie, at);
            self.record_loss(source, at.kind.tier, (name, Some(at.local())));
            self.holder.note_changed(name);
        }
    }

    /// Evicts consecutive plain slots of one segment.
    fn shed_plain(&mut self, slot: Slot, len: u32) {
        let Some(source) = self.holder.primary() else {
            return;
        };
        let names = self.trie.slots.names(slot, len).iter().map(|&name| BlockName(name));
        self.holder.note_changed_plain(names);
        for tier in Tier::ALL {
            if self.trie.slots.is_used(slot) && self.trie.holds(slot, self.holder.index(), tier) {
                let by = Announcement { source, tier, mode: CopyMode::Set, epoch: 0 };
                self.trie.touch_run(slot, len);
                self.drop_plain(by, slot, len);
            }
        }
    }
}
