use super::command::{ReplayOutcome, SourceCommand};
use super::config::STATUS_INTERVAL;
use crate::sequence::OutcomeCounts;
use crate::zmtp::Excess;
use kvasir_proto::types::{BatchOutcome, SourceStatus};
use tokio::time::Instant;

/// Running totals, which only increase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sums {
    pub(super) counts: OutcomeCounts,
    /// Batches that could not be decoded.
    pub(super) undecodable: u64,
    /// Batches with another topic.
    pub(super) other_topic: u64,
    /// Whether the first attempt to connect has failed.
    pub(super) is_unreachable: bool,
    pub(super) replays_completed: u64,
    pub(super) replays_failed: u64,
    pub(super) replays_cancelled: u64,
    /// Connections closed because a limit was exceeded, in the order of [`Excess::ALL`].
    pub(super) excesses: [u64; Excess::ALL.len()],
}

impl Sums {
    /// Counts a closed connection, if it exceeded a limit.
    pub(super) fn count_excess(&mut self, excess: Option<Excess>) {
        for (at, sum) in Excess::ALL.into_iter().zip(&mut self.excesses) {
            *sum += u64::from(excess == Some(at));
        }
    }
}

/// The last report to the receiver, and the earliest time of the next.
#[derive(Debug, Default)]
pub(super) struct Reports {
    status: Option<SourceStatus<Instant>>,
    sums: Sums,
    /// Earliest time of the next report that is not urgent.
    next_at: Option<Instant>,
    /// Whether a report is pending.
    due: bool,
}

impl Reports {
    /// When to call [`Reports::next`] again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.next_at.filter(|_| self.due)
    }

    /// The report to send now: immediately if the state or the connection changed, else once per interval.
    pub(super) fn next(
        &mut self,
        status: SourceStatus<Instant>,
        sums: Sums,
        now: Instant,
    ) -> Option<Vec<SourceCommand>> {
        let urgent = self
            .status
            .as_ref()
            .is_none_or(|last| (last.state, last.connected) != (status.state, status.connected));
        let changed = self.status.as_ref() != Some(&status) || self.sums != sums;
        let early = !urgent && self.next_at.is_some_and(|at| now < at);
        self.due = changed && early;
        if !changed || early {
            return None;
        }
        let last = self.sums;
        let reported = last.counts;
        let outcomes = [
            (BatchOutcome::Duplicate, sums.counts.duplicate - reported.duplicate),
            (BatchOutcome::Stale, sums.counts.stale - reported.stale),
            (BatchOutcome::Undecodable, sums.undecodable - last.undecodable),
            (BatchOutcome::Lost, sums.counts.lost - reported.lost),
            (BatchOutcome::OtherTopic, sums.other_topic - last.other_topic),
        ];
        let outcomes = outcomes.into_iter().filter(|(_, batches)| *batches > 0);
        let replays = [
            (ReplayOutcome::Completed, sums.replays_completed - last.replays_completed),
            (ReplayOutcome::Failed, sums.replays_failed - last.replays_failed),
            (ReplayOutcome::Cancelled, sums.replays_cancelled - last.replays_cancelled),
        ];
        let replays = replays.into_iter().filter(|(_, rounds)| *rounds > 0);
        let excesses =
            sums.excesses.iter().zip(&last.excesses).map(|(now, reported)| now - reported);
        let excesses = Excess::ALL.into_iter().zip(excesses).filter(|(_, count)| *count > 0);
        let is_unreachable = sums.is_unreachable && !last.is_unreachable;
        let commands = outcomes
            .map(|(outcome, batches)| SourceCommand::Outcome { outcome, batches })
            .chain(
                excesses.map(|(excess, connections)| SourceCommand::Excess { excess, connections }),
            )
            .chain(replays.map(|(outcome, rounds)| SourceCommand::Replays { outcome, rounds }))
            .chain(is_unreachable.then_some(SourceCommand::Unreachable))
            .chain([SourceCommand::Status(status.clone())])
            .collect();
        *self =
            Self { status: Some(status), sums, next_at: Some(now + STATUS_INTERVAL), due: false };
        Some(commands)
    }
}
