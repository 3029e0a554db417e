use super::{Cursor, Direction, Incarnation, Learned, Reason, SourceState, StateReason};
use std::sync::Arc;
use std::time::Duration;

/// Status of a source of events: how far it can be trusted, and where to resume it after a restart. `T` is a time on
/// the clock of the module that keeps the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus<T = Duration> {
    /// How far the source can be trusted.
    pub state: SourceState,
    /// Whether the source's transport is connected.
    pub connected: bool,
    /// Last applied batch; none before the first batch.
    pub applied: Option<Cursor>,
    /// Highest known sequence number of this incarnation.
    pub head: Option<u64>,
    /// Number of batches buffered until their predecessors arrive.
    pub buffered_batches: u64,
    /// Time when the newest batch was last known to be applied.
    pub verified_at: Option<T>,
    /// Earlier incarnations of the source, latest last.
    pub past: Arc<[Incarnation]>,
    /// Facts that the source has shown.
    pub learned: Arc<Learned>,
    /// Why the source is worse than exact, beyond `state` and `connected`: one entry per reason.
    pub reasons: Arc<[StateReason]>,
}

impl<T> Default for SourceStatus<T> {
    /// A source of which no event is known yet.
    fn default() -> Self {
        Self {
            state: SourceState::Cold,
            connected: false,
            applied: None,
            head: None,
            buffered_batches: 0,
            verified_at: None,
            past: Arc::default(),
            learned: Arc::default(),
            reasons: Arc::default(),
        }
    }
}

impl<T> SourceStatus<T> {
    /// Number of batches that are known to exist and are not applied.
    #[must_use]
    pub fn lag_batches(&self) -> u64 {
        let past = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
        let applied = self.applied.map(|applied| applied.sequence);
        past(self.head).saturating_sub(past(applied))
    }

    /// Why the source is worse than exact: the recorded reasons, and the reasons implied by its state. Empty if it is
    /// exact.
    #[must_use]
    pub fn all_reasons(&self) -> Vec<StateReason> {
        let shown = match self.state {
            SourceState::Exact | SourceState::Partial => None,
            SourceState::CatchingUp if !self.connected => Some(Reason::Disconnected),
            SourceState::CatchingUp => Some(Reason::CatchingUp),
            SourceState::Gap => Some(Reason::MissingEvents),
            SourceState::Degraded => Some(Reason::LostEvents),
            SourceState::Cold => Some(Reason::NothingReceived),
        };
        let shown = shown.map(|reason| StateReason {
            reason,
            count: 1,
            example: Arc::default(),
            since: Duration::ZERO,
        });
        self.reasons.iter().cloned().chain(shown).collect()
    }

    /// Whether the worker may have fewer blocks than the index shows, because of the source's state or a recorded
    /// reason.
    #[must_use]
    pub fn may_be_high(&self) -> bool {
        let by_state = matches!(
            self.state,
            SourceState::CatchingUp | SourceState::Gap | SourceState::Degraded
        );
        by_state || self.reasons.iter().any(|at| at.reason.direction() == Direction::MayBeHigh)
    }

    /// Converts the status to the times of another clock.
    #[must_use]
    pub fn by_clock<U>(self, convert: impl FnOnce(T) -> U) -> SourceStatus<U> {
        SourceStatus {
            state: self.state,
            connected: self.connected,
            applied: self.applied,
            head: self.head,
            buffered_batches: self.buffered_batches,
            verified_at: self.verified_at.map(convert),
            past: self.past,
            learned: self.learned,
            reasons: self.reasons,
        }
    }
}
