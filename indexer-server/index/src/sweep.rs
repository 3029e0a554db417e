//! Sweeps: drops all blocks of a source, or all suspect ones, in bounded slices.

use crate::bits::BitBlock;
use crate::cursor::{Kind, SweepCursor};
use crate::error::IndexError;
use crate::holder::Held;
use crate::index::Index;
use crate::rank::RankChange;
use crate::record::{Announcement, Copies, Record};
use crate::slots::{PAGE_SLOTS, Page, Slot};
use crate::source::SourceId;
use kvasir_proto::types::{BlockName, BlockOutcome, CopyMode, DpRank, Tier};
use smallvec::SmallVec;

/// Result of one slice of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cleared {
    /// Number of (name, tier) keys dropped in this slice.
    pub removed: u64,
    /// Whether the sweep is complete. If not, call again.
    pub done: bool,
}

/// Spent part of a slice's budget.
#[derive(Debug)]
struct Spent {
    /// Number of (name, tier) keys dropped.
    removed: u64,
    /// Number of parts of records and pages read; each counts against the budget.
    parts_read: u64,
    budget: u64,
}

impl Spent {
    /// Remaining budget of the slice.
    fn budget_left(&self) -> usize {
        let left = self.budget.saturating_sub(self.removed + self.parts_read);
        usize::try_from(left).unwrap_or(usize::MAX)
    }
}

impl Index {
    /// Drops a source's blocks of one rank, or of all ranks, at most about `budget` blocks per call. Aborts
    /// the dumps of the ranks.
    ///
    /// # Errors
    /// If the source is unknown.
    pub fn clear_source(
        &mut self,
        source: SourceId,
        rank: Option<DpRank>,
        budget: usize,
    ) -> Result<Cleared, IndexError> {
        self.sweep(source, rank, Kind::All, budget)
    }

    /// Drops a source's blocks of one rank in one tier, at most about `budget` blocks per call. Aborts the
    /// dumps of the rank.
    ///
    /// # Errors
    /// If the source is unknown.
    pub fn clear_tier(
        &mut self,
        source: SourceId,
        rank: DpRank,
        tier: Tier,
        budget: usize,
    ) -> Result<Cleared, IndexError> {
        self.sweep(source, Some(rank), Kind::InTier(tier), budget)
    }

    /// Marks a source's blocks as suspect until they are announced again, because events were lost.
    pub fn mark_suspect(&mut self, source: SourceId) {
        let Some(at) = self.sources.get_mut(&source) else {
            return;
        };
        at.raise_epoch();
        let ranks = at.ranks().to_vec();
        for (_, holder) in ranks {
            let Some(Some(holder)) = self.holders.get_mut(holder as usize) else {
                continue;
            };
            if holder.is_primary(source) {
                holder.suspect_plain();
                let index = holder.index();
                self.recount(index);
            }
        }
    }

    /// Drops the blocks of a source that are still suspect, at most about `budget` blocks per call.
    ///
    /// # Errors
    /// If the source is unknown.
    pub fn drop_suspects(
        &mut self,
        source: SourceId,
        budget: usize,
    ) -> Result<Cleared, IndexError> {
        self.sweep(source, None, Kind::Suspects, budget)
    }

    fn sweep(
        &mut self,
        id: SourceId,
        only: Option<DpRank>,
        kind: Kind,
        budget: usize,
    ) -> Result<Cleared, IndexError> {
        self.source(id)?;
        let started = self.sources.get_mut(&id).and_then(|source| source.sweep.take());
        let started = started.filter(|at| at.kind == kind && at.only == only);
        let mut cursor = started.unwrap_or(SweepCursor::start_at(kind, only, 0));
        let mut spent = Spent { removed: 0, parts_read: 0, budget: budget.max(1) as u64 };
        let mut done = true;
        while let Some(&(rank, holder)) = self.source(id)?.ranks().get(cursor.rank) {
            if only.is_none_or(|only| only == rank) {
                let by = self.announcement(id, Tier::Device)?;
                let mut change = self.change(id, rank)?;
                let swept = change.sweep(by, &mut cursor, &mut spent);
                if swept && kind == Kind::All {
                    change.holder.clear_shortfall(id);
                    change.holder.clear_contradictions_if_empty();
                    change.holder.forget_reuse();
                }
                self.recount(holder);
                if !swept {
                    done = false;
                    break;
                }
            }
            cursor = SweepCursor::start_at(kind, only, cursor.rank + 1);
        }
        if let Some(source) = self.sources.get_mut(&id) {
            source.sweep = (!done).then_some(cursor);
        }
        if done && (kind == Kind::Suspects || self.source(id)?.keys() == 0) {
            self.clear_suspects(id);
        }
        if done && kind == Kind::All {
            self.complete_if_empty(id, only.is_none());
            self.recount_short_ranks(id);
        }
        Ok(Cleared { removed: spent.removed, done })
    }
}

impl RankChange<'_> {
    /// Sweeps one rank. Returns `false` if the budget is used up before the end.
    fn sweep(&mut self, by: Announcement, cursor: &mut SweepCursor, spent: &mut Spent) -> bool {
        self.holder.dumps_mut().abort("the worker was cleared");
        if cursor.kind == Kind::All && self.sources.get(&by.source).is_some_and(|at| at.keys() > 0)
        {
            // A complete image of the remaining blocks is smaller than notes of all dropped ones.
            self.holder.changes_mut().discard_notes();
        }
        while let Some(blocks) = self.bits_to_drop(by, cursor, spent.budget_left()) {
            if spent.budget_left() == 0 {
                return false;
            }
            // Dropped blocks do not appear again when the rest of the part is read.
            let is_rest = blocks.len() == spent.budget_left();
            for at in blocks {
                let dropped = self.withdraw_bit(Announcement { tier: at.kind.tier, ..by }, at);
                spent.removed += u64::from(dropped == BlockOutcome::Applied);
            }
            if !is_rest {
                cursor.bit_part += 1;
            }
            spent.parts_read += 1;
        }
        while let Some(names) = self.part_to_drop(by, cursor, spent.budget_left()) {
            if spent.budget_left() == 0 {
                return false;
            }
            // Dropped names do not appear again when the rest of the part is read.
            let is_rest = names.len() == spent.budget_left();
            for name in names {
                spent.removed += self.drop_recorded(by, cursor.kind, name);
            }
            if !is_rest {
                cursor.part += 1;
            }
            spent.parts_read += 1;
        }
        if !self.holder.is_primary(by.source) {
            spent.removed += self.drop_declarations(by, cursor.kind);
            return true;
        }
        // Slots that another source has changed to records since the records were read are found here.
        loop {
            if spent.budget_left() == 0 {
                return false;
            }
            let Some(page) = cursor.pages.pop() else {
                let Some(part) = self.holder.pages(cursor.page_part) else {
                    break;
                };
                cursor.pages.extend(part);
                cursor.page_part += 1;
                continue;
            };
            spent.removed += self.sweep_page(by, cursor.kind, page);
            spent.parts_read += 1;
        }
        spent.removed += self.drop_declarations(by, cursor.kind);
        if cursor.kind == Kind::Suspects {
            self.holder.settle_suspects();
        }
        true
    }

    /// Drops the source's declarations of groups: at most a few for each group. Returns the number of dropped keys.
    fn drop_declarations(&mut self, by: Announcement, kind: Kind) -> u64 {
        let declared: Vec<BlockName> = self.holder.records().declared().names().collect();
        declared.into_iter().map(|name| self.drop_recorded(by, kind, name)).sum()
    }

    /// Sweeps one page of slots. Returns the number of dropped keys.
    fn sweep_page(&mut self, by: Announcement, kind: Kind, page: Page) -> u64 {
        let mut removed = 0;
        let mut slot = page * PAGE_SLOTS;
        let end = slot + PAGE_SLOTS;
        // Slots are suspect individually.
        let run_max = if kind == Kind::Suspects { 1 } else { PAGE_SLOTS };
        while let Some(held) = self.next_held(slot, end, run_max) {
            match held {
                Held::Recorded(at, names) => {
                    for name in names {
                        removed += self.drop_recorded(by, kind, name);
                    }
                    slot = at + 1;
                }
                Held::Plain(at, len) => {
                    removed += self.drop_run(by, kind, at, len);
                    slot = at + len;
                }
            }
        }
        removed
    }

    /// Blocks of one part of the bits that the sweep drops, at most `most`; `None` after the last part.
    fn bits_to_drop(
        &self,
        by: Announcement,
        cursor: &SweepCursor,
        most: usize,
    ) -> Option<Vec<BitBlock>> {
        let is_dropped = |at: &BitBlock| cursor.kind.drops(at.kind.tier, at.kind.epoch < by.epoch);
        let bits = Some(self.holder.bits()).filter(|_| self.holder.is_primary(by.source))?;
        Some(bits.part(cursor.bit_part)?.filter(is_dropped).take(most).collect())
    }

    /// Names of one part of the records that the sweep drops, at most `most`; `None` after the last part.
    fn part_to_drop(
        &self,
        by: Announcement,
        cursor: &SweepCursor,
        most: usize,
    ) -> Option<Vec<BlockName>> {
        let drops =
            |at: &Copies| at.source == by.source && cursor.kind.drops(at.tier, at.epoch < by.epoch);
        let part = self.holder.records().part(cursor.part)?;
        // Declarations go last, because they limit the matches of the blocks that are left.
        let is_block = |name: BlockName| !self.holder.records().declared().has(name);
        let dropped =
            part.filter(|(name, record)| is_block(*name) && record.copies.iter().any(drops));
        Some(dropped.map(|(name, _)| name).take(most).collect())
    }

    fn drop_run(&mut self, by: Announcement, kind: Kind, slot: Slot, len: u32) -> u64 {
        let mut removed = 0;
        let tiers = Tier::ALL.map(|tier| {
            let drops = kind.drops(tier, self.holder.is_suspect(slot, tier));
            (tier, drops && self.trie.holds(slot, self.holder.index(), tier))
        });
        for (tier, _) in tiers.into_iter().filter(|&(_, drop)| drop) {
            self.trie.touch_run(slot, len);
            self.drop_plain(Announcement { tier, ..by }, slot, len);
            removed += u64::from(len);
        }
        removed
    }

    fn drop_recorded(&mut self, by: Announcement, kind: Kind, name: BlockName) -> u64 {
        let mut dropped = SmallVec::<[Tier; 1]>::new();
        let drop = |record: &mut Record| {
            for tier in Tier::ALL {
                let drops = |at: &Copies| kind.drops(tier, at.epoch < by.epoch);
                if record.find(by.source, tier).is_some_and(drops) {
                    record.withdraw(Announcement { tier, mode: CopyMode::Set, ..by });
                    dropped.push(tier);
                }
            }
            (record.local, record.slot, record.copies.is_empty())
        };
        let changed = self.holder.records_mut().change(name, drop);
        let Some((local, slot, is_gone)) = changed else { return 0 };
        for &tier in &dropped {
            self.record_loss(by.source, tier, (name, local));
        }
        self.after_withdrawal(name, slot, is_gone);
        dropped.len() as u64
    }
}
