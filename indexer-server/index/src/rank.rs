//! A rank during a change, and the basic operations of all changes.

use crate::holder::{Held, Holder};
use crate::index::Index;
use crate::limits::Limits;
use crate::sets::HolderIndex;
use crate::slots::Slot;
use crate::source::{Source, SourceId};
use crate::trie::Trie;
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::types::{BlockName, LocalHash, StoredBlock, Tier};
use std::collections::BTreeMap;

/// A name and its local hash, if known.
pub(crate) type Content = (BlockName, Option<LocalHash>);

/// A rank during a change, with the data that it shares with other ranks.
#[derive(Debug)]
pub(crate) struct RankChange<'a> {
    pub(crate) trie: &'a mut Trie,
    pub(crate) holder: &'a mut Holder,
    pub(crate) sources: &'a mut BTreeMap<SourceId, Source>,
    pub(crate) limits: &'a Limits,
    /// Whether a store may change the meaning of a held name, because it belongs to a complete report of its
    /// source.
    pub(crate) is_report: bool,
}

impl Index {
    /// Borrows a rank for changes.
    pub(crate) fn change_of(&mut self, holder: HolderIndex) -> Option<RankChange<'_>> {
        let holder = self.holders.get_mut(holder as usize)?.as_deref_mut()?;
        Some(RankChange {
            trie: &mut self.trie,
            holder,
            sources: &mut self.sources,
            limits: &self.limits,
            is_report: false,
        })
    }
}

impl RankChange<'_> {
    /// Loss epoch of the source that plain slots belong to.
    pub(crate) fn primary_epoch(&self) -> u32 {
        let primary = self.holder.primary().and_then(|id| self.sources.get(&id));
        primary.map_or(0, Source::epoch)
    }

    /// Counts (name, tier) keys added to a source.
    pub(crate) fn add_keys(&mut self, source: SourceId, keys: u64) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.add_keys(keys);
        }
    }

    /// Counts (name, tier) keys removed from a source.
    pub(crate) fn drop_keys(&mut self, source: SourceId, keys: u64) {
        if let Some(source) = self.sources.get_mut(&source) {
            source.drop_keys(keys);
        }
    }

    pub(crate) fn update_slot(&mut self, slot: Slot) {
        let epoch = self.primary_epoch();
        self.holder.update_slot(self.trie, slot, epoch);
    }

    /// Ensures that a slot's names have records, if this rank holds the slot.
    pub(crate) fn spell_out(&mut self, slot: Slot) {
        if self.holder.is_plain(self.trie, slot) {
            let epoch = self.primary_epoch();
            self.holder.spell_out(self.trie, slot, epoch);
        }
    }

    /// Removes a record. Returns its slot, if any, which must then be settled.
    pub(crate) fn take_record(&mut self, name: BlockName) -> Option<Slot> {
        self.holder.convert_bit(self.trie, name);
        let record = self.holder.records_mut().remove(name)?;
        for copies in &record.copies {
            self.record_loss(copies.source, copies.tier, (name, record.local));
        }
        self.holder.note_changed(name);
        record.slot
    }

    /// The next unit of this rank's blocks, from `slot` up to `end`; plain slots in runs of at most
    /// `run_max`.
    pub(crate) fn next_held(&self, slot: Slot, end: Slot, run_max: u32) -> Option<Held> {
        self.holder.next_held(self.trie, slot, end, run_max)
    }
}

// === keys and digests ===

impl RankChange<'_> {
    /// Records that a source gained a name in a tier.
    pub(crate) fn record_gain(&mut self, source: SourceId, tier: Tier, block: Content) {
        self.add_keys(source, 1);
        if let Some(digest) = self.holder.digest_mut(source) {
            digest.add(tier, block_digest(block.0, block.1));
        }
    }

    /// Records that a source lost a name in a tier.
    pub(crate) fn record_loss(&mut self, source: SourceId, tier: Tier, block: Content) {
        self.drop_keys(source, 1);
        if let Some(digest) = self.holder.digest_mut(source) {
            digest.take(tier, block_digest(block.0, block.1));
        }
    }

    /// Records that a source gained the names of consecutive slots in a tier.
    pub(crate) fn gain_run(&mut self, source: SourceId, tier: Tier, first: Slot, len: u32) {
        self.add_keys(source, u64::from(len));
        self.each_digest(source, first, len, |total, digest| total.add(tier, digest));
    }

    /// Records that a source lost the names of consecutive slots in a tier.
    pub(crate) fn lose_run(&mut self, source: SourceId, tier: Tier, first: Slot, len: u32) {
        self.drop_keys(source, u64::from(len));
        self.each_digest(source, first, len, |total, digest| total.take(tier, digest));
    }

    /// Updates the digests after the local hash of a held name became known.
    pub(crate) fn relabel(&mut self, block: StoredBlock, before: Option<LocalHash>) {
        let StoredBlock { name, local } = block;
        if !self.holder.has_digests() || before == Some(local) {
            return;
        }
        let copies = self.holder.records().get(name).map(|record| record.copies.clone());
        for copies in copies.unwrap_or_default() {
            if let Some(digest) = self.holder.digest_mut(copies.source) {
                digest.take(copies.tier, block_digest(name, before));
                digest.add(copies.tier, block_digest(name, Some(local)));
            }
        }
    }

    /// Applies `change` to the source's digest for each of the slots, if the source has digests.
    fn each_digest(
        &mut self,
        source: SourceId,
        first: Slot,
        len: u32,
        change: impl Fn(&mut RankDigest, u64),
    ) {
        let Some(digest) = self.holder.digest_mut(source) else {
            return;
        };
        let slots = &self.trie.slots;
        for (name, local) in slots.names(first, len).iter().zip(slots.locals(first, len)) {
            change(digest, block_digest(BlockName(*name), Some(LocalHash(*local))));
        }
    }
}
