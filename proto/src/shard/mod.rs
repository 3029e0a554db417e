//! Maps workers to shards: a [`ShardMap`] assigns each of the 256 buckets to one shard. Pure.
//!
//! A worker's bucket never changes ([`crate::hash::bucket`]). A [`ShardMap`] names the owner of each bucket. Without a
//! map, shards own equal ranges: bucket `b` belongs to shard `b × N ÷ 256`, rounded down. `b mod N` would not work:
//! within a server, `--index-shards` uses the remainder, and two remainders with a common factor would leave some parts
//! of the server empty.
//!
//! Shards are numbered from 0, like the pods of a stateful set: [`ShardPlace`] `0/3`, `1/3` and `2/3`.
//!
//! A bucket moves in two steps, each a map with a higher version. First the bucket is *moving*: both shards accept its
//! workers while the new shard catches up. Then the new shard owns the bucket.

mod error;
mod map;
mod place;

pub use error::{MapError, WrongShard};
pub use map::{BucketRange, ShardMap};
pub use place::{PlaceError, ShardCount, ShardId, ShardPlace};
