//! Digests of a source's blocks, for anti-entropy. The feeder of the source keeps digests of its own. By
//! comparing, it detects whether and where the index differs.

use crate::error::IndexError;
use crate::index::Index;
use crate::source::{Source, SourceId};
use kvasir_proto::digest::RankDigest;
use kvasir_proto::types::DpRank;

impl Index {
    /// Maintains digests of a source from now on: 32 KiB for each tier of a rank with blocks. Returns `false`
    /// if the source already has blocks without digests. Then dump them and [set](Self::set_digests) their
    /// digests.
    ///
    /// # Errors
    /// If the source is unknown.
    pub fn keep_digests(&mut self, source: SourceId) -> Result<bool, IndexError> {
        let keys = self.source(source)?.keys();
        if self.has_digests(source) {
            return Ok(true);
        }
        Ok(keys == 0 && self.begin_digests(source, &[]))
    }

    /// Maintains digests of a source from now on, given the `ranks`' current digests. Returns `false` if the
    /// source's number of blocks differs: dump it again.
    ///
    /// # Errors
    /// If the source is unknown.
    pub fn set_digests(
        &mut self,
        source: SourceId,
        ranks: &[(DpRank, RankDigest)],
    ) -> Result<bool, IndexError> {
        let tiers = ranks.iter().flat_map(|(_, digest)| digest.tiers());
        let blocks: u64 = tiers.map(|(_, digest)| digest.blocks()).sum();
        Ok(self.source(source)?.keys() == blocks && self.begin_digests(source, ranks))
    }

    /// Drops the digests of a source.
    pub fn forget_digests(&mut self, source: SourceId) {
        let Some(at) = self.sources.get(&source) else {
            return;
        };
        for (_, holder) in at.ranks().to_vec() {
            if let Some(Some(at)) = self.holders.get_mut(holder as usize) {
                at.stop_digest(source);
            }
            self.recount(holder);
        }
    }

    /// Digest of all blocks of a source. `None` if digests are off, or if the index lacks some of the source's blocks.
    #[must_use]
    pub fn digest(&self, source: SourceId) -> Option<u64> {
        let known = self.source(source).ok()?;
        let total =
            |sum: u64, (rank, digest): (DpRank, &RankDigest)| sum.wrapping_add(digest.total(rank));
        let is_complete = self.has_digests(source) && !known.is_incomplete();
        is_complete.then(|| self.digests_of(source).fold(0, total))
    }

    /// Digests of a source's ranks; empty without digests.
    #[must_use]
    pub fn digests(&self, source: SourceId) -> Vec<(DpRank, RankDigest)> {
        self.digests_of(source).map(|(rank, digest)| (rank, digest.clone())).collect()
    }

    /// Whether another source feeds one of this source's ranks.
    #[must_use]
    pub fn shares_ranks(&self, source: SourceId) -> bool {
        let Ok(known) = self.source(source) else {
            return false;
        };
        let worker = self.workers.get(known.worker());
        let others = worker.into_iter().flat_map(|worker| &worker.sources);
        let others = others.filter(|id| **id != source).filter_map(|id| self.sources.get(id));
        let is_ours = |rank: &DpRank| known.holder_of(*rank).is_some();
        others.flat_map(Source::ranks).any(|(rank, _)| is_ours(rank))
    }

    /// Starts the digests of a source with given values; other ranks of the source start empty. Returns false,
    /// without digests, if the source does not feed a rank with blocks.
    fn begin_digests(&mut self, source: SourceId, ranks: &[(DpRank, RankDigest)]) -> bool {
        self.forget_digests(source);
        let Some(at) = self.sources.get(&source) else {
            return false;
        };
        let is_fed = |rank: &DpRank| at.holder_of(*rank).is_some();
        if !ranks.iter().all(|(rank, digest)| is_fed(rank) || digest.is_empty()) {
            return false;
        }
        for (rank, holder) in at.ranks().to_vec() {
            let given = ranks.iter().find(|(of, _)| *of == rank);
            let digest = given.map(|(_, digest)| digest.clone()).unwrap_or_default();
            if let Some(Some(at)) = self.holders.get_mut(holder as usize) {
                at.start_digest(source, digest);
            }
            self.recount(holder);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use kvasir_proto::types::{
        BlockName, CopyMode, KvEvent, LocalHash, StoredBlock, Tier, WorkerId,
    };

    fn stored(index: &mut Index, source: SourceId, rank: DpRank, name: u64) {
        let blocks = vec![StoredBlock { name: BlockName(name), local: LocalHash(name) }];
        let event = KvEvent::Stored { parent: None, tier: Tier::Device, blocks };
        index.apply(source, rank, &event).expect("a known source");
    }

    #[test]
    fn digests_begin_on_an_empty_source_or_with_given_ones() {
        let mut index = Index::new(Limits::default());
        let worker = WorkerId::new("w").expect("a name");
        let source = index.add_source(&worker, "a", 0, CopyMode::Set).expect("a source");
        assert_eq!((index.digest(source), index.keep_digests(source)), (None, Ok(true)));
        assert_eq!(index.digest(source), Some(0));
        stored(&mut index, source, 0, 1);
        stored(&mut index, source, 3, 2);
        let digests = index.digests(source);
        let totals = digests.iter().map(|(rank, digest)| digest.total(*rank));
        assert_eq!(index.digest(source), Some(totals.fold(0, u64::wrapping_add)));
        index.forget_digests(source);
        assert_eq!((index.digest(source), index.keep_digests(source)), (None, Ok(false)));
        assert_eq!(index.set_digests(source, &digests[..1]), Ok(false), "it holds more");
        assert_eq!(index.set_digests(source, &digests), Ok(true));
        assert_eq!(index.digests(source), digests);
        index.validate().expect("sound");
    }

    #[test]
    fn sources_share_a_rank_or_not() {
        let mut index = Index::new(Limits::default());
        let one = WorkerId::new("w").expect("a name");
        let other = WorkerId::new("v").expect("a name");
        let a = index.add_source(&one, "a", 0, CopyMode::Set).expect("a source");
        let b = index.add_source(&one, "b", 1, CopyMode::Set).expect("a source");
        let c = index.add_source(&other, "c", 0, CopyMode::Set).expect("a source");
        assert!(![a, b, c].into_iter().any(|source| index.shares_ranks(source)));
        stored(&mut index, b, 0, 1);
        assert_eq!([a, b, c].map(|source| index.shares_ranks(source)), [true, true, false]);
    }
}
