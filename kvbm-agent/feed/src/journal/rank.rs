//! What one rank holds, and its digest.

use super::names::{Names, Record};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::types::{BlockName, LocalHash, Tier};
use rustc_hash::FxHashSet;

/// One rank.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) names: Names,
    /// Where the dump under way reads next.
    pub(super) position: usize,
    /// Names that have changed since it read them.
    pub(super) dirty: FxHashSet<BlockName>,
    /// Blocks were not taken since the rank was cleared last.
    pub(super) incomplete: bool,
    /// Of its names.
    pub(super) digest: RankDigest,
}

/// What a name adds to its rank's digest.
#[derive(PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) local: Option<LocalHash>,
    pub(super) tiers: [bool; Tier::COUNT],
}

impl Entry {
    pub(super) fn of(record: &Record) -> Self {
        Self { local: record.local(), tiers: record.tiers() }
    }
}

impl Rank {
    pub(super) fn new() -> Self {
        Self {
            names: Names::new(),
            position: 0,
            dirty: FxHashSet::default(),
            incomplete: false,
            digest: RankDigest::default(),
        }
    }

    /// Updates the digest where a name's entry may have changed.
    pub(super) fn change_digest(&mut self, name: BlockName, before: &Entry, after: &Entry) {
        if before == after {
            return;
        }
        let tiers = |entry: &Entry| Tier::ALL.into_iter().zip(entry.tiers);
        let digest = block_digest(name, before.local);
        tiers(before)
            .filter(|(_, held)| *held)
            .for_each(|(tier, _)| self.digest.take(tier, digest));
        let digest = block_digest(name, after.local);
        tiers(after).filter(|(_, held)| *held).for_each(|(tier, _)| self.digest.add(tier, digest));
    }
}
