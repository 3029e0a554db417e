//! What a source that relays an engine states of itself.
//!
//! A heartbeat states the head of the stream and the state at that head. It may overtake the batches up to the head, so a better
//! state counts only once they are applied: until then, the index has what the source held when its state was worse.

use crate::partitions::ResumedSource;
use kvasir_proto::types::{Reason, SourceState, StateReason};
use std::sync::Arc;
use std::time::Duration;

/// The state that a source states of itself, if it relays an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) state: SourceState,
    /// Why it is worse than exact.
    pub(super) reasons: Vec<StateReason>,
    /// When the stream was last verified to have the engine's newest batch; none if it always has.
    pub(super) verified_at: Option<Duration>,
    /// Whether the source has no connection to its engine.
    pub(super) engine_away: bool,
}

impl Stated {
    const EXACT: Self = Self {
        state: SourceState::Exact,
        reasons: Vec::new(),
        verified_at: None,
        engine_away: false,
    };

    /// Whether this state lacks something that made an earlier one worse than exact.
    fn is_better_than(&self, before: &Self) -> bool {
        let is_over = |known: &StateReason| self.reasons.iter().all(|at| at.reason != known.reason);
        self.state < before.state || before.reasons.iter().any(is_over)
    }
}

/// What a source has stated: what counts now, and what counts once the index is there.
#[derive(Debug)]
pub(super) struct LatestStated {
    now: Stated,
    /// The number of a batch, and what counts once it is applied.
    later: Option<(u64, Stated)>,
    /// Whether a heartbeat has come.
    is_stated: bool,
}

impl Default for LatestStated {
    fn default() -> Self {
        Self { now: Stated::EXACT, later: None, is_stated: false }
    }
}

impl LatestStated {
    /// What a source stated before it resumes: it lasts until its next heartbeat.
    pub(super) fn of(resumed: &ResumedSource) -> Self {
        let stated = resumed.status.reasons.iter().filter(|at| at.reason != Reason::Contradiction);
        let now = Stated { reasons: stated.cloned().collect(), ..Stated::EXACT };
        Self { now, later: None, is_stated: false }
    }

    /// A source that is awaited is not exact before its first heartbeat.
    pub(super) const fn await_heartbeat(&mut self, is_awaited: bool) {
        if !self.is_stated {
            self.now.state = if is_awaited { SourceState::CatchingUp } else { SourceState::Exact };
        }
    }

    pub(super) const fn now(&self) -> &Stated {
        &self.now
    }

    /// Takes what a heartbeat states, with the newest batch that it names and the last one applied.
    pub(super) fn take(&mut self, stated: Stated, head: Option<u64>, applied: Option<u64>) {
        let ahead = head.filter(|head| applied.is_none_or(|applied| applied < *head));
        self.is_stated = true;
        let Some(head) = ahead.filter(|_| stated.is_better_than(&self.now)) else {
            *self = Self { now: stated, later: None, is_stated: true };
            return;
        };
        self.now.state = self.now.state.max(stated.state);
        for at in &stated.reasons {
            match self.now.reasons.iter_mut().find(|known| known.reason == at.reason) {
                Some(known) => *known = at.clone(),
                None => self.now.reasons.push(at.clone()),
            }
        }
        (self.now.verified_at, self.now.engine_away) = (stated.verified_at, stated.engine_away);
        // One that waits is not replaced by a better one: under load, the heads of later heartbeats are always ahead.
        if self.later.as_ref().is_none_or(|(_, later)| later.is_better_than(&stated)) {
            self.later = Some((head, stated));
        }
    }

    /// The last batch applied is this one.
    pub(super) fn reach(&mut self, applied: Option<u64>) {
        let Some(applied) = applied else { return };
        if let Some((_, stated)) = self.later.take_if(|(head, _)| *head <= applied) {
            self.now = stated;
        }
    }
}

/// Contradictions in the status that a source resumes from.
pub(super) fn contradictions(resumed: &ResumedSource) -> Arc<[StateReason]> {
    let seen = resumed.status.reasons.iter();
    seen.filter(|at| at.reason == Reason::Contradiction).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stated(state: SourceState, reasons: &[Reason]) -> Stated {
        let since = Duration::ZERO;
        let reason = |&reason| StateReason { reason, count: 1, example: "".into(), since };
        Stated { state, reasons: reasons.iter().map(reason).collect(), ..Stated::EXACT }
    }

    #[test]
    fn a_better_state_counts_once_its_batches_are_applied() {
        let degraded = stated(SourceState::Degraded, &[Reason::LostEvents]);
        let partial = stated(SourceState::Partial, &[Reason::BlockSize]);
        let mut latest = LatestStated::default();
        latest.take(degraded.clone(), Some(9), Some(3));
        assert_eq!(latest.now(), &degraded, "a worse one counts at once");
        // Heads run ahead: the first one counts.
        for (head, applied) in [(20, 9), (30, 15), (40, 19)] {
            latest.take(Stated::EXACT, Some(head), Some(applied));
            latest.reach(Some(applied));
            assert_eq!(latest.now(), &degraded, "{head}");
        }
        latest.reach(Some(20));
        assert_eq!(latest.now(), &Stated::EXACT);
        // A step on the way counts as far as it went.
        latest.take(degraded.clone(), Some(21), Some(21));
        latest.take(partial.clone(), Some(30), Some(21));
        latest.take(Stated::EXACT, Some(35), Some(25));
        latest.reach(Some(30));
        assert_eq!(latest.now(), &partial, "it was exact only later");
        latest.take(Stated::EXACT, Some(40), Some(40));
        // What is new of a state counts at once, what is over when the index is there.
        latest.take(degraded, Some(41), Some(41));
        latest.take(Stated::EXACT, Some(50), Some(41));
        latest.take(partial.clone(), Some(60), Some(45));
        let both = stated(SourceState::Degraded, &[Reason::LostEvents, Reason::BlockSize]);
        latest.reach(Some(50));
        assert_eq!(latest.now(), &both, "a later state is worse than the one that waits");
        latest.reach(Some(60));
        assert_eq!(latest.now(), &partial);
        latest.take(Stated::EXACT, None, Some(60));
        assert_eq!(latest.now(), &Stated::EXACT, "nothing is to come");
    }
}
