//! Parses and prints a shard map as text, one entry per line; `#` starts a comment:
//!
//! ```text
//! version 4
//! shards 3
//! buckets 0-85 shard 0
//! buckets 86-170 shard 1
//! buckets 171-255 shard 2
//! moving 16-31 shard 2
//! ```

use super::{BucketRange, MapError, ShardCount, ShardId, ShardMap, place::number};
use crate::hash::BUCKETS;
use std::{fmt, str::FromStr};

impl fmt::Display for BucketRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            return write!(f, "{}", self.first);
        }
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl fmt::Display for ShardMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "version {}\nshards {}", self.version, self.shards)?;
        for shard in 0..=self.shards.last() {
            for range in self.owned(shard) {
                writeln!(f, "buckets {range} shard {shard}")?;
            }
        }
        for shard in 0..=self.shards.last() {
            for range in self.taken(shard) {
                writeln!(f, "moving {range} shard {shard}")?;
            }
        }
        Ok(())
    }
}

/// The entries read so far.
#[derive(Default)]
struct Read {
    version: Option<u64>,
    shards: Option<ShardCount>,
    owners: Vec<(BucketRange, ShardId)>,
    takers: Vec<(BucketRange, ShardId)>,
}

impl FromStr for ShardMap {
    type Err = MapError;

    fn from_str(text: &str) -> Result<Self, MapError> {
        let mut read = Read::default();
        for (line, text) in (1..).zip(text.lines()) {
            let fact = text.split_once('#').map_or(text, |(fact, _)| fact);
            let words: Vec<&str> = fact.split_whitespace().take(5).collect();
            if !words.is_empty() {
                read.line(&words).map_err(|problem| problem.at(line, fact))?;
            }
        }
        let version = read.version.ok_or(MapError::Missing("version"))?;
        let shards = read.shards.ok_or(MapError::Missing("shards"))?;
        let mut owners = [None; BUCKETS];
        fill(&mut owners, &read.owners);
        if let Some((bucket, _)) = (0..=u8::MAX).zip(owners).find(|(_, owner)| owner.is_none()) {
            return Err(MapError::Unowned(bucket));
        }
        let mut takers = owners;
        fill(&mut takers, &read.takers);
        // All entries are set.
        let [owners, takers] = [owners, takers].map(|all| all.map(Option::unwrap_or_default));
        Ok(Self { version, shards, owners, takers })
    }
}

fn fill(places: &mut [Option<ShardId>; BUCKETS], facts: &[(BucketRange, ShardId)]) {
    for (range, shard) in facts {
        let range = usize::from(range.first)..=usize::from(range.last);
        for place in places.get_mut(range).into_iter().flatten() {
            *place = Some(*shard);
        }
    }
}

/// Problem of a line.
enum Problem {
    Unreadable,
    Refused(String),
}

impl Problem {
    fn at(self, line: usize, text: &str) -> MapError {
        match self {
            Self::Unreadable => {
                MapError::Unreadable { line, text: text.trim().chars().take(64).collect() }
            }
            Self::Refused(problem) => MapError::Refused { line, problem },
        }
    }
}

impl Read {
    fn line(&mut self, words: &[&str]) -> Result<(), Problem> {
        match *words {
            ["version", version] => {
                let version = number(version).ok_or(Problem::Unreadable)?;
                once(&mut self.version, "version", version)
            }
            ["shards", shards] => {
                let shards = number(shards).ok_or(Problem::Unreadable)?;
                let shards = ShardCount::new(shards).map_err(refused)?;
                once(&mut self.shards, "shards", shards)
            }
            ["buckets", buckets, "shard", shard] => {
                let fact = self.fact(buckets, shard)?;
                add(&mut self.owners, fact)
            }
            ["moving", buckets, "shard", shard] => {
                let fact = self.fact(buckets, shard)?;
                add(&mut self.takers, fact)
            }
            _ => Err(Problem::Unreadable),
        }
    }

    fn fact(&self, buckets: &str, shard: &str) -> Result<(BucketRange, ShardId), Problem> {
        let Some(shards) = self.shards else {
            return Err(Problem::Refused("the line with shards must come first".to_owned()));
        };
        let (first, last) = buckets.split_once('-').unwrap_or((buckets, buckets));
        let ends = number::<u32>(first).zip(number::<u32>(last)).ok_or(Problem::Unreadable)?;
        let Some((first, last)) = u8::try_from(ends.0).ok().zip(u8::try_from(ends.1).ok()) else {
            return Err(Problem::Refused(format!("buckets {buckets} must be 0 to 255")));
        };
        if first > last {
            return Err(Problem::Refused(format!("buckets {buckets} end before they begin")));
        }
        let shard = number(shard).ok_or(Problem::Unreadable)?;
        Ok((BucketRange { first, last }, shards.shard(shard).map_err(refused)?))
    }
}

fn refused(error: impl fmt::Display) -> Problem {
    Problem::Refused(error.to_string())
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), Problem> {
    if place.replace(value).is_some() {
        return Err(Problem::Refused(format!("{name} is given twice")));
    }
    Ok(())
}

/// Adds an entry; rejects a bucket that an earlier line names.
fn add(
    facts: &mut Vec<(BucketRange, ShardId)>,
    fact: (BucketRange, ShardId),
) -> Result<(), Problem> {
    let overlaps = |other: &BucketRange| other.first <= fact.0.last && fact.0.first <= other.last;
    if let Some((other, _)) = facts.iter().find(|(other, _)| overlaps(other)) {
        let problem = format!("buckets {} overlap {other} of an earlier line", fact.0);
        return Err(Problem::Refused(problem));
    }
    facts.push(fact);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "version 4 # the fourth\n\nshards 3\nbuckets 0-85 shard 0\n\
                        buckets 86-170 shard 1\nbuckets 171-255 shard 2\nmoving 16-31 shard 2\n";

    #[test]
    fn maps_are_read_and_written() {
        let map: ShardMap = GOOD.parse().expect("a map");
        assert_eq!((map.version(), map.shards().get()), (4, 3));
        assert_eq!((map.owner(16), map.taker(16), map.taker(15)), (0, Some(2), None));
        assert_eq!(map.to_string().parse(), Ok(map.clone()));
        assert_eq!(map.to_string(), GOOD.replace(" # the fourth\n", ""));
        let mut moved = ShardMap::even(ShardCount::new(256).expect("enough"));
        for bucket in 0..=u8::MAX {
            let to = u32::from(bucket.wrapping_mul(7));
            moved =
                if bucket % 3 == 0 { moved.moving(bucket, to) } else { moved.moved(bucket, to) }
                    .expect("a shard");
        }
        assert_eq!(moved.to_string().parse(), Ok(moved));
    }

    #[test]
    fn nonsense_is_refused_by_line() {
        let check = |text: &str, expected: &str| {
            let refused = text.parse::<ShardMap>().expect_err(text);
            assert_eq!(refused.to_string(), expected, "{text}");
        };
        let none_of = "is not one of: version N, shards N, buckets A-B shard I, moving A-B shard I";
        check("", "version is missing");
        check("version 1", "shards is missing");
        check(
            "version 1\nshards 2\nbuckets 0-254 shard 1",
            "bucket 255 has no shard: name one in a \
              line such as \"buckets 255 shard 0\"",
        );
        check("version 1\nversion 1", "line 2: version is given twice");
        check("version -1", &format!("line 1: \"version -1\" {none_of}"));
        check("\nversion", &format!("line 2: \"version\" {none_of}"));
        check("shards 0", "line 1: the number of shards is 0, must be 1 to 256");
        check("buckets 0-255 shard 0", "line 1: the line with shards must come first");
        check("shards 2\nbuckets 0-256 shard 0", "line 2: buckets 0-256 must be 0 to 255");
        check("shards 2\nbuckets 9-8 shard 0", "line 2: buckets 9-8 end before they begin");
        check(
            "shards 2\nbuckets 0-9 shard 2",
            "line 2: shard 2 is not one of 2 shards: they are \
              numbered from 0, the last is 1",
        );
        check(
            "shards 2\nbuckets 0-9 shard 0\nbuckets 9 shard 1",
            "line 3: buckets 9 overlap 0-9 of an earlier line",
        );
        check(
            "shards 2\nbuckets 1-2-3 shard 0",
            &format!("line 2: \"buckets 1-2-3 shard 0\" {none_of}"),
        );
        check(
            "shards 2\nbuckets 1 shard 0 x",
            &format!("line 2: \"buckets 1 shard 0 x\" {none_of}"),
        );
    }
}
