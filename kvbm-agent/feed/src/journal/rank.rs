//! Names held by one rank, and their digest.

use super::names::{Names, Record};
use kvasir_proto::digest::{RankDigest, block_digest};
use kvasir_proto::types::{BlockName, LocalHash, Tier};
use rustc_hash::FxHashSet;

/// Names of one rank, and the state of a dump that reads them.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) names: Names,
    /// Position at which the dump in progress reads next.
    pub(super) position: usize,
    /// Names that have changed since the dump read them.
    pub(super) dirty: FxHashSet<BlockName>,
    /// Whether blocks were refused since the rank was last cleared.
    pub(super) incomplete: bool,
    /// Digest of the names.
    pub(super) digest: RankDigest,
}

/// A name's contribution to the digest.
#[derive(PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) local: Option<LocalHash>,
    pub(super) tiers: [bool; Tier::COUNT],
}

impl Entry {
    pub(super) fn from_record(record: &Record) -> Self {
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

    /// Updates the rank's digest after the entry of a name has changed.
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
