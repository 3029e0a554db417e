//! A server's shard on the wire, and the error metadata that names a worker's owner.

use crate::pb;
use crate::shard::{BucketRange, ShardId, ShardMap, ShardPlace, WrongShard};
use std::str::FromStr;
use tonic::metadata::MetadataMap;

const OWNER: &str = "kvasir-owner-shard";
const BUCKET: &str = "kvasir-bucket";
const VERSION: &str = "kvasir-shard-map-version";

/// The owner of the worker that a request named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Bucket of the worker.
    pub bucket: u8,
    /// The shard that owns it.
    pub shard: ShardId,
    /// Version of the map that names the owner.
    pub version: u64,
}

/// Writes the worker's owner into the metadata of an error.
pub fn write_owner(wrong: &WrongShard, metadata: &mut MetadataMap) {
    metadata.insert(OWNER, u16::from(wrong.owner).into());
    metadata.insert(BUCKET, u16::from(wrong.bucket).into());
    metadata.insert(VERSION, wrong.version.into());
}

/// The worker's owner, if the metadata of an error contains it.
#[must_use]
pub fn owner(metadata: &MetadataMap) -> Option<Owner> {
    let shard = read_number(metadata, OWNER)?;
    let bucket = read_number(metadata, BUCKET)?;
    Some(Owner { bucket, shard, version: read_number(metadata, VERSION)? })
}

fn read_number<N: FromStr>(metadata: &MetadataMap, key: &str) -> Option<N> {
    metadata.get(key)?.to_str().ok()?.parse().ok()
}

/// Encodes a shard and its buckets.
#[must_use]
pub fn shard_info(place: ShardPlace, map: &ShardMap) -> pb::ShardInfo {
    pb::ShardInfo {
        shard: place.shard().into(),
        shards: place.shards().get().into(),
        map_version: map.version(),
        owned: map.owned(place.shard()).into_iter().map(range).collect(),
        taken: map.taken(place.shard()).into_iter().map(range).collect(),
    }
}

fn range(BucketRange { first, last }: BucketRange) -> pb::BucketRange {
    pb::BucketRange { first: first.into(), last: last.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::ShardCount;
    use crate::types::WorkerId;

    #[test]
    fn a_refusal_names_the_owner() {
        let mut metadata = MetadataMap::new();
        assert_eq!(owner(&metadata), None);
        let worker = WorkerId::new("w").expect("a name");
        let wrong = WrongShard { worker, bucket: 200, owner: 255, asked: 1, version: u64::MAX };
        write_owner(&wrong, &mut metadata);
        let expected = Owner { bucket: 200, shard: 255, version: u64::MAX };
        assert_eq!(owner(&metadata), Some(expected));
        metadata.insert(BUCKET, 256_u16.into());
        assert_eq!(owner(&metadata), None);
    }

    #[test]
    fn a_shard_lists_its_buckets() {
        let shards = ShardCount::new(4).expect("a number");
        let map = ShardMap::even(shards).moving(9, 3).expect("a shard");
        let info = shard_info(ShardPlace::new(3, shards).expect("a shard"), &map);
        let range = |first, last| pb::BucketRange { first, last };
        let expected = pb::ShardInfo {
            shard: 3,
            shards: 4,
            map_version: 1,
            owned: vec![range(192, 255)],
            taken: vec![range(9, 9)],
        };
        assert_eq!(info, expected);
    }
}
