//! Replaces a source's blocks by the absolute state that the source reports.
//!
//! A dump of a source repairs an index that missed some of its events. The owner marks the source's blocks as
//! suspect ([`Index::mark_suspect`]), applies the names of the dump ([`Index::set_names`]), and drops the
//! blocks that are still suspect ([`Index::drop_suspects`]). The source then has exactly the names and copies
//! of the dump. Between these calls, answers may still credit blocks that the dump does not contain. The
//! owner reports this in the source's state.

use crate::error::IndexError;
use crate::holder::Place;
use crate::index::Index;
use crate::rank::RankChange;
use crate::record::{Announcement, Copies, Record};
use crate::slots::Slot;
use crate::source::{Source, SourceId};
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, DpRank, HeldBlock, StoredBlock, Tier,
};

impl Index {
    /// Sets names of a source to their reported state. If a name repeats, its last report counts. Other
    /// sources keep their blocks, except under a name that now has other content. Owners pass bounded
    /// batches.
    ///
    /// # Errors
    /// If the source is unknown or its worker has too many ranks.
    pub fn set_names(
        &mut self,
        source: SourceId,
        rank: DpRank,
        names: &[HeldBlock],
    ) -> Result<BlockCounts, IndexError> {
        let by = self.announcement(source, Tier::Device)?;
        self.trie.tick();
        let mut change = self.change(source, rank)?;
        change.is_report = true;
        let mut counts = BlockCounts::default();
        names.iter().for_each(|state| counts.add(change.set_name(by, state)));
        if counts.rejected > 0 {
            self.mark_incomplete(source);
        }
        let holder = self.rank_of(source, rank)?;
        self.recount(holder);
        if counts.shed > 0 {
            self.mark_short(holder, counts.shed);
        }
        Ok(counts)
    }

    /// Whether the index lacks blocks that a source stored, because they were rejected or evicted. Only a
    /// clear makes the source complete again.
    #[must_use]
    pub fn lacks_blocks(&self, source: SourceId) -> bool {
        self.source(source).is_ok_and(Source::is_incomplete)
    }

    /// Whether a source has no blocks.
    #[must_use]
    pub fn holds_nothing(&self, source: SourceId) -> bool {
        self.source(source).is_ok_and(|source| source.keys() == 0)
    }
}

impl RankChange<'_> {
    /// Sets a name to the state that its source reports: removes it if it has no copies, else stores it in each tier,
    /// then corrects its copies and parent.
    fn set_name(&mut self, by: Announcement, state: &HeldBlock) -> BlockOutcome {
        let by = |tier| Announcement { tier, mode: CopyMode::Set, ..by };
        if state.copies == [0; Tier::COUNT] {
            return self.withdraw_all(by(Tier::Device), state.name);
        }
        let mut counts = BlockCounts::default();
        // The source reports the name without tokens: its earlier content no longer counts.
        if state.local.is_none() && self.has_content(state.name) {
            counts.add(self.withdraw_all(by(Tier::Device), state.name));
        }
        let held = Tier::ALL.into_iter().zip(state.copies).filter(|(_, copies)| *copies > 0);
        for (number, (tier, _)) in held.enumerate() {
            match state.local {
                // Only the first store sets the position: the parent's name may equal the block's.
                Some(local) if number == 0 => {
                    let block = StoredBlock { name: state.name, local };
                    counts.merge(self.store(by(tier), state.parent, &[block]));
                }
                _ => counts.add(self.store_name(by(tier), state.name)),
            }
            if counts.rejected > 0 {
                return BlockOutcome::Rejected;
            }
            if counts.shed > 0 {
                return BlockOutcome::Shed;
            }
        }
        let corrected = self.correct_name(by(Tier::Device), state);
        if counts.conflict > 0 {
            BlockOutcome::Conflict
        } else if corrected || counts.applied > 0 {
            BlockOutcome::Applied
        } else {
            BlockOutcome::Noop
        }
    }

    /// Whether the content of a name is known.
    fn has_content(&self, name: BlockName) -> bool {
        match self.holder.place(self.trie, name) {
            Place::Unknown => false,
            Place::Plain(_) | Place::Bit(_) => true,
            Place::Recorded => self.holder.records().get(name).is_some_and(|at| at.local.is_some()),
        }
    }

    /// Removes all copies of a name from a source.
    fn withdraw_all(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        let before = self.keys_of(by.source);
        match self.holder.place(self.trie, name) {
            Place::Plain(slot) if self.holder.is_primary(by.source) => {
                self.drop_tiers(by, slot, |_| true);
                self.holder.note_changed(name);
            }
            Place::Unknown | Place::Plain(_) => {}
            Place::Recorded | Place::Bit(_) => {
                for tier in Tier::ALL {
                    let by = Announcement { tier, mode: CopyMode::Set, ..by };
                    self.remove(by, &[name]);
                }
            }
        }
        if self.keys_of(by.source) == before { BlockOutcome::Noop } else { BlockOutcome::Applied }
    }

    /// Removes a plain slot from the tiers that `goes` accepts. Returns whether there were any.
    fn drop_tiers(&mut self, by: Announcement, slot: Slot, goes: impl Fn(Tier) -> bool) -> bool {
        let held = Tier::ALL.map(|tier| self.trie.holds(slot, self.holder.index(), tier));
        let held = Tier::ALL.into_iter().zip(held);
        let mut dropped = false;
        for (tier, _) in held.filter(|&(tier, held)| held && goes(tier)) {
            self.drop_plain(Announcement { tier, ..by }, slot, 1);
            dropped = true;
        }
        dropped
    }

    fn keys_of(&self, source: SourceId) -> u64 {
        self.sources.get(&source).map_or(0, Source::keys)
    }

    /// Removes the tiers in which the source no longer has the name, and corrects its copies and its parent.
    /// Returns whether anything changed.
    fn correct_name(&mut self, by: Announcement, state: &HeldBlock) -> bool {
        let counted = self.sources.get(&by.source).is_some_and(|at| at.mode() == CopyMode::Counted);
        let copies = state.copies.map(|copies| if counted { copies } else { copies.min(1) });
        if let Place::Plain(slot) = self.holder.place(self.trie, state.name) {
            let is_ordinary = copies.iter().all(|copies| *copies <= 1)
                && self.trie.parent_name(slot) == state.parent;
            if is_ordinary {
                let gone = |tier: Tier| copies.get(tier.index()).is_none_or(|at| *at == 0);
                let changed = self.drop_tiers(by, slot, gone);
                if changed {
                    self.holder.note_changed(state.name);
                }
                return changed;
            }
            self.spell_out(slot);
        }
        let is_right = self
            .holder
            .record(self.trie, state.name)
            .is_some_and(|record| record.is_grouped() && record.by_tier(by.source) == copies);
        if is_right {
            return false;
        }
        self.holder.convert_bit(self.trie, state.name);
        self.correct_record(by, state, copies)
    }

    /// As [`correct_name`](Self::correct_name), for a name with a record.
    fn correct_record(
        &mut self,
        by: Announcement,
        state: &HeldBlock,
        copies: [u32; Tier::COUNT],
    ) -> bool {
        let correct = |record: &mut Record| {
            let before = record.clone();
            for (tier, count) in Tier::ALL.into_iter().zip(copies) {
                let same = |at: &Copies| at.source == by.source && at.tier == tier;
                if count == 0 {
                    record.copies.retain(|at| !same(at));
                } else if let Some(at) = record.copies.iter_mut().find(|at| same(at)) {
                    at.count = count;
                }
            }
            if record.slot.is_some() && record.local == state.local {
                record.parent = state.parent;
            }
            (*record != before, record.slot, record.copies.clone(), before)
        };
        let corrected = self.holder.records_mut().change(state.name, correct);
        let Some((changed, slot, after, before)) = corrected else { return false };
        let is_gone = |at: &&Copies| {
            !after.iter().any(|left| (left.source, left.tier) == (at.source, at.tier))
        };
        for gone in before.copies.iter().filter(is_gone) {
            self.record_loss(gone.source, gone.tier, (state.name, before.local));
        }
        self.after_withdrawal(state.name, slot, false);
        changed
    }
}
