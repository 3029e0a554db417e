use super::{MapError, PlaceError, ShardCount, ShardId, ShardPlace, WrongShard};
use crate::hash::{BUCKETS, bucket};
use crate::types::WorkerId;

/// A range of buckets, including both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BucketRange {
    /// First bucket.
    pub first: u8,
    /// Last bucket, not before the first.
    pub last: u8,
}

/// Assigns each of the 256 buckets to a shard, and lists the buckets that are moving to another shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardMap {
    version: u64,
    shards: ShardCount,
    owners: [ShardId; BUCKETS],
    /// Target shard of each moving bucket; the owner for all other buckets.
    takers: [ShardId; BUCKETS],
}

impl ShardMap {
    /// The default map: equal ranges, version 0.
    #[must_use]
    pub fn even(shards: ShardCount) -> Self {
        let mut owners = [0; BUCKETS];
        for (bucket, owner) in (0..=u8::MAX).zip(&mut owners) {
            *owner = shards.even_owner(bucket);
        }
        Self { version: 0, shards, owners, takers: owners }
    }

    /// Replaces the version.
    #[must_use]
    pub fn with_version(self, version: u64) -> Self {
        Self { version, ..self }
    }

    /// Version of the map. Of two maps, the one with the higher version is used.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Number of shards.
    #[must_use]
    pub const fn shards(&self) -> ShardCount {
        self.shards
    }

    /// The shard that owns a bucket.
    #[must_use]
    pub fn owner(&self, bucket: u8) -> ShardId {
        // Every bucket number is within the array.
        self.owners.get(usize::from(bucket)).copied().unwrap_or_default()
    }

    /// The shard that a bucket is moving to, if any.
    #[must_use]
    pub fn taker(&self, bucket: u8) -> Option<ShardId> {
        let taker = self.takers.get(usize::from(bucket)).copied();
        taker.filter(|taker| *taker != self.owner(bucket))
    }

    /// Whether `shard` accepts workers of a bucket: it owns the bucket, or the bucket is moving to it.
    #[must_use]
    pub fn accepts(&self, shard: ShardId, bucket: u8) -> bool {
        self.owner(bucket) == shard || self.taker(bucket) == Some(shard)
    }

    /// Checks that `place` accepts this worker.
    ///
    /// # Errors
    /// If the shard does not accept the worker. The error names the owner.
    pub fn check(&self, place: ShardPlace, worker: &WorkerId) -> Result<(), WrongShard> {
        let bucket = bucket(worker);
        let asked = place.shard();
        if self.accepts(asked, bucket) {
            return Ok(());
        }
        let worker = worker.clone();
        let owner = self.owner(bucket);
        let version = self.version;
        Err(WrongShard { worker, bucket, owner, asked, version })
    }

    /// Checks that this map may replace `present`: a newer version for the same number of shards.
    ///
    /// # Errors
    /// If the number of shards differs, or this map is not newer.
    pub fn check_after(&self, present: &Self) -> Result<(), MapError> {
        if self.shards != present.shards {
            return Err(MapError::Count { map: self.shards, expected: present.shards });
        }
        if self.version <= present.version {
            return Err(MapError::Stale { found: self.version, present: present.version });
        }
        Ok(())
    }

    /// Returns the next version of the map, in which a bucket is moving to shard `to`. From then on, `to` also accepts
    /// the bucket's workers. Moving a bucket to its owner cancels a move.
    ///
    /// # Errors
    /// If the shard does not exist.
    pub fn moving(mut self, bucket: u8, to: u32) -> Result<Self, PlaceError> {
        let to = self.shards.shard(to)?;
        if let Some(taker) = self.takers.get_mut(usize::from(bucket)) {
            *taker = to;
        }
        self.version = self.version.saturating_add(1);
        Ok(self)
    }

    /// Returns the next version of the map, in which `owner` owns a bucket and only `owner` accepts its workers.
    ///
    /// # Errors
    /// If the shard does not exist.
    pub fn moved(self, bucket: u8, owner: u32) -> Result<Self, PlaceError> {
        let mut map = self.moving(bucket, owner)?;
        let taker = map.takers.get(usize::from(bucket)).copied();
        if let Some((at, taker)) = map.owners.get_mut(usize::from(bucket)).zip(taker) {
            *at = taker;
        }
        Ok(map)
    }

    /// Ranges of buckets that a shard owns.
    #[must_use]
    pub fn owned(&self, shard: ShardId) -> Vec<BucketRange> {
        ranges(|bucket| self.owner(bucket) == shard)
    }

    /// Ranges of buckets that are moving to a shard.
    #[must_use]
    pub fn taken(&self, shard: ShardId) -> Vec<BucketRange> {
        ranges(|bucket| self.taker(bucket) == Some(shard))
    }
}

/// The buckets for which `belongs` is true, in as few ranges as possible.
fn ranges(belongs: impl Fn(u8) -> bool) -> Vec<BucketRange> {
    let mut ranges: Vec<BucketRange> = Vec::new();
    for bucket in (0..=u8::MAX).filter(|bucket| belongs(*bucket)) {
        match ranges.last_mut() {
            Some(range) if range.last.checked_add(1) == Some(bucket) => range.last = bucket,
            _ => ranges.push(BucketRange { first: bucket, last: bucket }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(shards: u32) -> ShardCount {
        ShardCount::new(shards).expect("1 to 256")
    }

    #[test]
    fn shards_own_equal_ranges() {
        for shards in 1..=256 {
            let map = ShardMap::even(count(shards));
            let sizes: Vec<usize> = (0..=map.shards().last())
                .map(|shard| {
                    let [range] = *map.owned(shard) else { panic!("{shards}: {shard}") };
                    usize::from(range.last - range.first) + 1
                })
                .collect();
            assert_eq!((sizes.len(), sizes.iter().sum()), (shards as usize, BUCKETS));
            let least = sizes.iter().min();
            let most = sizes.iter().max();
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{sizes:?}");
        }
        let map = ShardMap::even(count(3));
        let ends = [0, 85, 86, 170, 171, 255].map(|bucket| map.owner(bucket));
        assert_eq!(ends, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_bucket_moves_in_two_steps() {
        let even = ShardMap::even(count(3));
        let moving = even.clone().moving(17, 2).expect("a shard");
        assert_eq!((moving.version(), moving.owner(17), moving.taker(17)), (1, 0, Some(2)));
        assert_eq!([0, 1, 2].map(|shard| moving.accepts(shard, 17)), [true, false, true]);
        assert_eq!(moving.taken(2), [BucketRange { first: 17, last: 17 }]);
        let moved = moving.clone().moved(17, 2).expect("a shard");
        assert_eq!((moved.version(), moved.owner(17), moved.taker(17)), (2, 2, None));
        assert_eq!([0, 1, 2].map(|shard| moved.accepts(shard, 17)), [false, false, true]);
        assert_eq!(moved.taken(2), []);
        let [low, high] = *moved.owned(0) else { panic!("{:?}", moved.owned(0)) };
        assert_eq!((low.last, high.first), (16, 18));
        // A cancelled move restores the previous owners, under a new version.
        let cancelled = moving.clone().moving(17, 0).expect("a shard");
        assert_eq!(cancelled, ShardMap { version: 2, ..even });
        assert!(moved.clone().moved(17, 3).is_err());

        assert_eq!(moved.check_after(&moving), Ok(()));
        let found = 1;
        let present = 2;
        assert_eq!(moving.check_after(&moved), Err(MapError::Stale { found, present }));
        assert!(moved.check_after(&moved).is_err());
        let map = count(3);
        let expected = count(4);
        let other = MapError::Count { map, expected };
        assert_eq!(moved.check_after(&ShardMap::even(expected)), Err(other));
    }

    #[test]
    fn a_worker_at_the_wrong_shard_is_sent_to_the_right_one() {
        let map = ShardMap::even(count(3));
        let worker = WorkerId::new("w").expect("a name");
        let at = bucket(&worker);
        let owner = map.owner(bucket(&worker));
        for shard in 0..3 {
            let place = ShardPlace::new(shard, count(3)).expect("a shard");
            let checked = map.check(place, &worker);
            if place.shard() == owner {
                assert_eq!(checked, Ok(()));
                continue;
            }
            let expected = format!(
                "worker_id \"w\" is in bucket {at}, which belongs to shard {owner}, and this is \
                 shard {shard} (map version 0): ask shard {owner}"
            );
            assert_eq!(checked.map_err(|wrong| wrong.to_string()), Err(expected));
        }
    }
}
