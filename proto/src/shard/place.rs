use crate::hash::BUCKETS;
use std::fmt;
use std::str::FromStr;

/// Why a shard's number, or a number of shards, is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// The text is not of the form `I/N`.
    #[error("{0:?} is not a shard: write I/N, such as 0/3 for the first of three")]
    Unreadable(String),
    /// The number of shards is out of range.
    #[error("the number of shards is {0}, must be 1 to {max}", max = ShardCount::MAX)]
    Count(u32),
    /// The shard does not exist.
    #[error("shard {shard} is not one of {shards} shards: they are numbered from 0, the last is {last}",
        last = shards.last())]
    Shard {
        /// The shard.
        shard: u32,
        /// Number of shards.
        shards: ShardCount,
    },
}

/// Number of a shard, from 0.
pub type ShardId = u8;

/// Number of shards: 1 to 256, at most one per bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardCount(u16);

impl ShardCount {
    /// Maximum number of shards.
    pub const MAX: u16 = 256;

    /// Checks a number of shards.
    ///
    /// # Errors
    /// If the number is 0 or above [`ShardCount::MAX`].
    pub fn new(shards: u32) -> Result<Self, PlaceError> {
        let count = u16::try_from(shards).ok().filter(|count| (1..=Self::MAX).contains(count));
        count.map(Self).ok_or(PlaceError::Count(shards))
    }

    /// The number of shards.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The last shard.
    #[must_use]
    pub const fn last(self) -> ShardId {
        let [_, last] = (self.0 - 1).to_be_bytes();
        last
    }

    /// Checks that a shard exists, and returns its id.
    ///
    /// # Errors
    /// If the shard does not exist.
    pub fn shard(self, shard: u32) -> Result<ShardId, PlaceError> {
        let found = ShardId::try_from(shard).ok().filter(|found| *found <= self.last());
        found.ok_or(PlaceError::Shard { shard, shards: self })
    }

    /// Owner of a bucket without a map: shards own equal ranges, in order.
    #[must_use]
    pub fn even_owner(self, bucket: u8) -> ShardId {
        let [.., owner] =
            (u32::from(bucket) * u32::from(self.0) / u32::from(Self::MAX)).to_be_bytes();
        owner
    }
}

const _: () = assert!(ShardCount::MAX as usize == BUCKETS);

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A shard's number and the number of shards: `0/3` is the first of three.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardPlace {
    shard: ShardId,
    shards: ShardCount,
}

impl ShardPlace {
    /// Shard `shard` of `shards`.
    ///
    /// # Errors
    /// If the shard does not exist.
    pub fn new(shard: u32, shards: ShardCount) -> Result<Self, PlaceError> {
        Ok(Self { shard: shards.shard(shard)?, shards })
    }

    /// The shard, from 0.
    #[must_use]
    pub const fn shard(self) -> ShardId {
        self.shard
    }

    /// Number of shards.
    #[must_use]
    pub const fn shards(self) -> ShardCount {
        self.shards
    }
}

impl fmt::Display for ShardPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.shard, self.shards)
    }
}

impl FromStr for ShardPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let numbers = text
            .split_once('/')
            .and_then(|(shard, shards)| Some((number(shard)?, number(shards)?)));
        let Some((shard, shards)) = numbers else {
            return Err(PlaceError::Unreadable(text.chars().take(64).collect()));
        };
        Self::new(shard, ShardCount::new(shards)?)
    }
}

/// Parses digits, without a sign or spaces.
fn number<N: FromStr>(text: &str) -> Option<N> {
    let digits = !text.is_empty() && text.bytes().all(|at| at.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_and_written() {
        for good in ["0/1", "0/3", "2/3", "255/256"] {
            assert_eq!(good.parse::<ShardPlace>().map(|place| place.to_string()), Ok(good.into()));
        }
        let check = |text: &str, expected: &str| {
            let refused = text.parse::<ShardPlace>().expect_err(text);
            assert_eq!(refused.to_string(), expected, "{text}");
        };
        for bad in ["", "/", "1", "1/", "/3", "a/3", "1/b", "-1/3", "+1/3", "1 / 3", "1/3/5"] {
            let expected = "is not a shard: write I/N, such as 0/3 for the first of three";
            check(bad, &format!("{bad:?} {expected}"));
        }
        check("0/0", "the number of shards is 0, must be 1 to 256");
        check("0/257", "the number of shards is 257, must be 1 to 256");
        let last = "they are numbered from 0, the last is";
        check("3/3", &format!("shard 3 is not one of 3 shards: {last} 2"));
        check("256/256", &format!("shard 256 is not one of 256 shards: {last} 255"));
        check(
            "99999999999/3",
            "\"99999999999/3\" is not a shard: write I/N, such as 0/3 for the first of three",
        );
    }
}
