//! Scheduler of the dumps of one worker: limits concurrent dumps, queues others, cancels slow ones. A pure state
//! machine.

use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum concurrent dumps of one worker. The index allows some more, for the server's own dumps.
pub(super) const DUMPS_MAX: usize = 4;
/// Maximum concurrent dumps of one worker for one connection.
const CONNECTION_DUMPS_MAX: usize = 2;
/// Maximum queued dumps of one worker for one connection.
const CONNECTION_WAITING_MAX: usize = 4;
/// While others wait, a dump is cancelled if its client reads nothing for this long.
const SLOW_AFTER: Duration = Duration::from_millis(500);
/// While others wait, a dump is also cancelled if, after `SLOW_AFTER`, its client reads fewer records per second.
const RECORDS_PER_SECOND_MIN: u32 = 4_096;

/// A running or waiting dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dumper {
    /// Number of the dump.
    pub(super) id: u64,
    /// Id of the dump's connection.
    pub(super) peer: usize,
}

#[derive(Debug)]
struct Running {
    dumper: Dumper,
    /// From this time on, the dump is slow and must make way.
    slow_at: Instant,
    /// Whether the dump was already selected to end.
    makes_way: bool,
}

/// Result of a request to dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The dump may begin.
    Begun,
    /// The dump waits for [`DumpTurns::grant`].
    Waits,
    /// The connection has too many waiting dumps.
    Refused,
}

/// Running and waiting dumps of one worker.
#[derive(Debug, Default)]
pub(super) struct DumpTurns {
    running: Vec<Running>,
    /// Waiting dumps, in order of arrival.
    waiting: VecDeque<Dumper>,
}

impl DumpTurns {
    /// Whether no dump runs or waits.
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.waiting.is_empty()
    }

    /// Requests a permit. Refused if the connection has too many waiting requests.
    pub(super) fn request_permit(&mut self, dumper: Dumper, now: Instant) -> Asked {
        let waiting = self.waiting.iter().filter(|at| at.peer == dumper.peer).count();
        if waiting >= CONNECTION_WAITING_MAX {
            return Asked::Refused;
        }
        self.waiting.push_back(dumper);
        if self.grant(now) == Some(dumper) { Asked::Begun } else { Asked::Waits }
    }

    /// Starts the next waiting dump: the first one of the connection with the fewest running dumps. Returns `None` if
    /// all slots of the worker or of the connections are taken.
    pub(super) fn grant(&mut self, now: Instant) -> Option<Dumper> {
        if self.running.len() >= DUMPS_MAX {
            return None;
        }
        let places = self.waiting.iter().enumerate();
        let fewest = places.map(|(place, at)| (self.running_of(at.peer), place)).min();
        let (_, place) = fewest.filter(|(running, _)| *running < CONNECTION_DUMPS_MAX)?;
        let dumper = self.waiting.remove(place)?;
        self.running.push(Running { dumper, slow_at: now + SLOW_AFTER, makes_way: false });
        Some(dumper)
    }

    fn running_of(&self, peer: usize) -> usize {
        self.running.iter().filter(|at| at.dumper.peer == peer).count()
    }

    /// Counts records that a dump's client has read.
    pub(super) fn count_records(&mut self, id: u64, records: usize, now: Instant) {
        let records = u32::try_from(records).unwrap_or(u32::MAX);
        if let Some(at) = self.running.iter_mut().find(|at| at.dumper.id == id) {
            let time = Duration::from_secs(1) * records / RECORDS_PER_SECOND_MIN;
            at.slow_at = (at.slow_at.max(now) + time).min(now + SLOW_AFTER);
        }
    }

    /// Selects the slowest running dump to cancel, and returns its number. Returns `None` if all running dumps are fast
    /// enough, or if a waiting dump could begin only after further dumps end.
    pub(super) fn evict(&mut self, now: Instant) -> Option<u64> {
        let leaving = self.running.iter().filter(|at| at.makes_way).count();
        let can_begin = |at: &Dumper| self.running_of(at.peer) < CONNECTION_DUMPS_MAX;
        if self.waiting.iter().filter(|at| can_begin(at)).count() <= leaving {
            return None;
        }
        let slow = self.running.iter_mut().filter(|at| !at.makes_way && at.slow_at <= now);
        let slowest = slow.min_by_key(|at| at.slow_at)?;
        slowest.makes_way = true;
        Some(slowest.dumper.id)
    }

    /// When to call [`evict`](Self::evict) again.
    pub(super) fn next_look(&self, now: Instant) -> Instant {
        let slow_at = self.running.iter().filter(|at| !at.makes_way).map(|at| at.slow_at).min();
        slow_at.map_or(now + SLOW_AFTER, |at| at.max(now + SLOW_AFTER / 8))
    }

    /// Removes a dump that ended, or whose caller stopped waiting.
    pub(super) fn end_dump(&mut self, id: u64) {
        self.running.retain(|at| at.dumper.id != id);
        self.waiting.retain(|at| at.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dumper(peer: usize, id: u64) -> Dumper {
        Dumper { id, peer }
    }

    #[test]
    fn a_connection_has_its_share_and_the_next_is_the_one_with_fewest() {
        let mut turns = DumpTurns::default();
        let now = Instant::now();
        assert_eq!([1, 2].map(|id| turns.request_permit(dumper(7, id), now)), [Asked::Begun; 2]);
        assert_eq!(
            [3, 4, 5, 6].map(|id| turns.request_permit(dumper(7, id), now)),
            [Asked::Waits; 4]
        );
        assert_eq!(turns.request_permit(dumper(7, 7), now), Asked::Refused);
        assert_eq!(turns.request_permit(dumper(8, 8), now), Asked::Begun);
        assert_eq!(turns.request_permit(dumper(9, 9), now), Asked::Begun);
        assert_eq!(turns.request_permit(dumper(10, 10), now), Asked::Waits);
        turns.end_dump(1);
        assert_eq!(turns.grant(now), Some(dumper(10, 10)), "it has none yet");
        turns.end_dump(2);
        assert_eq!(turns.grant(now), Some(dumper(7, 3)));
        (3..=10).for_each(|id| turns.end_dump(id));
        assert!(turns.is_empty());
    }

    #[test]
    fn who_does_not_read_makes_way_once_somebody_waits() {
        let mut turns = DumpTurns::default();
        let begun = Instant::now();
        (1..=4).for_each(|id| {
            assert_eq!(turns.request_permit(dumper(usize::from(id > 2), id), begun), Asked::Begun)
        });
        let mut now = begun;
        while now < begun + 4 * SLOW_AFTER {
            assert_eq!(turns.evict(now), None, "nobody waits");
            // All dumps but one are read.
            now += SLOW_AFTER / 2;
            for id in [1, 2, 4] {
                turns.count_records(id, RECORDS_PER_SECOND_MIN as usize / 2, now);
            }
        }
        assert_eq!(turns.request_permit(dumper(9, 9), now), Asked::Waits);
        assert_eq!((turns.evict(now), turns.evict(now)), (Some(3), None));
        turns.end_dump(3);
        assert_eq!(turns.grant(now), Some(dumper(9, 9)));
        assert_eq!(turns.request_permit(dumper(10, 10), now), Asked::Waits);
        assert_eq!(turns.evict(now), None, "all are read");
        assert!(turns.next_look(now) <= now + SLOW_AFTER);
        // Reading one record now and then is too slow.
        now += SLOW_AFTER;
        turns.count_records(1, 1, now);
        now += SLOW_AFTER / 8;
        turns.count_records(1, 1, now);
        assert!(turns.evict(now).is_some());
    }
}
