//! Simple model of a journal's guarantees.

use super::{DumpCut, DumpId, DumpStep, Journal, JournalConfig};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::types::{
    BlockName, CopyMode, DpRank, HeldBlock, Incarnation, KvEvent, LocalHash, StoredBlock, Tier,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

pub(super) const INCARNATION: Incarnation = Incarnation(7);
pub(super) const OTHER: Incarnation = Incarnation(8);

pub(super) fn config(copy_mode: CopyMode) -> JournalConfig {
    JournalConfig { copy_mode, ..JournalConfig::DEFAULT }
}

pub(super) fn journal(copy_mode: CopyMode) -> Journal {
    Journal::new(INCARNATION, 0, config(copy_mode))
}

pub(super) fn block(name: u64) -> StoredBlock {
    StoredBlock { name: BlockName(name), local: LocalHash(name + 1_000) }
}

/// A chain of blocks that begins below `parent`.
pub(super) fn stored(parent: Option<u64>, names: impl IntoIterator<Item = u64>) -> KvEvent {
    let blocks = names.into_iter().map(block).collect();
    KvEvent::Stored { parent: parent.map(BlockName), tier: Tier::Device, blocks }
}

pub(super) fn removed(names: impl IntoIterator<Item = u64>) -> KvEvent {
    let names = names.into_iter().map(BlockName).collect();
    KvEvent::Removed { tier: Tier::Device, names }
}

/// Held blocks, as plain data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) copy_mode: CopyMode,
    pub(super) held: BTreeMap<(DpRank, BlockName), HeldBlock>,
}

impl Model {
    pub(super) fn new(copy_mode: CopyMode) -> Self {
        Self { copy_mode, held: BTreeMap::new() }
    }

    pub(super) fn apply(&mut self, rank: DpRank, event: &KvEvent) {
        match event {
            KvEvent::Stored { parent, tier, blocks } => {
                let mut parent = *parent;
                for block in blocks {
                    self.place((rank, block.name), parent, block.local);
                    self.add_copy((rank, block.name), *tier);
                    parent = Some(block.name);
                }
            }
            KvEvent::StoredNames { tier, names } => {
                for &name in names {
                    let new = HeldBlock { name, parent: None, local: None, copies: [0; 3] };
                    self.held.entry((rank, name)).or_insert(new);
                    self.add_copy((rank, name), *tier);
                }
            }
            KvEvent::Removed { tier, names } => {
                for &name in names {
                    self.remove_copy((rank, name), *tier);
                }
            }
            KvEvent::Gone { tier, names } => {
                for &name in names {
                    self.remove_all((rank, name), *tier);
                }
            }
            KvEvent::Cleared => self.held.retain(|(of, _), _| *of != rank),
            KvEvent::ClearedTier(tier) => {
                let names = self.held.keys().filter(|(of, _)| *of == rank);
                for name in names.copied().collect::<Vec<_>>() {
                    self.remove_all(name, *tier);
                }
            }
        }
    }

    pub(super) fn place(
        &mut self,
        key: (DpRank, BlockName),
        parent: Option<BlockName>,
        local: LocalHash,
    ) {
        let new = HeldBlock { name: key.1, parent, local: Some(local), copies: [0; 3] };
        match self.held.get_mut(&key) {
            Some(held) if held.local.is_none() => (held.parent, held.local) = (parent, Some(local)),
            // The content of a name is fixed.
            Some(_) => {}
            None => drop(self.held.insert(key, new)),
        }
    }

    pub(super) fn add_copy(&mut self, key: (DpRank, BlockName), tier: Tier) {
        let copies = &mut self.held.get_mut(&key).expect("placed").copies[tier.index()];
        *copies = if self.copy_mode == CopyMode::Counted { *copies + 1 } else { 1 };
    }

    pub(super) fn remove_copy(&mut self, key: (DpRank, BlockName), tier: Tier) {
        self.leave(key, tier, u32::from(self.copy_mode == CopyMode::Counted));
    }

    fn remove_all(&mut self, key: (DpRank, BlockName), tier: Tier) {
        self.leave(key, tier, 0);
    }

    /// Removes one copy of several, or all copies.
    fn leave(&mut self, key: (DpRank, BlockName), tier: Tier, several: u32) {
        let Some(held) = self.held.get_mut(&key) else { return };
        let copies = &mut held.copies[tier.index()];
        *copies = copies.saturating_sub(1) * several;
        if held.copies == [0; 3] {
            self.held.remove(&key);
        }
    }

    /// Loads records of a dump.
    pub(super) fn load(&mut self, rank: DpRank, records: &[HeldBlock]) {
        for record in records {
            match record.copies {
                [0, 0, 0] => drop(self.held.remove(&(rank, record.name))),
                _ => drop(self.held.insert((rank, record.name), *record)),
            }
        }
    }

    /// Digests of the model, computed from scratch.
    pub(super) fn digests(&self) -> BTreeMap<DpRank, RankDigest> {
        let mut ranks: BTreeMap<DpRank, RankDigest> = BTreeMap::new();
        for ((rank, name), held) in &self.held {
            let copies = Tier::ALL.into_iter().zip(held.copies);
            for (tier, _) in copies.filter(|(_, copies)| *copies > 0) {
                ranks.entry(*rank).or_default().add(tier, block_digest(*name, held.local));
            }
        }
        ranks
    }

    pub(super) fn load_cut(&mut self, cut: &DumpCut) {
        for (rank, records) in &cut.records {
            self.load(*rank, records);
        }
    }
}

/// A complete dump without concurrent changes.
pub(super) fn dump(journal: &mut Journal, records_max: usize) -> (Model, DumpCut) {
    let id = journal.begin_dump(None).expect("no other dump");
    let mut model = Model::new(journal.status().copy_mode);
    loop {
        match journal.step_dump(id, records_max).expect("nothing changes") {
            DumpStep::Records { rank, records } => {
                assert!(records.len() <= records_max);
                model.load(rank, &records);
            }
            DumpStep::Cut(cut) => {
                assert!(cut.records.is_empty(), "nothing has changed: {cut:?}");
                return (model, cut);
            }
        }
    }
}

// Few names, ranks and hashes, to provoke collisions.

pub(super) fn any_tier() -> impl Strategy<Value = Tier> {
    prop_oneof![Just(Tier::Device), Just(Tier::Host), Just(Tier::Disk)]
}

pub(super) fn any_event() -> impl Strategy<Value = KvEvent> {
    let name = || (0..8_u64).prop_map(BlockName);
    let names = || prop::collection::vec(name(), 0..4);
    let block = (name(), 0..2_u64)
        .prop_map(|(name, version)| StoredBlock { name, local: LocalHash(name.0 * 2 + version) });
    let blocks = prop::collection::vec(block, 0..5);
    prop_oneof![
        6 => (prop::option::of(name()), any_tier(), blocks)
            .prop_map(|(parent, tier, blocks)| KvEvent::Stored { parent, tier, blocks }),
        2 => (any_tier(), names()).prop_map(|(tier, names)| KvEvent::StoredNames { tier, names }),
        6 => (any_tier(), names()).prop_map(|(tier, names)| KvEvent::Removed { tier, names }),
        2 => (any_tier(), names()).prop_map(|(tier, names)| KvEvent::Gone { tier, names }),
        1 => Just(KvEvent::Cleared),
    ]
}

pub(super) fn any_batch() -> impl Strategy<Value = (DpRank, Vec<KvEvent>)> {
    (0..3_u32, prop::collection::vec(any_event(), 0..4))
}

pub(super) fn any_mode() -> impl Strategy<Value = CopyMode> {
    prop_oneof![Just(CopyMode::Counted), Just(CopyMode::Set)]
}

pub(super) fn finish(journal: &mut Journal, id: DumpId, loaded: &mut Model) -> DumpCut {
    loop {
        match journal.step_dump(id, 1).expect("nothing changes any more") {
            DumpStep::Records { rank, records } => loaded.load(rank, &records),
            DumpStep::Cut(cut) => return cut,
        }
    }
}
