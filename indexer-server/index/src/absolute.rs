//! Absolute state: what a source says it holds now, whatever the index holds of it.
//!
//! A dump of a source heals an index that missed some of its events. The owner marks all that the
//! source holds as doubtful ([`Index::mark_suspect`]), hands in what the dump says of each name
//! ([`Index::set_names`]), and drops what is still doubtful ([`Index::drop_suspects`]): the source
//! then holds just the names of the dump, with just its copies. Between these calls nothing that
//! the dump does not confirm goes, so an answer may still credit it; the owner says so in the
//! source's state.

use crate::error::IndexError;
use crate::holder::Place;
use crate::index::Index;
use crate::rank::RankChange;
use crate::record::{Announcement, Copies};
use crate::slots::Slot;
use crate::source::{Source, SourceId};
use kvasir_proto::types::{
    BlockCounts, BlockName, BlockOutcome, CopyMode, DpRank, HeldBlock, StoredBlock, Tier,
};

impl Index {
    /// Brings names of a source to the state that it says, each counted once; what is said later
    /// of a name replaces what was said before. What other sources hold is not touched, but for a
    /// name that stands for other content by now. Owners hand in a bounded batch.
    ///
    /// # Errors
    /// If the source is not known or its worker has too many ranks.
    pub fn set_names(
        &mut self,
        source: SourceId,
        rank: DpRank,
        names: &[HeldBlock],
    ) -> Result<BlockCounts, IndexError> {
        let by = self.announcement(source, Tier::Device)?;
        self.trie.tick();
        let mut change = self.change(source, rank)?;
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

    /// Whether blocks that a source stored are not held: refused, or shed. Only once it is cleared
    /// it can be whole again.
    #[must_use]
    pub fn lacks_blocks(&self, source: SourceId) -> bool {
        self.source(source).is_ok_and(Source::is_incomplete)
    }
}

impl RankChange<'_> {
    fn set_name(&mut self, by: Announcement, state: &HeldBlock) -> BlockOutcome {
        let by = |tier| Announcement { tier, mode: CopyMode::Set, ..by };
        if state.copies == [0; Tier::COUNT] {
            return self.withdraw_all(by(Tier::Device), state.name);
        }
        let mut counts = BlockCounts::default();
        if state.local.is_none() && self.has_content(state.name) {
            counts.add(self.withdraw_all(by(Tier::Device), state.name));
        }
        let held = Tier::ALL.into_iter().zip(state.copies).filter(|(_, copies)| *copies > 0);
        for (number, (tier, _)) in held.enumerate() {
            match state.local {
                // Where it stands is said once: its parent's name may be its own.
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
        let corrected = self.correct(by(Tier::Device), state);
        if counts.conflict > 0 {
            BlockOutcome::Conflict
        } else if corrected || counts.applied > 0 {
            BlockOutcome::Applied
        } else {
            BlockOutcome::Noop
        }
    }

    /// Whether it is known what a name stands for.
    fn has_content(&self, name: BlockName) -> bool {
        match self.holder.place(self.trie, name) {
            Place::Unknown => false,
            Place::Plain(_) => true,
            Place::Recorded => self.holder.records().get(name).is_some_and(|at| at.local.is_some()),
        }
    }

    /// Drops all that a source holds of a name.
    fn withdraw_all(&mut self, by: Announcement, name: BlockName) -> BlockOutcome {
        let before = self.keys_of(by.source);
        match self.holder.place(self.trie, name) {
            Place::Plain(slot) if self.holder.is_primary(by.source) => {
                self.drop_tiers(by, slot, |_| true);
                self.holder.touch(name);
            }
            Place::Unknown | Place::Plain(_) => {}
            Place::Recorded => {
                for tier in Tier::ALL {
                    let by = Announcement { tier, mode: CopyMode::Set, ..by };
                    self.remove(by, &[name]);
                }
            }
        }
        if self.keys_of(by.source) == before { BlockOutcome::Noop } else { BlockOutcome::Applied }
    }

    /// Ends the holding of a plain slot in those tiers that are to go; whether there were any.
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

    /// Takes back the tiers in which an announced name is not held, and puts its copies and its
    /// parent right. Whether anything changed.
    fn correct(&mut self, by: Announcement, state: &HeldBlock) -> bool {
        let counted = self.sources.get(&by.source).is_some_and(|at| at.mode() == CopyMode::Counted);
        let copies = state.copies.map(|copies| if counted { copies } else { copies.min(1) });
        if let Place::Plain(slot) = self.holder.place(self.trie, state.name) {
            let is_ordinary = copies.iter().all(|copies| *copies <= 1)
                && self.trie.parent_name(slot) == state.parent;
            if is_ordinary {
                let gone = |tier: Tier| copies.get(tier.index()).is_none_or(|at| *at == 0);
                let changed = self.drop_tiers(by, slot, gone);
                if changed {
                    self.holder.touch(state.name);
                }
                return changed;
            }
            self.spell_out(slot);
        }
        self.correct_record(by, state, copies)
    }

    fn correct_record(
        &mut self,
        by: Announcement,
        state: &HeldBlock,
        copies: [u32; Tier::COUNT],
    ) -> bool {
        let Some(record) = self.holder.records_mut().get_mut(state.name) else { return false };
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
        let changed = *record != before;
        let (slot, after) = (record.slot, record.copies.clone());
        let is_gone = |at: &&Copies| {
            !after.iter().any(|left| (left.source, left.tier) == (at.source, at.tier))
        };
        for gone in before.copies.iter().filter(is_gone) {
            self.lose(gone.source, gone.tier, (state.name, before.local));
        }
        self.after_withdrawal(state.name, slot, false);
        changed
    }
}
