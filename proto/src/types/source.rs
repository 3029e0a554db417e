use super::{Cursor, Direction, Incarnation, Learned, Reason, SourceState, StateReason};
use std::sync::Arc;
use std::time::Duration;

/// What is known of a source of events: how far it can be trusted, and where to resume it after a restart. `T` is a time
/// by the clock of the module that knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceStatus<T = Duration> {
    /// How far it can be trusted.
    pub state: SourceState,
    /// Whether its transport is connected.
    pub connected: bool,
    /// Last applied batch; none before the first.
    pub applied: Option<Cursor>,
    /// Highest sequence number that is known to exist in this incarnation.
    pub head: Option<u64>,
    /// Batches held back until those before them have come.
    pub buffered_batches: u64,
    /// When its newest batch was last known to be applied.
    pub verified_at: Option<T>,
    /// Its earlier incarnations, the latest last.
    pub past: Arc<[Incarnation]>,
    /// What it has shown of itself.
    pub learned: Arc<Learned>,
    /// Why it is worse than exact, beyond what `state` and `connected` show: one entry a reason.
    pub reasons: Arc<[StateReason]>,
}

impl<T> Default for SourceStatus<T> {
    /// Nothing is known yet.
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
    /// Batches that are known to exist and are not applied.
    #[must_use]
    pub fn lag_batches(&self) -> u64 {
        let past = |number: Option<u64>| number.map_or(0, |number| number.saturating_add(1));
        let applied = self.applied.map(|applied| applied.sequence);
        past(self.head).saturating_sub(past(applied))
    }

    /// Why it is worse than exact: reasons that were noted, and what its state shows. Empty if it is exact.
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

    /// Whether the worker may hold less than the index shows, by its state or for a reason that was noted.
    #[must_use]
    pub fn may_be_high(&self) -> bool {
        let by_state = matches!(
            self.state,
            SourceState::CatchingUp | SourceState::Gap | SourceState::Degraded
        );
        by_state || self.reasons.iter().any(|at| at.reason.direction() == Direction::MayBeHigh)
    }

    /// The same, with times by another clock.
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
