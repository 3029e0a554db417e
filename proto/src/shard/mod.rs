//! Which shard a worker belongs to: the one that owns its bucket, by a map of all 256 buckets. Pure.
//!
//! A worker's bucket never changes ([`crate::hash::bucket`]); a [`ShardMap`] names the owner of each bucket.
//! Without a map, shards own equal ranges: bucket `b` belongs to shard `b × N ÷ 256`, rounded down. (Not
//! `b mod N`: within a server, `--index-shards` takes the remainder, and two remainders with a common factor
//! would leave some of its parts empty.)
//!
//! Shards are numbered from 0, as the pods of a stateful set are: [`ShardPlace`] `0/3`, `1/3` and `2/3`.
//!
//! A bucket moves in two steps, each a map with a higher version: first it is *moving*, and both
//! shards accept its workers while the new one catches up; then the new one owns it.

mod error;
mod map;
mod place;
mod text;

pub use error::{MapError, WrongShard};
pub use map::{BucketRange, ShardMap};
pub use place::{PlaceError, ShardCount, ShardId, ShardPlace};
