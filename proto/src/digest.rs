//! Digests of a source's blocks for anti-entropy. Equal digests mean equal blocks; otherwise the digests show which
//! buckets differ. An update costs one hash per block.
//!
//! - A block's digest is XXH3-64 of its name, followed by its local hash if that is known, both
//!   little-endian.
//! - A block's bucket is the upper 12 bits of its digest. A bucket's digest is the wrapping sum of its blocks' digests,
//!   for each tier of each rank.
//! - A source's digest is the wrapping sum, over the non-empty tiers of its ranks, of XXH3-64 of (rank as 32 bits,
//!   number of the tier in [`Tier::ALL`] + 1 as 32 bits, sum of the digests of all blocks in the tier, number of these
//!   blocks), little-endian.
//!
//! A 64-bit sum misses a difference once in 2^64 times by chance. The sum does not resist deliberate collisions,
//! because an attacker who could create one can publish false events anyway.

use crate::types::{BlockName, DpRank, LocalHash, Tier};
use xxhash_rust::xxh3::xxh3_64;

/// Number of buckets for one tier of one rank.
pub const DIGEST_BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 12;

/// Digest of one block.
#[must_use]
pub fn block_digest(name: BlockName, local: Option<LocalHash>) -> u64 {
    let mut bytes = [0; 16];
    let (first, last) = bytes.split_at_mut(8);
    first.copy_from_slice(&name.0.to_le_bytes());
    let Some(local) = local else { return xxh3_64(first) };
    last.copy_from_slice(&local.0.to_le_bytes());
    xxh3_64(&bytes)
}

/// Bucket of a block with this digest.
#[must_use]
pub const fn digest_bucket(digest: u64) -> u16 {
    (digest >> (u64::BITS - BUCKET_BITS)) as u16
}

/// Digest of one rank's blocks in one tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierDigest {
    blocks: u64,
    total: u64,
    buckets: Box<[u64]>,
}

impl Default for TierDigest {
    fn default() -> Self {
        Self { blocks: 0, total: 0, buckets: vec![0; DIGEST_BUCKETS].into() }
    }
}

impl TierDigest {
    /// A tier with `blocks` blocks and these buckets' digests; all other buckets are 0.
    #[must_use]
    pub fn of(blocks: u64, buckets: impl IntoIterator<Item = (u16, u64)>) -> Self {
        let mut digest = Self { blocks, ..Self::default() };
        for (bucket, sum) in buckets {
            digest.total = digest.total.wrapping_add(sum);
            if let Some(at) = digest.buckets.get_mut(usize::from(bucket)) {
                *at = at.wrapping_add(sum);
            }
        }
        digest
    }

    /// Number of blocks.
    #[must_use]
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Buckets whose digest is not 0, ascending.
    pub fn buckets(&self) -> impl Iterator<Item = (u16, u64)> {
        (0..).zip(&self.buckets).filter(|(_, sum)| **sum != 0).map(|(bucket, sum)| (bucket, *sum))
    }

    fn add_block(&mut self, digest: u64) {
        self.blocks += 1;
        self.total = self.total.wrapping_add(digest);
        if let Some(at) = self.buckets.get_mut(usize::from(digest_bucket(digest))) {
            *at = at.wrapping_add(digest);
        }
    }

    fn remove_block(&mut self, digest: u64) {
        self.blocks = self.blocks.saturating_sub(1);
        self.total = self.total.wrapping_sub(digest);
        if let Some(at) = self.buckets.get_mut(usize::from(digest_bucket(digest))) {
            *at = at.wrapping_sub(digest);
        }
    }
}

/// Digest of one rank's blocks, by tier. Each non-empty tier takes 32 KiB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RankDigest {
    tiers: [Option<TierDigest>; Tier::COUNT],
}

impl RankDigest {
    /// Adds a block to a tier.
    pub fn add(&mut self, tier: Tier, digest: u64) {
        if let Some(at) = self.tiers.get_mut(tier.index()) {
            at.get_or_insert_default().add_block(digest);
        }
    }

    /// Removes a block from a tier.
    pub fn take(&mut self, tier: Tier, digest: u64) {
        let Some(at) = self.tiers.get_mut(tier.index()) else { return };
        if let Some(held) = at {
            held.remove_block(digest);
            if held.blocks == 0 {
                *at = None;
            }
        }
    }

    /// Replaces a tier; a tier without blocks is removed.
    pub fn set(&mut self, tier: Tier, digest: TierDigest) {
        if let Some(at) = self.tiers.get_mut(tier.index()) {
            *at = Some(digest).filter(|digest| digest.blocks > 0);
        }
    }

    /// The non-empty tiers.
    pub fn tiers(&self) -> impl Iterator<Item = (Tier, &TierDigest)> {
        Tier::ALL.into_iter().zip(&self.tiers).filter_map(|(tier, at)| Some((tier, at.as_ref()?)))
    }

    /// Whether all tiers are empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tiers().next().is_none()
    }

    /// Allocated memory, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.tiers().count() * DIGEST_BUCKETS * size_of::<u64>()
    }

    /// The rank's term in the digest of its source.
    #[must_use]
    pub fn total(&self, rank: DpRank) -> u64 {
        let mut total = 0_u64;
        for (tier, held) in self.tiers() {
            let place = u64::from(rank) | (tier.index() as u64 + 1) << 32;
            let mut bytes = [0; 24];
            let numbers = [place, held.total, held.blocks];
            for (to, number) in bytes.chunks_exact_mut(8).zip(numbers) {
                to.copy_from_slice(&number.to_le_bytes());
            }
            total = total.wrapping_add(xxh3_64(&bytes));
        }
        total
    }

    /// Buckets that differ in any tier, ascending.
    #[must_use]
    pub fn differing(&self, other: &Self) -> Vec<u16> {
        let mut differs = vec![false; DIGEST_BUCKETS];
        for (ours, theirs) in self.tiers.iter().zip(&other.tiers) {
            let sums = |at: &Option<TierDigest>| at.clone().unwrap_or_default().buckets;
            let sums = sums(ours).into_iter().zip(sums(theirs));
            for (differs, (ours, theirs)) in differs.iter_mut().zip(sums) {
                *differs |= ours != theirs;
            }
        }
        (0..).zip(differs).filter_map(|(bucket, differs)| differs.then_some(bucket)).collect()
    }

    /// Tiers that differ, nearest first.
    #[must_use]
    pub fn differing_tiers(&self, other: &Self) -> Vec<Tier> {
        let tiers = Tier::ALL.into_iter().zip(self.tiers.iter().zip(&other.tiers));
        tiers.filter_map(|(tier, (ours, theirs))| (ours != theirs).then_some(tier)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(name: u64, local: Option<u64>) -> u64 {
        block_digest(BlockName(name), local.map(LocalHash))
    }

    /// Test vectors for agents in other languages.
    #[test]
    fn vectors() {
        assert_eq!(digest(1, None), xxh3_64(&1_u64.to_le_bytes()));
        let pair = [1_u64.to_le_bytes(), 2_u64.to_le_bytes()].concat();
        assert_eq!(digest(1, Some(2)), xxh3_64(&pair));
        let mut rank = RankDigest::default();
        assert_eq!(rank.total(7), 0);
        rank.add(Tier::Host, digest(1, Some(2)));
        let place = [7_u32.to_le_bytes(), 2_u32.to_le_bytes()].concat();
        let sums = [digest(1, Some(2)).to_le_bytes(), 1_u64.to_le_bytes()].concat();
        assert_eq!(rank.total(7), xxh3_64(&[place, sums].concat()));
        assert_eq!(rank.bytes(), 32 << 10);
    }

    #[test]
    fn what_goes_leaves_nothing_and_what_differs_is_found() {
        let mut ours = RankDigest::default();
        let mut theirs = RankDigest::default();
        for name in 0..10_000 {
            ours.add(Tier::Device, digest(name, Some(name)));
            theirs.add(Tier::Device, digest(9_999 - name, Some(9_999 - name)));
        }
        assert_eq!((&ours, ours.total(0)), (&theirs, theirs.total(0)), "whatever the order");
        assert_ne!(ours.total(0), ours.total(1));
        ours.take(Tier::Device, digest(77, Some(77)));
        theirs.add(Tier::Disk, digest(5, None));
        assert_ne!(ours.total(0), theirs.total(0));
        let mut expected = [digest(77, Some(77)), digest(5, None)].map(digest_bucket).to_vec();
        expected.sort_unstable();
        assert_eq!(ours.differing(&theirs), expected);
        assert_eq!(ours.differing_tiers(&theirs), [Tier::Device, Tier::Disk]);
        theirs.take(Tier::Disk, digest(5, None));
        theirs.take(Tier::Device, digest(77, Some(77)));
        assert_eq!(ours, theirs);
        for (tier, held) in ours.clone().tiers() {
            let same = TierDigest::of(held.blocks(), held.buckets());
            assert_eq!((&same, same.total), (held, held.total));
            ours.set(tier, same);
        }
        assert_eq!(ours, theirs);
        for name in (0..10_000).filter(|name| *name != 77) {
            ours.take(Tier::Device, digest(name, Some(name)));
        }
        assert!(ours.is_empty());
        assert_eq!(ours, RankDigest::default());
    }
}
