//! Decides which messages the stream may purge: messages that every shard has in a snapshot and every live replica has
//! on disk. Pure.

use crate::snapshot::StreamPosition;
use std::fmt;
use std::str::FromStr;

/// A position in the stream, as replicas publish it: the stream's creation in nanoseconds since 1970, and the last
/// message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Posted(pub(super) StreamPosition);

impl fmt::Display for Posted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.stream_created_unix_ns, self.0.sequence)
    }
}

impl FromStr for Posted {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (created, sequence) = text.split_once(' ').ok_or(())?;
        let stream_created_unix_ns = created.parse().map_err(drop)?;
        let sequence = sequence.parse().map_err(drop)?;
        Ok(Self(StreamPosition { stream_created_unix_ns, sequence }))
    }
}

/// Whether a shard needs a new snapshot: more than `threshold` messages followed its snapshot. All messages of the
/// stream count if the snapshot is missing or belongs to another stream.
pub(super) fn wants_snapshot(
    present: StreamPosition,
    snapshot: Option<StreamPosition>,
    first_sequence: u64,
    threshold: u64,
) -> bool {
    let of_stream =
        snapshot.filter(|at| at.stream_created_unix_ns == present.stream_created_unix_ns);
    // Purged messages do not count.
    let since = of_stream.map_or(0, |at| at.sequence).max(first_sequence.saturating_sub(1));
    present.sequence.saturating_sub(since) > threshold
}

/// Returns the sequence of the last message that may be purged. Returns `None` if a shard lacks a snapshot of this
/// stream, or a replica reads another stream: a restore may then need every message.
pub(super) fn purge_through(
    stream_created_unix_ns: i64,
    snapshots: &[Option<StreamPosition>],
    replicas: &[StreamPosition],
) -> Option<u64> {
    let all = snapshots.iter().copied().chain(replicas.iter().copied().map(Some));
    let mut through = None;
    for position in all {
        let position = position?;
        if position.stream_created_unix_ns != stream_created_unix_ns {
            return None;
        }
        through = Some(through.map_or(position.sequence, |at: u64| at.min(position.sequence)));
    }
    through.filter(|through| *through > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(stream_created_unix_ns: i64, sequence: u64) -> StreamPosition {
        StreamPosition { stream_created_unix_ns, sequence }
    }

    #[test]
    fn what_is_posted_is_read() {
        let posted = Posted(at(-5, u64::MAX));
        assert_eq!(posted.to_string().parse(), Ok(posted));
        for text in ["", "1", "1 ", "a 1", "1 -1", "1 2 3", "9223372036854775808 1"] {
            assert_eq!(text.parse::<Posted>(), Err(()), "{text}");
        }
    }

    #[test]
    fn a_snapshot_is_taken_every_so_many_messages() {
        let wants =
            |sequence, snapshot, first| wants_snapshot(at(1, sequence), snapshot, first, 10);
        assert!(!wants(10, None, 1) && wants(11, None, 1));
        assert!(!wants(30, Some(at(1, 20)), 1) && wants(31, Some(at(1, 20)), 1));
        assert!(wants(11, Some(at(2, 11)), 1), "of another stream");
        assert!(!wants(30, None, 21) && wants(31, None, 21), "what is gone does not count");
        assert!(!wants(5, Some(at(1, 20)), 1), "somebody is ahead");
    }

    #[test]
    fn what_everybody_has_may_go() {
        let two = [Some(at(1, 30)), Some(at(1, 20))];
        assert_eq!(purge_through(1, &two, &[]), Some(20));
        assert_eq!(purge_through(1, &two, &[at(1, 25), at(1, 7)]), Some(7));
        assert_eq!(purge_through(1, &two, &[at(2, 25)]), None, "who follows another stream");
        assert_eq!(purge_through(1, &[Some(at(1, 30)), None], &[]), None, "a shard without one");
        assert_eq!(purge_through(2, &two, &[]), None);
        assert_eq!(purge_through(1, &[Some(at(1, 0))], &[]), None, "nothing to go");
        assert_eq!(purge_through(1, &[], &[]), None);
    }
}
