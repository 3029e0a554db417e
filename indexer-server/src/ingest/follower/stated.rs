//! The state that a relaying source reports about itself.
//!
//! A heartbeat reports the head of the stream and the state at that head. It may overtake the batches up to the head.
//! Therefore a better state counts only once these batches are applied: until then, the index has the blocks of the
//! worse state.

use crate::partitions::ResumedSource;
use kvasir_proto::types::{Reason, SourceState, StateReason};
use std::sync::Arc;
use std::time::Duration;

/// The state that a source reports about itself, if it relays an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stated {
    pub(super) state: SourceState,
    /// Why it is worse than exact.
    pub(super) reasons: Vec<StateReason>,
    /// When the stream was last verified to include the engine's newest batch. `None` if it always does.
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

    /// Whether this state lacks a reason of the earlier state, or is less severe.
    fn is_better_than(&self, before: &Self) -> bool {
        let is_over = |known: &StateReason| self.reasons.iter().all(|at| at.reason != known.reason);
        self.state < before.state || before.reasons.iter().any(is_over)
    }
}

/// The reported state of a source: the part that counts now, and the part that counts after further batches.
#[derive(Debug)]
pub(super) struct LatestStated {
    now: Stated,
    /// A batch number, and the state that counts once this batch is applied.
    later: Option<(u64, Stated)>,
    /// Whether a heartbeat has arrived.
    is_stated: bool,
}

impl Default for LatestStated {
    fn default() -> Self {
        Self { now: Stated::EXACT, later: None, is_stated: false }
    }
}

impl LatestStated {
    /// State of a resumed source, valid until its next heartbeat.
    pub(super) fn from_resumed(resumed: &ResumedSource) -> Self {
        let stated = resumed.status.reasons.iter().filter(|at| at.reason != Reason::Contradiction);
        let now = Stated { reasons: stated.cloned().collect(), ..Stated::EXACT };
        Self { now, later: None, is_stated: false }
    }

    /// If `is_awaited`, the source is not exact before its first heartbeat.
    pub(super) const fn await_heartbeat(&mut self, is_awaited: bool) {
        if !self.is_stated {
            self.now.state = if is_awaited { SourceState::CatchingUp } else { SourceState::Exact };
        }
    }

    pub(super) const fn now(&self) -> &Stated {
        &self.now
    }

    /// Records the state in a heartbeat. A better state than the present one takes effect only once the index has
    /// applied the source's newest batch `head`. `applied` is the last batch in the index.
    pub(super) fn record_heartbeat(
        &mut self,
        stated: Stated,
        head: Option<u64>,
        applied: Option<u64>,
    ) {
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
        // Keep a waiting state even if a better one arrives: under load, the heads of later heartbeats are always
        // ahead.
        if self.later.as_ref().is_none_or(|(_, later)| later.is_better_than(&stated)) {
            self.later = Some((head, stated));
        }
    }

    /// Activates the waiting state once its batch is applied.
    pub(super) fn apply_later(&mut self, applied: Option<u64>) {
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
        latest.record_heartbeat(degraded.clone(), Some(9), Some(3));
        assert_eq!(latest.now(), &degraded, "a worse one counts at once");
        // Later heads are always ahead: the first one counts.
        for (head, applied) in [(20, 9), (30, 15), (40, 19)] {
            latest.record_heartbeat(Stated::EXACT, Some(head), Some(applied));
            latest.apply_later(Some(applied));
            assert_eq!(latest.now(), &degraded, "{head}");
        }
        latest.apply_later(Some(20));
        assert_eq!(latest.now(), &Stated::EXACT);
        // An intermediate improvement counts once its batch is applied.
        latest.record_heartbeat(degraded.clone(), Some(21), Some(21));
        latest.record_heartbeat(partial.clone(), Some(30), Some(21));
        latest.record_heartbeat(Stated::EXACT, Some(35), Some(25));
        latest.apply_later(Some(30));
        assert_eq!(latest.now(), &partial, "it was exact only later");
        latest.record_heartbeat(Stated::EXACT, Some(40), Some(40));
        // New reasons count immediately. Resolved reasons disappear once the batches are in the index.
        latest.record_heartbeat(degraded, Some(41), Some(41));
        latest.record_heartbeat(Stated::EXACT, Some(50), Some(41));
        latest.record_heartbeat(partial.clone(), Some(60), Some(45));
        let both = stated(SourceState::Degraded, &[Reason::LostEvents, Reason::BlockSize]);
        latest.apply_later(Some(50));
        assert_eq!(latest.now(), &both, "a later state is worse than the one that waits");
        latest.apply_later(Some(60));
        assert_eq!(latest.now(), &partial);
        latest.record_heartbeat(Stated::EXACT, None, Some(60));
        assert_eq!(latest.now(), &Stated::EXACT, "nothing is to come");
    }
}
